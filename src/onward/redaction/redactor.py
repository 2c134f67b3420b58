"""``Redactor``: the redaction settings of one process, made once and passed to all code that redacts.

Invariants: the policy version is part of a trajectory's identity. Every setting here that decides what is
redacted must be part of it, except known secrets, which differ per client.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from onward.redaction.engine import POLICY_VERSION, Allows, Redacted, redact
from onward.redaction.known import NOTHING_KNOWN, Known
from onward.redaction.own_rules import NO_RULES, OwnRules
from onward.redaction.rules.personal_optional import OPTIONAL, Finder, optional
from onward.redaction.trajectory import redact_trajectory


@dataclass(frozen=True)
class Redactor:
    """All rules, with the chosen settings. Thread-safe. The constructor raises ConfigError for an unknown
    optional kind."""

    known: Known = NOTHING_KNOWN
    """Secrets of the client, replaced wherever they occur."""
    optional_kinds: tuple[str, ...] = ()
    """Kinds from ``rules/personal_optional.py`` (``OPTIONAL``): off unless named here."""
    finders: tuple[Finder, ...] = ()
    """Further finders, such as ``entities(…)``; the policy version includes only their names."""
    own: OwnRules = NO_RULES
    """Rules and allow list of the operator (``read_rules``)."""
    policy_version: str = field(init=False)
    """``POLICY_VERSION``; with optional kinds, finders or own rules, eight more hex digits that identify
    them."""
    _also: tuple[Finder, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds = tuple(sorted(set(self.optional_kinds)))
        also: tuple[Finder, ...] = (optional(kinds), *self.finders) if kinds else self.finders
        if self.own.rules:
            also = (*also, self.own)
        object.__setattr__(self, "optional_kinds", kinds)
        object.__setattr__(self, "_also", also)
        object.__setattr__(self, "policy_version", POLICY_VERSION + _suffix(kinds, self.finders, self.own))

    def document(self, document: dict[str, Any] | list[Any] | str) -> Redacted:
        """Like ``redact``. Raises RedactionError: the document must then not be written."""
        return self._signed(redact(document, known=self.known, also=self._also, allows=self._allows))

    def trajectory(self, document: dict[str, Any]) -> Redacted:
        """Like ``redact_trajectory``, token ids included. Raises RedactionError."""
        return self._signed(
            redact_trajectory(document, known=self.known, also=self._also, allows=self._allows)
        )

    @property
    def _allows(self) -> Allows | None:
        return self.own.allows if self.own.has_allow_list else None

    def _signed(self, redacted: Redacted) -> Redacted:
        if redacted.policy_version == self.policy_version:
            return redacted
        return replace(redacted, policy_version=self.policy_version)


def _suffix(kinds: Iterable[str], finders: Iterable[Finder], own: OwnRules) -> str:
    rules = [[rule.kind, rule.pattern, rule.take, rule.checks] for kind in kinds for rule in OPTIONAL[kind]]
    names = [getattr(finder, "__qualname__", type(finder).__qualname__) for finder in finders]
    if not rules and not names and not own.digest:
        return ""
    content = [rules, names, own.digest] if own.digest else [rules, names]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]


PLAIN = Redactor()
"""All rules, without known secrets, optional kinds or finders."""
