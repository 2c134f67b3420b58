"""Finds values whose secret name is beside them in a document: in a pair, a list of arguments or a table.

``{"label": "Password", "text": …}``, ``["x-api-key", …]``, ``["curl", "-u", "root:…"]``,
``{"columns": ["user", "password"], "rows": [["ada", …]]}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any

from onward.redaction.judging.drawn import is_telling
from onward.redaction.judging.names import PERSONAL, NameClass, is_the_field, label_class, secret_class
from onward.redaction.judging.near_values import STRONG, is_form_value, is_shown
from onward.redaction.judging.values import is_scheme
from onward.redaction.scan import scan_plain

Part = tuple[int, int, str]
"""Bytes from the first to the last, and the kind of secret that they are."""
Mark = NameClass | Part
"""The class of the name that governs a whole value, or the part of it that is secret."""

TYPED = frozenset(("value", "text", "content", "input", "val", "data", "default"))
_LABELS = (
    "name", "key", "header", "label", "id", "selector", "field", "element", "locator", "placeholder",
    "target",
    "xpath", "css", "variable", "param", "parameter", "argument", "option", "aria-label", "title",
)  # fmt: skip
_LOOSE_LABELS = frozenset(("target", "title", "option", "argument"))
"""Labels that also name what is clicked or shown."""
HEADERS = frozenset(
    ("columns", "headers", "header", "fields", "names", "keys", "cols", "schema", "column_names")
)
"""Members that may contain the names of a table's columns."""
_ROWS = ("rows", "data", "values", "records", "items", "results", "body")
_MOST_MEMBERS = 40
_MOST_ARGUMENTS = 128
_LONGEST_COMMAND = 4096


def in_object(value: dict[Any, Any]) -> Iterator[tuple[str, NameClass]]:
    """Yields (member, class) for each member of ``value`` that was typed into the field that another
    names."""
    if len(value) > _MOST_MEMBERS:
        return
    kind: NameClass | None = None
    sure = False
    for label in _LABELS:
        text = value.get(label)
        found = label_class(text) if type(text) is str else None
        kind = kind or found
        sure = sure or (found is not None and label not in _LOOSE_LABELS and is_the_field(str(text)))
    if kind is None:
        return
    for name in TYPED.intersection(value):
        typed = value[name]
        if type(typed) is not str or len(typed) > _LONGEST_COMMAND:
            continue
        if is_form_value(_bytes(typed), kind, sure=sure):
            yield name, kind


def in_table(value: dict[Any, Any]) -> Iterator[tuple[int, dict[int, Mark]]]:
    """Yields (identity of a row, its marks) for the rows of ``value``, if it has a list of columns."""
    header = next(
        (item for name in sorted(HEADERS.intersection(value)) if type(item := value[name]) is list), None
    )
    if not header or len(value) > _MOST_MEMBERS:
        return
    kinds: list[NameClass | None] = [_column(cell) for cell in header]
    for name in _ROWS if any(kinds) else ():
        rows = value.get(name)
        if type(rows) is list:
            yield from _rows(rows, kinds, every=True)


def in_list(value: list[Any]) -> dict[int, Mark]:
    """Returns the marks of the members of a list that begins with text: the second of a pair, or arguments
    of a command."""
    if len(value) > _MOST_ARGUMENTS:
        return {}
    if len(value) == 2:
        second, kind = value[1], secret_class(value[0])
        if kind and kind not in PERSONAL and type(second) is str and _is_pair_value(_bytes(second), kind):
            return {1: kind}
    if any(type(item) is str and item[:1] in ("-", "/") for item in value[1:]):
        items = tuple(
            item if type(item) is str else str(item) for item in value if not isinstance(item, (dict, list))
        )
        if len(items) == len(value) and sum(map(len, items)) <= _LONGEST_COMMAND:
            return {i: mark for i, mark in _arguments(items).items() if type(value[i]) is str}
    return {}


def in_rows(value: list[Any]) -> Iterator[tuple[int, dict[int, Mark]]]:
    """Yields (identity of a row, its marks) for a list of lists of which the first names the columns."""
    header = value[0]
    if 1 < len(header) <= _MOST_MEMBERS:
        kinds: list[NameClass | None] = [_column(cell) if type(cell) is str else None for cell in header]
        if any(kinds):
            yield from _rows(value[1:], kinds, every=False)


def _rows(
    rows: list[Any], kinds: list[NameClass | None], *, every: bool
) -> Iterator[tuple[int, dict[int, Mark]]]:
    for row in rows:
        if type(row) is not list or len(row) != len(kinds):
            continue
        marks: dict[int, Mark] = {}
        for i, kind in enumerate(kinds):
            cell = row[i]
            if kind and type(cell) is str and ((every and kind in STRONG) or is_shown(_bytes(cell), kind)):
                marks[i] = kind
        if marks:
            yield id(row), marks


def _column(cell: Any) -> NameClass | None:
    name = (
        next((cell[key] for key in ("name", "field", "key", "id") if key in cell), None)
        if type(cell) is dict
        else cell
    )
    kind = secret_class(name) if type(name) is str else None
    return None if kind in PERSONAL else kind


def _is_pair_value(value: bytes, kind: NameClass) -> bool:
    scheme, blank, rest = value.partition(b" ")
    return is_telling(rest) if blank and is_scheme(scheme) else is_shown(value, kind)


@lru_cache(maxsize=512)
def _arguments(items: tuple[str, ...]) -> dict[int, Part]:
    """Returns the secret parts of the arguments of a command, which is scanned as it would be typed."""
    parts = [_bytes(item).replace(b"\x00", b" ") for item in items]
    starts = list(accumulate((len(part) + 1 for part in parts), initial=0))
    found: dict[int, Part] = {}
    for hit in scan_plain(b" ".join(parts)):
        for i, part in enumerate(parts) if hit.layer == 2 else ():
            first, last = max(hit.start - starts[i], 0), min(hit.end - starts[i], len(part))
            if first < last:
                found.setdefault(i, (first, last, hit.kind))
    return found


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
