"""Finds bare JSON numbers within a text. A placeholder in place of one needs quotes, or the text no longer
parses.

A value after a key is recognised by the text next to it, so cut-off JSON counts. An array element is
recognised by the brackets and quotes before it in its text. Any other number gets no quotes.
"""

from __future__ import annotations

from typing import NamedTuple

from onward.redaction.expressions import compiled

_SPACE = rb"(?:[ \t\r\n]|\\+[nrt]){0,64}"
_NUMBER = compiled(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_OF_A_NUMBER = b"0123456789.+-eE"
_REACH = 400
"""Bytes before a number that are read; no number in a document is expected to be longer."""
_KEY = compiled(rb"(?s).*?(\\*)\"" + _SPACE + rb":" + _SPACE)
_ELEMENT = compiled(rb"(?s).*(?:\[|[0-9\"\]}el]" + _SPACE + rb",)" + _SPACE)
_ENDS_VALUE = compiled(_SPACE + rb"(?:[,}\]\x00]|$)")
_ENDS_ELEMENT = compiled(_SPACE + rb"(?:\]|," + _SPACE + rb"(?:\\*\"|[\[{0-9<tfn-]))")
_BEGINS_ARRAY = compiled(rb"(?s)(?:.*(?:\"" + _SPACE + rb":|[\"\[,\n]))?" + _SPACE)
_MARKS = compiled(rb"\\*\"|[\[\]{}\n]")


class Number(NamedTuple):
    """Bytes ``first``..``last`` are a whole number. ``quote`` goes around it, backslashes included."""

    first: int
    last: int
    quote: bytes


class Numbers:
    """The bare numbers of one text. ``around`` must be called with increasing positions."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._marks = iter(_MARKS.finditer(text))
        self._next = next(self._marks, None)
        self._strings: list[int] = []
        """Open strings, outermost first: the number of backslashes before their quotes."""
        self._open: list[list[bool]] = [[]]
        """Open brackets outside of strings, then within each open string; true for a JSON array."""

    def around(self, start: int, end: int) -> Number | None:
        """Returns the JSON number that contains bytes ``start``..``end``, or None."""
        whole = _whole(self._text, start, end)
        if whole is None:
            return None
        first, last = whole
        key = behind_key(self._text, first, last)
        if key is not None:
            return Number(first, last, key)
        before = self._text[max(0, first - _REACH) : first]
        if not _ELEMENT.fullmatch(before) or not _ENDS_ELEMENT.match(self._text, last):
            return None
        self._read_to(first)
        brackets = self._open[-1]
        if not brackets or not brackets[-1]:
            return None
        slashes = 2 * self._strings[-1] + 1 if self._strings else 0
        return Number(first, last, b"\\" * slashes + b'"')

    def _read_to(self, position: int) -> None:
        while self._next is not None and self._next.start() < position:
            mark, at = self._next.group(), self._next.start()
            if mark == b"\n":  # a JSON string contains no newline: the strings were not open
                del self._strings[:], self._open[1:]
            elif mark in (b"[", b"{"):
                before = self._text[max(0, at - _REACH) : at]
                array = mark == b"[" and _BEGINS_ARRAY.fullmatch(before) is not None
                self._open[-1].append(array)
            elif mark in (b"]", b"}"):
                del self._open[-1][-1:]
            else:
                self._quote(len(mark) - 1)
            self._next = next(self._marks, None)

    def _quote(self, slashes: int) -> None:
        if slashes in self._strings:
            outer = self._strings.index(slashes)
            del self._strings[outer:], self._open[outer + 1 :]
        elif not self._strings or slashes > self._strings[-1]:
            self._strings.append(slashes)
            self._open.append([])


def behind_key(text: bytes, first: int, last: int) -> bytes | None:
    """Returns the quote, with backslashes, of the key whose value is ``first``..``last``, or None."""
    if not _ENDS_VALUE.match(text, last):
        return None
    key = _KEY.fullmatch(text[max(0, first - _REACH) : first])
    return None if key is None else key.group(1) + b'"'


def _whole(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    before, behind = text[max(0, start - _REACH) : start], text[end : end + _REACH]
    first = start - len(before) + len(before.rstrip(_OF_A_NUMBER))
    last = end + len(behind) - len(behind.lstrip(_OF_A_NUMBER))
    return (first, last) if _NUMBER.fullmatch(text, first, last) else None
