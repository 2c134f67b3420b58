"""Redacts files: JSON, JSON lines (each line separately) or text, piece by piece, bytes in and bytes out.

Invariants: unchanged pieces are copied byte for byte. A piece that cannot be redacted stops the stream before
any of it is written. JSON is parsed and redacted by its texts, never as serialised text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, get_args

from onward.errors import ConfigError, RedactionError
from onward.redaction import PLAIN, Redacted, Redactor, placeholders
from onward.redaction.trajectory import void_tokens

Kind = Literal["json", "jsonl", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_SUFFIXES: dict[str, Kind] = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}
MAX_PIECE = 64 << 20
"""Bytes of one line, or of a JSON file, which is read whole."""
TEXT_PIECE = 8 << 20
"""Characters of text that are redacted together; the numbering of placeholders restarts after them."""
_BEGINNINGS = frozenset(('{"', "{}", '["', "[{", "[["))
_BOM = "\ufeff"
_SPACE = " \t\r\n"


class _NotTakenError(ValueError):
    """Valid JSON that could not be written again."""


@dataclass(frozen=True)
class Piece:
    number: int
    """Line number in JSON lines; else counted from 1."""
    output: bytes
    redacted: Redacted
    broken: str = ""
    """Line and reason, without content, if it should have been JSON but was redacted as text."""
    leaves: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    """Place (a JSON pointer, RFC 6901) and placeholders per kind of each text that changed."""


def pieces(
    source: BinaryIO, name: str, kind: Kind | None = None, redactor: Redactor = PLAIN
) -> Iterator[Piece]:
    """Redacts ``source`` in order. Without ``kind``: by the suffix of ``name``, else by its first line.

    Raises ConfigError for data that is not text, RedactionError (with the line) if it cannot be redacted.
    """
    lines = _lines(source, name)
    head: list[bytes] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    said = kind or _SUFFIXES.get(PurePath(name).suffix.lower())
    kind = said or _guess(head)
    rest = chain(head, lines)
    if kind == "jsonl":
        yield from _json_lines(rest, redactor)
    elif kind == "json":
        yield from _whole_json(rest, name, redactor, sure=said is not None)
    else:
        yield from _texts(rest, redactor)


def _lines(source: BinaryIO, name: str) -> Iterator[bytes]:
    number = 0
    while line := source.readline(MAX_PIECE + 1):
        number += 1
        if b"\x00" in line:
            raise ConfigError(f"{name} is not text (line {number} holds NUL bytes): give UTF-8 text or JSON.")
        if len(line) > MAX_PIECE:
            raise RedactionError(f"Line {number} has more than {MAX_PIECE >> 20} MiB; give shorter lines.")
        yield line


def _guess(head: list[bytes]) -> Kind:
    """Guesses the kind: JSON lines if the first line is a whole object or list, JSON if it only opens one."""
    first = _decode(head[-1]).lstrip(_BOM).strip() if head else ""
    if first not in ("{", "[") and first[:1] + first[1:].lstrip()[:1] not in _BEGINNINGS:
        return "text"
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return "json"
    return "jsonl"


def _json_lines(lines: Iterable[bytes], redactor: Redactor) -> Iterator[Piece]:
    for number, line in enumerate(lines, start=1):
        text = _decode(line)
        if not text.strip():
            yield Piece(number, line, Redacted(text))
            continue
        try:
            yield _piece(number, text, redactor)
        except RedactionError as error:
            raise RedactionError(f"Line {number} was not written: {error}") from None


def _whole_json(lines: Iterable[bytes], name: str, redactor: Redactor, *, sure: bool) -> Iterator[Piece]:
    """Redacts a JSON file. If the kind was only a guess (not ``sure``), it may be text after all."""
    parts, size = [], 0
    for line in lines:
        parts.append(line)
        size += len(line)
        if size > MAX_PIECE:
            break
    if size > MAX_PIECE and sure:
        raise RedactionError(
            f"{name} has more than {MAX_PIECE >> 20} MiB and JSON is read whole: give JSON lines instead."
        )
    text = _decode(b"".join(parts)) if size <= MAX_PIECE else ""
    if text and not text.strip():
        yield Piece(1, _encode(text), Redacted(text))
        return
    piece = _piece(1, text, redactor) if text else None
    if piece is not None and (sure or not piece.broken):
        yield piece
    else:
        yield from _texts(chain(parts, lines), redactor)


def _piece(number: int, text: str, redactor: Redactor) -> Piece:
    """Redacts one JSON text, or as plain text if it is not JSON."""
    mark = _BOM if text.startswith(_BOM) else ""
    bare = text.removeprefix(mark)
    try:
        document = json.loads(bare.rstrip(_SPACE), object_pairs_hook=_unique, parse_float=_finite)
    except RecursionError:
        raise RedactionError("The document nests too deep to be read; flatten it.") from None
    except ValueError as error:
        redacted = redactor.document(text)
        why = _why(error, number, bare)
        return Piece(number, _encode(redacted.document), redacted, why, _leaves(redacted))
    redacted = _redact_document(document, redactor)
    if not redacted.changed:
        return Piece(number, _encode(text), redacted)
    written = mark + _like(bare, redacted.document)
    return Piece(number, _encode(written), redacted, leaves=_leaves(redacted))


def _why(error: ValueError, number: int, text: str) -> str:
    """Returns why ``text``, whose first line is ``number``, is not accepted as JSON."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {number + error.lineno - 1}, column {error.colno}: {error.msg.removesuffix(' at')}"
    why = str(error) if isinstance(error, _NotTakenError) else "a number is too long"
    return why if "\n" in text.strip(_SPACE) else f"line {number}: {why}"


def _redact_document(document: Any, redactor: Redactor) -> Redacted:
    """Redacts any JSON value; token ids are removed with the text that they encode."""
    if isinstance(document, dict) and isinstance(document.get("turns"), list):
        return redactor.trajectory(document)
    if not isinstance(document, (dict, list)):
        inner = redactor.document([document])
        return replace(inner, document=inner.document[0], touched={path[1:] for path in inner.touched})
    redacted = redactor.document(document)
    if redacted.changed:
        void_tokens(redacted.document)
    return redacted


def _texts(lines: Iterable[bytes], redactor: Redactor) -> Iterator[Piece]:
    waiting, size, number, enough = [], 0, 0, TEXT_PIECE
    for line in lines:
        waiting.append(_decode(line))
        size += len(waiting[-1])
        if size < enough:
            continue
        text = "".join(waiting)
        cut = _cut(text)
        if cut == 0 and enough == TEXT_PIECE:
            waiting, enough = [text], 2 * TEXT_PIECE  # the rest of the key is not read yet
            continue
        number += 1
        cut = cut or len(text)
        yield _text_piece(number, text[:cut], redactor)
        waiting, size, enough = [text[cut:]], len(text) - cut, TEXT_PIECE
    rest = "".join(waiting)
    if rest:
        yield _text_piece(number + 1, rest, redactor)


def _cut(text: str) -> int:
    """Returns the end of a piece of text: after an empty line if there is one near the end, never within a
    key in PEM form; 0 if such a key fills the text."""
    end = len(text)
    begun = text.rfind("-----BEGIN ")
    if begun >= 0 and text.find("-----END ", begun) < 0:
        end = text.rfind("\n", 0, begun) + 1
    gap = text.rfind("\n\n", 0, end)
    return gap + 2 if gap > end * 3 // 4 else end


def _text_piece(number: int, text: str, redactor: Redactor) -> Piece:
    redacted = redactor.document(text)
    return Piece(number, _encode(redacted.document), redacted, leaves=_leaves(redacted))


def _leaves(redacted: Redacted) -> list[tuple[str, dict[str, int]]]:
    found = []
    for path in sorted(redacted.touched, key=lambda steps: [str(step) for step in steps]):
        value: Any = redacted.document
        for step in path:
            value = value[step]
        texts = [value] if isinstance(value, str) else []
        if path and isinstance(path[-1], str):
            texts.append(path[-1])
        kinds = sum((placeholders.count(_encode(text)) for text in texts), start=placeholders.count(b""))
        found.append((_pointer(path), dict(sorted(kinds.items()))))
    return found


def _pointer(path: tuple[str | int, ...]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _like(text: str, document: Any) -> str:
    """Writes ``document`` as JSON in the style of ``text``: indent, escapes, surrounding white space."""
    body = text.strip(_SPACE)
    left = text[: len(text) - len(text.lstrip(_SPACE))]
    right = text[len(text.rstrip(_SPACE)) :]
    indent = _indent(body)
    spaced = indent is not None or '": ' in body
    separators = (", " if spaced and indent is None else ",", ": " if spaced else ":")
    written = json.dumps(document, indent=indent, separators=separators, ensure_ascii=body.isascii())
    return left + written.replace("\n", "\r\n" if "\r\n" in body else "\n") + right


def _indent(body: str) -> str | None:
    _, newline, rest = body.partition("\n")
    return rest[: len(rest) - len(rest.lstrip(" \t"))] if newline else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _NotTakenError("a key is repeated")  # one of its values would be lost
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NotTakenError("a number is too large")  # it could not be written again
    return number


def _decode(data: bytes) -> str:
    """Decodes; bytes that are not UTF-8 pass through redaction unchanged."""
    return data.decode("utf-8", "surrogateescape")


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a character, escaped in JSON: only a JSON escape can express it
        return text.encode("utf-8", "backslashreplace")
