"""What a rule is. The rules themselves are data in ``vendors.py``, ``structure.py`` and ``personal.py``.

A rule says only what a secret looks like; ``scan.py`` knows how to look. Examples are put together when
the module is loaded, from pieces or from (prefix, alphabet, length), so that no scanner takes a rule file
for a leak. The contract for who adds rules is in the docstring of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Span = tuple[int, int]
Check = Callable[[bytes, int, int], Span | None]
"""``(buffer, first, last)`` of a candidate → the span to take, perhaps narrower, or None to leave it."""
Take = Literal["match", "group", "assigned", "flag", "cookies"]
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
    """Bytes ``start``..``end`` of the buffer are a secret of ``kind``; ``value`` is what they stand for where
    that is not what stands there (an encoded secret)."""

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
    """1 vendor token, 2 structure around it, 3 personal data. The lower layer wins an overlap."""
    take: Take = "match"
    checks: tuple[str, ...] = ()
    """Names of functions that must all agree, in this order; each may narrow the span."""
    positives: tuple[tuple[str, str], ...] = ()
    """(text, the part of it that must disappear)"""
    negatives: tuple[str, ...] = ()
    """Texts that must stay as they are."""
    same: Same = "exact"
    """When two writings of a value share a placeholder: ``lower`` ignores case, ``digits`` and ``alnum``
    compare nothing but digits, or letters and digits without case."""
    note: str = field(default="", compare=False)


def body(length: int, alphabet: str = ALNUM) -> str:
    """``length`` characters that look random and are always the same."""
    return (alphabet * (length // len(alphabet) + 1))[:length]


def whole(*secrets: str) -> tuple[tuple[str, str], ...]:
    """Positive examples in which all of the secret disappears."""
    return tuple((f"see {secret} here", secret) for secret in secrets)


def token(
    kind: str,
    pattern: str,
    *secrets: str,
    checks: tuple[str, ...] = ("start",),
    negatives: tuple[str, ...] = (),
    note: str = "",
) -> Rule:
    """A rule of layer 1 whose whole match is the secret; ``secrets`` are its positive examples."""
    return Rule(kind, pattern, 1, checks=checks, positives=whole(*secrets), negatives=negatives, note=note)
