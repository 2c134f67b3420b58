"""Routes as TensorZero's configuration: models, one variant for each arm, static weights. Pure.

TensorZero answers a failed variant's call from another variant of the same function, and counts no failure,
so a broken candidate would look healthy. Each arm therefore has a function of its own besides, with no other
variant to fall back on. ``FUNCTION`` splits by weight, ``FUNCTION_candidate`` and ``FUNCTION_current`` have
one variant each.

Invariants: a marker names the digest of the routes, so a running gateway shows from which ones it was built.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from onward.config import TensorZeroSettings
from onward.contracts.buckets import DesiredArm
from onward.errors import ConfigError

BEGIN, END = "# onward: begin of the routes, written by the releaser", "# onward: end of the routes"
MARKER = "onward_routes"
"""Function whose only variant is named by the digest of the routes."""

Split = Mapping[str, tuple[str, float]]
"""Arm → (model id, weight)."""


def split_of(arms: Iterable[DesiredArm]) -> Split:
    return {arm.arm: (arm.model_id, arm.weight) for arm in arms}


def digest_of(split: Split) -> str:
    """Returns the digest of a split: 16 hex digits."""
    return hashlib.sha256(json.dumps(dict(sorted(split.items()))).encode()).hexdigest()[:16]


def render(split: Split, settings: TensorZeroSettings, upstream: str) -> str:
    """Returns the tables for ``split``. ``upstream``: address of the OpenAI-compatible engine."""
    lines = [BEGIN]
    for model_id in sorted({model_id for model_id, _ in split.values()}):
        name = json.dumps(model_id)
        lines += [
            f"[models.{name}]",
            'routing = ["onward"]',
            f"[models.{name}.providers.onward]",
            'type = "openai"',
            f"model_name = {name}",
            f"api_base = {json.dumps(upstream.rstrip('/') + '/')}",
            f"api_key_location = {json.dumps(settings.upstream_key or 'none')}",
        ]
    function = settings.function
    lines += [f"[functions.{function}]", 'type = "chat"']
    for arm, (model_id, _) in split.items():
        lines += _variant(function, arm, model_id)
    weights = ", ".join(f"{arm} = {float(weight)!r}" for arm, (_, weight) in split.items())
    lines += [
        f"[functions.{function}.experimentation]",
        'type = "static"',
        f"candidate_variants = {{ {weights} }}",
        "fallback_variants = []",
    ]
    for arm, (model_id, _) in split.items():
        own = f"{function}_{arm}"
        lines += [f"[functions.{own}]", 'type = "chat"', *_variant(own, arm, model_id)]
    any_model = next(iter(split.values()))[0]
    lines += [f"[functions.{MARKER}]", 'type = "chat"', *_variant(MARKER, digest_of(split), any_model), END]
    return "\n".join(lines) + "\n"


def _variant(function: str, name: str, model_id: str) -> list[str]:
    table = f"[functions.{function}.variants.{json.dumps(name)}]"
    return [table, 'type = "chat_completion"', f"model = {json.dumps(model_id)}"]


def read_back(text: str, function: str) -> Split:
    """Returns the split that a configuration has. Raises ConfigError for one without it."""
    try:
        found: dict[str, Any] = tomllib.loads(text)["functions"][function]
        weights = found["experimentation"]["candidate_variants"]
        return {arm: (found["variants"][arm]["model"], float(weight)) for arm, weight in weights.items()}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(
            f"TensorZero's configuration has no static weights of function {function!r}: let the releaser "
            f"write it."
        ) from None


def spliced(text: str, tables: str) -> str:
    """Returns ``text`` with ``tables`` in place of those that the releaser wrote before, else at its end."""
    before, begin, rest = text.partition(BEGIN)
    if not begin:
        return f"{text.rstrip()}\n\n{tables}".lstrip()
    _, end, after = rest.partition(END)
    if not end:
        raise ConfigError(f"TensorZero's configuration has {BEGIN!r} without its end: delete that part.")
    return f"{before}{tables}{after.removeprefix(chr(10))}"
