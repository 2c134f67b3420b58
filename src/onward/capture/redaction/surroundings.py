"""What stands around a candidate of layer 3: escapes before it, identifiers it is part of, words near by.

A number proves little about itself. It counts only where it stands alone, and for kinds without a strong
check only beside a word that says what it is. All functions look at a bounded stretch of the buffer, and
leave a text (NUL) only for the dict key that stands right before its value.
"""

from __future__ import annotations

import re2

from onward.capture.redaction.checks import may_start

_ALNUM = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_DIGITS = frozenset(b"0123456789")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_JOINTS = frozenset(b"_-.")
BEFORE = 56
AFTER = 28
"""How far, in bytes, a word may stand from what it speaks of."""

LEFT = r"(?:%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[nrtbf]|\x1b\[[0-9;]{0,8}m|_|\b)"
"""Opens a pattern whose first group may begin after a letter or digit only where that ends an escape."""

_BYTES = re2.Options()
_BYTES.encoding = re2.Options.Encoding.LATIN1
_BYTES.log_errors = False


def words(*alternatives: str) -> re2._Regexp:
    """An expression for :func:`near`: any of the words, in any case, as a component of a name or sentence."""
    joined = "|".join(word.replace(" ", "[ _.-]?") for word in alternatives)
    titled = "|".join(word.title().replace(" ", "") for word in alternatives if word.isascii())
    pattern = (
        rf"(?i:(?:^|[^a-z])(?:{joined})(?:[^a-z]|$))"
        rf"|(?:^|[^A-Za-z])(?:{joined})[A-Z]|[a-z](?:{titled})(?:[^a-z]|$)"
    )
    return re2.compile(pattern.encode("utf-8"), _BYTES)


def stands_alone(buffer: bytes, first: int, last: int) -> bool:
    """Whether the span is no part of an identifier, a longer number, a uuid, a decimal or a file name."""
    return _free_left(buffer, first) and _free_right(buffer, last)


def _free_left(buffer: bytes, first: int) -> bool:
    if first == 0:
        return True
    before = buffer[first - 1]
    if before in _JOINTS and first > 1:
        # a joint between letters is part of a name, unless those letters end an escape themselves
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
    """Behind the last escape (``\\n``, ``\\u003c``, ``%3C``, a colour) that reaches into the span."""
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


def before(buffer: bytes, first: int, reach: int = BEFORE) -> bytes:
    """Up to ``reach`` bytes before ``first``: of the same text, or the key of a value that begins there."""
    start = max(0, first - reach)
    nul = buffer.rfind(b"\x00", start, first)
    if nul < 0:
        return buffer[start:first]
    if buffer[nul + 1 : first].strip(b" \t\r\n\"'(+"):
        return buffer[nul + 1 : first]
    start = max(0, nul - reach)
    key = buffer[buffer.rfind(b"\x00", start, nul) + 1 if b"\x00" in buffer[start:nul] else start : nul]
    return b"" if b"<" in key else key


def after(buffer: bytes, last: int, reach: int = AFTER) -> bytes:
    return buffer[last : last + reach].partition(b"\x00")[0]


def near(buffer: bytes, first: int, last: int, expression: re2._Regexp) -> bool:
    """Whether one of the words stands before or behind the span."""
    return bool(expression.search(before(buffer, first))) or bool(expression.search(after(buffer, last)))
