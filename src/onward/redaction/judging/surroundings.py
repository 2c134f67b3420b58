"""Checks the text around a candidate of layer 3: escapes before it, identifiers that contain it, nearby
words.

A number alone proves little. It counts only where it stands alone, and for kinds without a strong check only
near a word that names its kind. Such rules search for the word, which is rare, and then for a number near it.
Checking every number would cost more than all other rules together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onward.redaction.judging.checks import may_start
from onward.redaction.rule import Span

_ALNUM = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_DIGITS = frozenset(b"0123456789")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_JOINTS = frozenset(b"_-.")
BEHIND = 56
AHEAD = 44
"""Range for a number: up to this many bytes after its word (``BEHIND``), or before it (``AHEAD``)."""
_FEWEST_DIGITS = 4

LEFT = r"(?:%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[nrtbf]|\x1b\[[0-9;]{0,8}m|_|\b)"
"""Prefix of a pattern: its first group may begin after a letter or digit only if that ends an escape."""


def word_pattern(*words: str) -> str:
    """Returns a pattern for any of the words, also as part of a name: ``ssn``, ``SSN_2``, ``userSsn``."""
    ascii_words = [word for word in words if word.isascii()]
    joined = "|".join(word.replace(" ", "[ _.-]?") for word in ascii_words)
    titled = "|".join(word.title().replace(" ", "") for word in ascii_words)
    forms = [
        rf"(?:\b|_)(?i:{joined})(?:\b|_)",
        rf"(?:\b|_)(?:{joined})[A-Z]",
        rf"[a-z](?:{titled})(?:\b|_|[A-Z])",
    ]
    forms += [word.encode().decode("latin-1") for word in words if not word.isascii()]
    return "|".join(forms)


def numbers_beside(buffer: bytes, first: int, last: int, number: Any) -> Iterator[Span]:
    """Yields group 1 of each match of ``number`` after the word at ``first``..``last``, then before it on its
    line.

    Only within the word's own text: neighbouring texts in the buffer may come from anywhere in the document.
    """
    behind = last + len(buffer[last : last + BEHIND].partition(b"\x00")[0])
    same_line = buffer[max(0, first - AHEAD) : first].rpartition(b"\x00")[2].rpartition(b"\n")[2]
    ahead = first - len(same_line)
    for start, end in ((last, behind), (ahead, first)):
        if _has_number(buffer[start:end]):
            yield from (match.span(1) for match in number.finditer(buffer, start, end))


def _has_number(text: bytes) -> bool:
    return len(text) - len(text.translate(None, b"0123456789")) >= _FEWEST_DIGITS


def stands_alone(buffer: bytes, first: int, last: int) -> bool:
    """Returns whether the span is not part of an identifier, longer number, uuid, decimal or file name."""
    return _free_left(buffer, first) and _free_right(buffer, last)


def _free_left(buffer: bytes, first: int) -> bool:
    if first == 0:
        return True
    before = buffer[first - 1]
    if before in _JOINTS and first > 1:
        # a joint between letters is part of a name, unless those letters end an escape
        return buffer[first - 2] not in _ALNUM or may_start(buffer, first - 1)
    return (before < 0x80 and may_start(buffer, first)) or before >= 0x80


def _free_right(buffer: bytes, last: int) -> bool:
    after = buffer[last : last + 2]
    if not after:
        return True
    if after[0] in _ALNUM:
        return False
    if after[0] == 0x2E:
        return after[1:] == b"" or after[1] not in _DIGITS
    return after[0] not in _JOINTS or after[1:] == b"" or after[1] not in _ALNUM


def after_escapes(buffer: bytes, first: int, last: int) -> int:
    """Returns the end of the last escape (``\\n``, ``\\u003c``, ``%3C``, a colour) that ends in the span."""
    start = first
    for at in range(max(0, first - 5), last):
        if buffer[at] == 0x1B:
            step = buffer.find(b"m", at, at + 12) + 1 - at
        elif buffer[at] == 0x5C:
            step = 6 if buffer[at + 1 : at + 2] == b"u" and _HEX.issuperset(buffer[at + 2 : at + 6]) else 2
        elif buffer[at] == 0x25 and _HEX.issuperset(buffer[at + 1 : at + 3]):
            step = 3
        else:
            continue
        if at + step <= last:
            start = max(start, at + step)
    return start
