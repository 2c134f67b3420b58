"""Decodes one layer of encoding: base64 and URL-encoded runs are decoded and scanned as text, and so are
texts with escaped letters (``\\u0067``).

A base64 run that contains a secret is replaced whole, since parts of it cannot be cut out. In the other two
encodings only the secret is replaced, by whole letters, so that JSON within a text still parses. A run that
does not decode to text is ignored.
"""

from __future__ import annotations

import binascii
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from urllib.parse import unquote_to_bytes

from onward.redaction.expressions import compiled
from onward.redaction.rule import Hit

_BASE64 = compiled(rb"[A-Za-z0-9+/_-]{40,}(?:(?:\r?\n|\\n)[A-Za-z0-9+/_-]{8,})*={0,2}")
_LINE = compiled(rb"[A-Za-z0-9+/_-]{40,}")
_PERCENT = compiled(rb"[^\s\x00\"'<>\\`]*%[0-9A-Fa-f]{2}[^\s\x00\"'<>\\`]*")
_ONE_PERCENT = compiled(rb"%[0-9A-Fa-f]{2}")
_MARK = b"\\u00"
_ESCAPE = compiled(rb"\\u00(?:0[9AaDd]|[2-46][0-9A-Fa-f]|5[0-9ABD-Fabd-f]|7[0-9A-Ea-e])")
_LETTERS = {
    code.encode(): bytes((letter,))
    for letter in (9, 10, 13, *range(0x20, 0x7F))
    if letter != ord("\\")
    for code in (f"{letter:02x}", f"{letter:02X}")
}
"""The letter for each escape code."""
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_BREAKS = b"\r\n"
_MIN_URL = 8
_NO_BASE64 = compiled(rb"[0-9a-f]+|[0-9A-F]+|[a-z_/-]+|[A-Z_/-]+|[0-9-]+")
"""Runs that are not base64: digests, paths, ruled lines."""
_CONTROL = bytes(sorted(set(range(0x20)) - set(b"\t\n\r\x1b"))) + b"\x7f"

Scan = Callable[[bytes], list[Hit]]


def hits(buffer: bytes, scan: Scan) -> list[Hit]:
    """Returns the hits of ``scan`` in the decoded runs of ``buffer``, as hits in ``buffer``."""
    found = _in_base64(buffer, scan)
    if b"%" in buffer:
        found += _in_urls(buffer, scan)
    return found


class Unescaped:
    """The unescaped form of a buffer's texts with escaped letters, with a map back to the buffer."""

    def __init__(self, buffer: bytes) -> None:
        parts: list[bytes] = []
        self._at: list[int] = []
        """Positions in ``text``: the start of each text and the end of each escaped letter."""
        self._from: list[int] = []
        """The corresponding positions in the buffer."""
        size, match = 0, _ESCAPE.search(buffer)
        while match is not None:
            here = buffer.rfind(b"\x00", 0, match.start()) + 1
            last = buffer.find(b"\x00", match.end())
            last = len(buffer) if last < 0 else last
            self._at.append(size)
            self._from.append(here)
            first, *others = buffer[here:last].split(_MARK)
            parts.append(first)
            size += len(first)
            here += len(first)
            for piece in others:
                letter = _LETTERS.get(piece[:2])
                if letter is None:
                    parts += (_MARK, piece)
                    size += len(_MARK) + len(piece)
                else:
                    if parts[-1].endswith(b"\\"):  # the backslash is itself escaped, in JSON within JSON
                        size -= len(parts[-1])
                        parts[-1] = parts[-1].rstrip(b"\\")
                        size += len(parts[-1])
                    parts += (letter, piece[2:])
                    self._at.append(size + 1)
                    self._from.append(here + len(_MARK) + 2)
                    size += len(piece) - 1
                here += len(_MARK) + len(piece)
            parts.append(b"\x00")
            size += 1
            match = _ESCAPE.search(buffer, last)
        self.text = b"".join(parts[:-1])

    def place(self, first: int, last: int) -> tuple[int, int]:
        """Returns the place in the buffer of bytes ``first``..``last`` of ``text``, with whole escapes."""
        return self._back(first), self._back(last)

    def hits(self, find: Scan) -> list[Hit]:
        """Returns the hits of ``find`` in ``text``, as hits in the buffer."""
        found = []
        for hit in find(self.text):
            value = self.text[hit.start : hit.end] if hit.value is None else hit.value
            found.append(Hit(*self.place(hit.start, hit.end), hit.kind, hit.layer, value))
        return found

    def _back(self, position: int) -> int:
        i = bisect_right(self._at, position) - 1
        return self._from[i] + position - self._at[i]


def unescaped(buffer: bytes) -> Unescaped | None:
    """Returns the unescaped texts, or None if no letter is escaped."""
    return Unescaped(buffer) if _MARK in buffer and _ESCAPE.search(buffer) else None


def _in_base64(buffer: bytes, scan: Scan) -> list[Hit]:
    spans: list[tuple[int, int]] = []
    texts: list[bytes] = []
    for match in _BASE64.finditer(buffer):
        for first, last in _candidates(buffer, *match.span()):
            text = _decoded(buffer[first:last])
            if text is not None:
                spans.append((first, last))
                texts.append(text)
    if not texts:
        return []
    return [
        hit._replace(start=spans[i][0], end=spans[i][1], layer=min(hit.layer, 2))
        for i, hit in _scanned(texts, scan)
    ]


def _scanned(texts: list[bytes], scan: Scan) -> Iterator[tuple[int, Hit]]:
    """Yields (index of the text, hit in that text with its value) for each hit of ``scan``."""
    starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
    joined = b"\x00".join(texts)
    for hit in scan(joined):
        i = bisect_right(starts, hit.start) - 1
        value = joined[hit.start : hit.end] if hit.value is None else hit.value
        yield i, hit._replace(start=hit.start - starts[i], end=hit.end - starts[i], value=value)


def _candidates(buffer: bytes, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yields the run as a whole if it decodes, else each of its lines."""
    if _NO_BASE64.fullmatch(buffer, first, last):
        return
    run = buffer[first:last]
    if (b"\n" not in run and b"\\n" not in run) or _decoded(run) is not None:
        yield first, last
    else:
        for line in _LINE.finditer(buffer, first, last):
            if not _NO_BASE64.fullmatch(buffer, *line.span()):
                yield line.span()


def _decoded(run: bytes) -> bytes | None:
    """Returns the decoded text of ``run``, or None. A path before it, up to a slash, may be skipped."""
    run = run.replace(b"\\n", b"").translate(_TO_STANDARD, _BREAKS).rstrip(b"=")
    text = _text(run)
    if text is None and b"/" in run:
        tail = run[run.rfind(b"/", 0, len(run) - 40) + 1 :]
        text = _text(tail) if len(tail) < len(run) else None
    return text


def _text(run: bytes) -> bytes | None:
    if len(run) % 4 == 1:
        run = run[:-1]
    try:
        if not _is_text(binascii.a2b_base64(run[:40])):
            return None
        whole = binascii.a2b_base64(run + b"=" * (-len(run) % 4))
    except binascii.Error:
        return None
    return whole if _is_text(whole) else None


def _is_text(data: bytes) -> bool:
    """Returns whether ``data`` is UTF-8 without control characters; its last character may be cut."""
    if len(data.translate(None, _CONTROL)) != len(data):
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return 0 < len(data) - 3 <= error.start
    return True


def _in_urls(buffer: bytes, scan: Scan) -> list[Hit]:
    """Returns hits in the decoded text, mapped back to the encoded bytes."""
    pieces: list[bytes] = []
    runs: list[tuple[int, int]] = []
    for match in _PERCENT.finditer(buffer):
        if match.end() - match.start() >= _MIN_URL:
            runs.append(match.span())
            pieces.append(unquote_to_bytes(match.group()).replace(b"\x00", b" "))
    found = []
    places: dict[int, _Places] = {}
    for i, hit in _scanned(pieces, scan) if pieces else ():
        if i not in places:
            places[i] = _Places(buffer, *runs[i])
        found.append(hit._replace(start=places[i].of(hit.start), end=places[i].of(hit.end)))
    return found


class _Places:
    """Map from the decoded bytes of one URL-encoded run to the buffer; the run is walked once."""

    def __init__(self, buffer: bytes, first: int, last: int) -> None:
        self._at = [0]
        """Positions in the decoded run: its start, and the end of each escape."""
        self._from = [first]
        """The corresponding positions in the buffer."""
        for match in _ONE_PERCENT.finditer(buffer, first, last):
            self._at.append(self._at[-1] + match.start() - self._from[-1] + 1)
            self._from.append(match.end())

    def of(self, position: int) -> int:
        i = bisect_right(self._at, position) - 1
        return self._from[i] + position - self._at[i]
