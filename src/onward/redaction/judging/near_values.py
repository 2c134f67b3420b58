"""Values near a name, where no ``=`` or ``:`` joins them: in prose, calls, commands, pairs of name and value,
forms and tables.

The weaker the link between name and value, the more the value itself must show: after ``is`` or a blank it
must look drawn; after ``getenv("X",`` or a label of a form it must be more than a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from onward.redaction.expressions import compiled
from onward.redaction.judging import values
from onward.redaction.judging.drawn import is_drawn, is_telling
from onward.redaction.judging.names import KIND, PERSONAL, NameClass, is_the_field, label_class, secret_class
from onward.redaction.rule import Hit, Span

_NAME_BYTES = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-."
_NAME_REACH = 64
STRONG = frozenset(("PASSWORD", "SECRET", "API_KEY"))
_ROW_REACH = 4096
_CELL = compiled(rb"[A-Za-z0-9 _.#/-]{0,40}")
_BORDER = compiled(rb"[-+|: =\t]*")
_SEPARATORS = (b"|", b"\t", b";", b",")
_QUOTES = b"\"'` "
_ATTRIBUTE = compiled(rb"(?i)([a-z-]{2,24})\s{0,2}=\s{0,2}")
_GENERATED = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_")
_LABELS = frozenset(
    ("name", "id", "placeholder", "aria-label", "autocomplete", "label", "title", "data-testid")
)

Takes = Callable[[Any, bytes], Iterator[Hit]]


def _takes_after_name(
    judge: Callable[[bytes], bool], *, quoted_only: bool = False, back: bool = False
) -> Takes:
    """Makes a function that yields the values after the names in group 1 that ``judge`` accepts. ``back``:
    the pattern also matches the beginning of the value, whose place is searched from the end of the name."""

    def take(expression: Any, buffer: bytes) -> Iterator[Hit]:
        done = 0
        for match in expression.finditer(buffer):
            first, last = match.span(1)
            if first < done:
                continue  # within the previous value
            before = buffer[max(0, first - _NAME_REACH) : first].rpartition(b"\x00")[2]
            first -= len(before) - len(before.rstrip(_NAME_BYTES))
            name = buffer[first:last].decode("utf-8", "replace")
            kind = secret_class(name.strip(" .-_"))
            if kind is None or kind in PERSONAL:
                continue
            if back and b"authorization" in before.lower():
                continue  # ``Authorization: Token V`` has a rule of its own
            at = _skip(buffer, last, b" \t(") if back else match.end()
            span = _value_at(buffer, at, name, quoted_only)
            if span is None or not judge(buffer[slice(*span)]):
                continue
            done = span[1]
            if done - at >= values.WIDEST_BARE and buffer[at] not in b"\\\"'`":
                done = values.end_of_bare(buffer, done, loose=False)  # its beginning is enough to judge
            yield Hit(span[0], done, KIND[kind], 2)

    return take


def _value_at(buffer: bytes, at: int, name: str, quoted_only: bool) -> Span | None:
    """Returns the value at ``at``, without a scheme such as ``Bearer``, or a user before it."""
    found = values.parse_assigned(buffer, at, loose=False)
    if found is None or (quoted_only and not found.quoted):
        return None
    start, end = found.start, found.end
    if name.lower().endswith(("userpwd", "userpw")):
        start += buffer[start:end].find(b":") + 1
    scheme, blank, rest = buffer[start:end].partition(b" ")
    if blank and values.is_scheme(scheme):
        start = end - len(rest)
    return start, end


def keyed(expression: Any, buffer: bytes) -> Iterator[Hit]:
    """Yields generated values after a name such as ``dropbox_key`` or ``dropbox key``."""
    for match in expression.finditer(buffer):
        text = buffer[max(0, match.start() + 1 - _NAME_REACH) : match.start() + 1]
        service = text[len(text.rstrip(_NAME_BYTES)) :].decode("utf-8", "replace")
        at = match.end()
        while at > match.start() and buffer[at - 1] in _GENERATED:
            at -= 1
        if secret_class(f"{service}_key") != "KEY":
            continue
        found = values.parse_assigned(buffer, at, loose=False)
        if found and values.is_secret_value(buffer[found.start : found.end], "KEY", how="bare"):
            yield Hit(found.start, found.end, KIND["KEY"], 2)


def paired(expression: Any, buffer: bytes) -> Iterator[Hit]:
    """Yields the value of a pair whose label is group 1: ``"label": "Password", "value": "V"``."""
    for match in expression.finditer(buffer):
        label = match.group(1).decode("utf-8", "replace")
        kind = label_class(label)
        found = values.parse_assigned(buffer, match.end(), loose=False) if kind else None
        sure = found is not None and found.quoted and is_the_field(label)
        if kind and found and is_form_value(buffer[found.start : found.end], kind, sure=sure):
            yield Hit(found.start, found.end, KIND[kind], 2)


def is_form_value(text: bytes, kind: NameClass, *, sure: bool = True) -> bool:
    """Returns whether ``text``, typed into a field of class ``kind``, is a secret: no sentence, no label.
    ``sure``: it is the value of that field, so a password may be a word."""
    if b" " in text.strip() and not values.is_scheme(text.split(b" ", 1)[0]):
        return False
    if not sure:
        return is_telling(text)
    return values.is_secret_value(text, kind, how="quoted") and (kind == "PASSWORD" or is_telling(text))


def is_shown(text: bytes, kind: NameClass) -> bool:
    """Returns whether ``text`` beside a name of class ``kind``, which may be a word for other things (the
    tokens of a sentence), shows itself that it is a secret."""
    return is_telling(text) if kind in STRONG else is_drawn(text)


def inputs(expression: Any, buffer: bytes) -> Iterator[Hit]:
    """Yields the value of HTML elements whose type, name or label names a secret."""
    for match in expression.finditer(buffer):
        kind: NameClass | None = None
        value = None
        at, last = match.start(), match.end()
        while (attribute := _ATTRIBUTE.search(buffer, at, last)) is not None:
            name = attribute.group(1).lower().decode()
            found = values.parse_assigned(buffer, attribute.end(), loose=False)
            at = attribute.end()
            if found is None:
                continue
            at = max(at, min(found.end, last))
            text = buffer[found.start : found.end].decode("utf-8", "replace")
            if name in ("value", "content"):
                value = found
            elif name == "type" and text.lower() == "password":
                kind = "PASSWORD"
            elif name in _LABELS:
                kind = kind or label_class(text)
        if kind and value and is_form_value(buffer[value.start : value.end], kind):
            yield Hit(value.start, value.end, KIND[kind], 2)


def inserted(expression: Any, buffer: bytes) -> Iterator[Hit]:
    """Yields the values of secret columns in ``INSERT INTO t (a, password) VALUES (…), (…)``."""
    for match in expression.finditer(buffer):
        columns = [part.strip(b"\\[] \r\n\t" + _QUOTES) for part in match.group(1).split(b",")]
        kinds: list[NameClass | None] = [secret_class(name.decode("utf-8", "replace")) for name in columns]
        if not any(kinds):
            continue
        at = match.end()
        while True:
            for i, kind in enumerate(kinds):
                at = _skip(buffer, at, b" \r\n\t")
                found = values.parse_assigned(buffer, at, loose=False)
                if found is None:
                    break
                text = buffer[found.start : found.end]
                if kind and kind not in PERSONAL and found.quoted and _is_cell(text, kind):
                    yield Hit(found.start, found.end, KIND[kind], 2)
                at = _skip(buffer, found.end, b"\\\"'` ")
                if buffer[at : at + 1] != (b"," if i + 1 < len(kinds) else b")"):
                    break
                at += 1
            else:
                at = _skip(buffer, at, b", \r\n\t")
                if buffer[at : at + 1] == b"(":
                    at += 1
                    continue
            break


def _skip(buffer: bytes, at: int, these: bytes) -> int:
    while buffer[at : at + 1] and buffer[at : at + 1] in these:
        at += 1
    return at


def _is_cell(text: bytes, kind: NameClass) -> bool:
    return values.is_secret_value(text, kind, how="quoted") and (kind == "PASSWORD" or is_telling(text))


def tables(expression: Any, buffer: bytes) -> Iterator[Hit]:
    """Yields the cells below a header that names a secret: Markdown, comma or tab separated, database
    shells."""
    done = 0
    for match in expression.finditer(buffer):
        if match.start() < done:
            continue
        start = max(done, match.start() - _ROW_REACH)
        breaks = (buffer.rfind(b"\n", start, match.start()), buffer.rfind(b"\x00", start, match.start()))
        first = max(*breaks, start - 1) + 1
        escaped = buffer.rfind(b"\\n", first, match.start())
        first = first if escaped < 0 else escaped + 2
        if match.start() - first > _ROW_REACH // 8:
            continue
        end, step = _line_end(buffer, match.start())
        done = end
        separator = next((one for one in _SEPARATORS if buffer.find(one, first, end) >= 0), b"")
        if not separator or not _goes_on(buffer, first, end, step, separator):
            continue
        cells = _cells(buffer, first, end, separator)
        names = [buffer[a:b].strip(b"\\\r" + _QUOTES) for a, b in cells]
        if not all(map(_CELL.fullmatch, names)) or sum(map(bool, names)) < 2:
            continue
        kinds: list[NameClass | None] = [
            secret_class(name.decode("latin-1")) if len(name.split()) <= 3 else None for name in names
        ]
        if any(kinds):
            for hits, row_end in _rows(buffer, end + step, separator, kinds):
                done = row_end  # a row is no header: every row is read once
                yield from hits


def _goes_on(buffer: bytes, first: int, end: int, step: int, separator: bytes) -> bool:
    """Returns whether the line below a header is a border or has as many separators."""
    if step <= 0:
        return False
    below, _ = _line_end(buffer, end + step)
    alike = buffer.count(separator, first, end) == buffer.count(separator, end + step, below)
    return alike or _BORDER.fullmatch(buffer, end + step, below) is not None or b'"' in buffer[end:below]


def _rows(
    buffer: bytes, at: int, separator: bytes, kinds: list[NameClass | None]
) -> Iterator[tuple[list[Hit], int]]:
    """Yields (hits, end) of each row from ``at`` on that has as many cells as ``kinds``."""
    while at < len(buffer):
        end, step = _line_end(buffer, at)
        if step < 0:
            return
        hits = []
        if not _BORDER.fullmatch(buffer, at, end) or end == at:
            cells = _cells(buffer, at, end, separator)
            if len(cells) != len(kinds):
                return
            for (first, last), kind in zip(cells, kinds, strict=True):
                if kind is None or kind in PERSONAL:
                    continue
                first, last = _trimmed(buffer, first, last)
                text = buffer[first:last]
                if is_shown(text, kind):
                    hits.append(Hit(first, last, KIND[kind], 2))
        yield hits, end
        if not step:
            return
        at = end + step


def _trimmed(buffer: bytes, first: int, last: int) -> Span:
    while first < last and buffer[first] in b"\\\r\t" + _QUOTES:
        first += 1
    while last > first and buffer[last - 1] in b"\\\r\t" + _QUOTES:
        last -= 1
    return first, last


def _line_end(buffer: bytes, at: int) -> tuple[int, int]:
    """Returns the end of the line at ``at`` and the length of its line break (also ``\\n`` in JSON within
    text); 0 at the end of the text, -1 for a line that is too long for a row."""
    part = buffer[at : at + _ROW_REACH].partition(b"\x00")[0]
    real, escaped = part.find(b"\n"), part.find(b"\\n")
    if real >= 0 and (escaped < 0 or real < escaped):
        return at + real, 1
    if escaped >= 0:
        return at + escaped, 2
    return at + len(part), 0 if len(part) < _ROW_REACH else -1


def _cells(buffer: bytes, first: int, last: int, separator: bytes) -> list[tuple[int, int]]:
    """Returns the spans of the cells of a row; a separator within double quotes does not count."""
    cells = []
    while True:
        look = first
        if buffer[first : first + 1] == b'"':
            closing = buffer.find(b'"', first + 1, last)
            look = first if closing < 0 else closing
        cut = buffer.find(separator, look, last)
        cells.append((first, last if cut < 0 else cut))
        if cut < 0:
            return cells
        first = cut + 1


TAKES: dict[str, Takes] = {
    "said": _takes_after_name(is_drawn),
    "said_next": _takes_after_name(is_drawn, back=True),
    "given": _takes_after_name(is_telling),
    "given_quoted": _takes_after_name(is_telling, quoted_only=True),
    "listed": _takes_after_name(is_drawn, quoted_only=True),
    "keyed": keyed,
    "paired": paired,
    "inputs": inputs,
    "inserted": inserted,
    "tables": tables,
}
"""``said``: after a name in prose, a drawn value. ``given``: where a literal is expected (a default, a
comparison, a setting command), a telling one. ``listed``: after a quoted name and a comma, drawn and
quoted."""
