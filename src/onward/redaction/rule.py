"""Definition of a rule. The rules themselves are data in the other files of this package.

A rule only describes the form of a secret; ``scan.py`` does the search. Examples are built when the module is
loaded, from pieces or from (prefix, alphabet, length), so that no secret scanner reports a rule file. The
docstring of ``onward.redaction`` explains how to add a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

Span = tuple[int, int]
Check = Callable[[bytes, int, int], Span | None]
"""Function from ``(buffer, first, last)`` of a candidate to the span to take, or None to refuse it."""
Take = Literal[
    "match", "group", "assigned", "keyed", "flag", "cookies", "said", "said_next", "given", "given_quoted",
    "listed",
    "paired", "inputs", "inserted", "tables",
]  # fmt: skip
Same = Literal["exact", "lower", "digits", "alnum"]
Layer = Literal[1, 2, 3]
LAYERS: dict[int, str] = {
    0: "a known secret of the client",
    1: "a vendor's token",
    2: "the text around it",
    3: "personal data",
}

HEX = "0123456789abcdef"
B32 = "ABCDEFGHJKMNPQRSTUVWXYZ234567"
ALNUM = "aB3dE5fG7hJ9kLmN2pQr"


class Hit(NamedTuple):
    """Bytes ``start``..``end`` are a secret of ``kind``, or an encoding of the secret ``value``."""

    start: int
    end: int
    kind: str
    layer: int
    value: bytes | None = None


@dataclass(frozen=True)
class Rule:
    """``kind`` names the placeholder; for ``assigned`` and ``flag`` the name before the value decides."""

    kind: str
    pattern: str
    layer: Layer
    """1 vendor token, 2 surrounding structure, 3 personal data. The lower layer wins an overlap."""
    take: Take = "match"
    checks: tuple[str, ...] = ()
    """Names of functions that must all agree, in this order; each may narrow the span."""
    positives: tuple[tuple[str, str], ...] = ()
    """Pairs of (text, the part of it that must be replaced)."""
    negatives: tuple[str, ...] = ()
    """Texts that must stay unchanged."""
    same: Same = "exact"
    """Decides when two spellings of a value share a placeholder. ``lower`` ignores case; ``digits`` compares
    only digits; ``alnum`` compares only letters and digits, without case."""
    note: str = field(default="", compare=False)
    gate: str | None = None
    """A simple expression that matches in every text in which ``pattern`` does: the rule then runs only over
    such texts. Empty for a pattern with a rare literal, which needs none. None: see ``scan.py``."""


def body(length: int, alphabet: str = ALNUM) -> str:
    """Returns ``length`` characters that look random but are always the same."""
    return (alphabet * (length // len(alphabet) + 1))[:length]


def whole(*secrets: str) -> tuple[tuple[str, str], ...]:
    """Positive examples in which the whole secret is replaced."""
    return tuple((f"see {secret} here", secret) for secret in secrets)


def token(
    kind: str,
    pattern: str,
    *secrets: str,
    checks: tuple[str, ...] = ("start",),
    negatives: tuple[str, ...] = (),
    note: str = "",
    gate: str | None = None,
) -> Rule:
    """A rule of layer 1 whose whole match is the secret; ``secrets`` are its positive examples."""
    return Rule(
        kind, pattern, 1, checks=checks, positives=whole(*secrets), negatives=negatives, note=note, gate=gate
    )


vendor_rule = partial(Rule, layer=1, take="group")
context_rule = partial(Rule, layer=2, take="group")
personal_rule = partial(Rule, layer=3, take="group")
"""Makers of rules per layer. The secret is the first group of the pattern unless ``take`` is given."""
