"""Collects all rules and checks, and computes the policy version: the hash of everything that decides
redaction.

Changing a rule, a name, a word or ENGINE_VERSION changes the identity of every later trajectory.
"""

from __future__ import annotations

import hashlib
import json

from onward.redaction import propagation
from onward.redaction.judging import checks, names, values
from onward.redaction.rule import LAYERS, Check, Rule, Same
from onward.redaction.rules import (
    assignments,
    beside,
    commands,
    more_services,
    personal,
    services,
    structure,
    vendors,
)

ENGINE_VERSION = 8
"""To be increased when code, not data, changes what is redacted."""
RULES: tuple[Rule, ...] = (
    *vendors.RULES,
    *services.RULES,
    *more_services.RULES,
    *structure.RULES,
    *assignments.RULES,
    *commands.RULES,
    *beside.RULES,
    *personal.RULES,
)
CHECKS: dict[str, Check] = {**checks.CHECKS, **personal.CHECKS}
SAME: dict[str, Same] = {rule.kind: rule.same for rule in RULES}


def policy_version() -> str:
    """Returns twelve hex digits over everything that decides redaction: rules, names, words, engine."""
    content = [
        ENGINE_VERSION,
        [[rule.kind, rule.pattern, rule.layer, rule.take, rule.checks, rule.same] for rule in RULES],
        [sorted(names.SINGLE.items()), sorted(names.PAIRS.items()), sorted(names.ENDINGS.items())],
        [sorted(names.PERSONAL_NAMES.items()), sorted(names.NOT_PLACES)],
        [sorted(names.BEFORE_EXEMPT), sorted(names.AFTER_EXEMPT), sorted(values.NOT_VALUES)],
        [sorted(map(str, words)) for words in personal.DECIDING],
        sorted(names.SERVICES),
        sorted(map(str, propagation.COMMON)),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def table() -> list[tuple[str, int, str, int]]:
    """Returns (kind, layer, recognised by, number of examples) for each kind, in rule order."""
    rows: dict[tuple[str, int], int] = {}
    for rule in RULES:
        key = (rule.kind, rule.layer)
        rows[key] = rows.get(key, 0) + len(rule.positives) + len(rule.negatives)
    return [(kind, layer, LAYERS[layer], examples) for (kind, layer), examples in rows.items()]
