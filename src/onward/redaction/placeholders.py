"""Placeholders ``<KIND:n>``: equal values get the same one, numbered by first appearance in a document.

The grammar is fixed: ASCII, upper case, no quotes, backslashes or braces. JSON within JSON therefore stays
valid, and a second run recognises the placeholders of the first. The map from value to placeholder is in
memory only; links across documents are HMAC tags, computed on demand.
"""

from __future__ import annotations

import hashlib
import hmac
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from urllib.parse import unquote_to_bytes

from onward.redaction.expressions import compiled
from onward.redaction.rule import Same

PLACEHOLDER = r"<[A-Z][A-Z0-9_]{0,31}:[0-9]{1,9}>"
"""Grammar of a placeholder, as an RE2 pattern."""
_FOUND = compiled(PLACEHOLDER.encode())
_TAG_DIGITS = 16


def spans(buffer: bytes) -> list[tuple[int, int]]:
    """Spans of the placeholders in ``buffer``."""
    return [match.span() for match in _FOUND.finditer(buffer)] if b"<" in buffer else []


def overlap(spans: list[tuple[int, int]], start: int, end: int) -> bool:
    """Returns whether ``start``..``end`` shares a byte with one of ``spans``, which are sorted."""
    i = bisect_right(spans, (start, end))
    return (i > 0 and spans[i - 1][1] > start) or (i < len(spans) and spans[i][0] < end)


def cut(spans: list[tuple[int, int]], start: int, end: int) -> bool:
    """Returns whether ``start`` or ``end`` lies within one of ``spans``, which are sorted."""
    for place in (start, end):
        i = bisect_right(spans, (place,)) - 1
        if i >= 0 and spans[i][0] < place < spans[i][1]:
            return True
    return False


def has_placeholder(value: bytes) -> bool:
    return b"<" in value and _FOUND.search(value) is not None


def count(text: bytes) -> Counter[str]:
    """Counts the placeholders in ``text`` per kind."""
    found: Counter[str] = Counter()
    for first, last in spans(text):
        found[text[first + 1 : last].partition(b":")[0].decode()] += 1
    return found


def normal(value: bytes, same: Same, kind: str) -> bytes:
    """Returns the normal form that two spellings of one value share."""
    if same == "lower":
        return value.lower().replace(b"%40", b"@")
    if same == "digits":
        return bytes(c for c in value if 0x30 <= c <= 0x39)
    if same == "alnum":
        return bytes(c for c in value.lower() if 0x30 <= c <= 0x39 or 0x61 <= c <= 0x7A)
    return unquote_to_bytes(value) if kind == "URL_PASSWORD" else value


class Book:
    """Assigns placeholders to the values of one document."""

    def __init__(self, same: dict[str, Same], forms: Callable[[bytes], Iterable[bytes]]) -> None:
        self._same = same
        self._forms = forms
        self._names: dict[bytes, str] = {}
        self._numbers: Counter[str] = Counter()
        self._values: dict[str, tuple[str, bytes]] = {}

    def go_on_after(self, texts: bytes) -> None:
        """Continues the numbering after the placeholders that the document already contains."""
        for first, last in spans(texts):
            kind, _, number = texts[first + 1 : last - 1].decode().partition(":")
            self._numbers[kind] = max(self._numbers[kind], int(number))

    def name(self, value: bytes, kind: str) -> str:
        """Returns the placeholder of ``value``; all encodings of a value share it."""
        known = self._names.get(value)
        if known is not None:
            return known
        same = self._same.get(kind, "exact")
        plain = normal(value, same, kind)
        writings = {value, *self._forms(value)}
        if same != "exact":
            writings.add(kind.encode() + b"\x00" + plain)
        placeholder = next((self._names[form] for form in writings if form in self._names), None)
        if placeholder is None:
            self._numbers[kind] += 1
            placeholder = f"<{kind}:{self._numbers[kind]}>"
            self._values[placeholder] = (kind, plain)
        for form in writings:
            self._names.setdefault(form, placeholder)
        return placeholder

    def links(self, tenant_key: bytes) -> dict[str, str]:
        """Returns a tag per placeholder: HMAC-SHA256 of kind and normalised value. Equal values have equal
        tags in every document of a tenant; without the key no one can test guesses against them."""
        return {
            placeholder: hmac.new(tenant_key, kind.encode() + b"\x00" + plain, hashlib.sha256).hexdigest()[
                :_TAG_DIGITS
            ]
            for placeholder, (kind, plain) in self._values.items()
        }
