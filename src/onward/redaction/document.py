"""Splits a document into distinct texts and rebuilds it. Values, dict keys and long numbers are texts; the
structure never changes.

``collect`` reads; ``rebuild`` writes a copy with some texts replaced. Equal texts are one text: agents repeat
their history in every prompt, and it is scanned once. The class of a secret-named dict key (``password``) is
passed down to its values; ``engine.py`` decides what is secret in them. Shorter numbers are read only by
``rebuild``, once something was found: documents contain thousands of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from onward.errors import RedactionError
from onward.redaction import neighbours
from onward.redaction.judging.names import PERSONAL, NameClass, secret_class
from onward.redaction.neighbours import Mark

MAX_DEPTH = 64
MAX_PARTS = 2_000_000
"""Objects, lists and distinct texts of one document."""
MAX_TEXT = 32 << 20
"""Characters of all distinct texts together."""
LONG_NUMBER = 10**8
"""Numbers of nine digits or more are read as text: a card number may be one."""
_GOVERNED = 10_000
"""Under a secret-named key, numbers of five digits or more are read as text."""

Path = tuple[str | int, ...]
Governed = tuple[str, Mark]
Key = str | Governed
"""A text alone, or with the class of the secret name above or beside it, or with its secret part."""

_NOTHING_TYPED: dict[str, NameClass] = {}
_NO_MARKS: dict[int, Mark] = {}
_SCHEMA_TYPES = frozenset(("string", "integer", "number", "boolean", "object", "array", "null"))


@dataclass
class Texts:
    """``keys``: distinct texts in document order. ``under``: places of governed values, by container identity
    and key; the document must outlive this."""

    keys: list[Key]
    under: dict[tuple[int, str | int], Mark]

    def plain(self) -> list[str]:
        if not self.under:
            return self.keys  # type: ignore[return-value]
        return [key if type(key) is str else key[0] for key in self.keys]


def _are_short_numbers(items: Any) -> bool:
    """Returns whether these are numbers alone of which none is read as a text, such as token ids."""
    if not items or not _NUMBERS.issuperset(map(type, items)):
        return False
    return min(items) > -LONG_NUMBER and max(items) < LONG_NUMBER


_NUMBERS = frozenset((int, float))


class _Collector:
    def __init__(self, fixed_keys: frozenset[str]) -> None:
        self.seen: dict[Key, None] = {}
        self.under: dict[tuple[int, str | int], Mark] = {}
        self._cells: dict[int, dict[int, Mark]] = {}
        """Marks of the members of a list, by its identity: of rows of tables."""
        self._fixed_keys = fixed_keys
        self._classes: dict[Any, NameClass | None] = {}
        self._parts = 0

    def walk(self, document: Any) -> None:
        """Walks depth first, in document order, without recursion."""
        stack: list[Iterator[tuple[Any, NameClass | None]]] = [self._in_list([document], None)]
        while stack:
            for value, governed in stack[-1]:
                if len(stack) > MAX_DEPTH:
                    raise RedactionError(f"The document nests deeper than {MAX_DEPTH} levels; flatten it.")
                if isinstance(value, dict):
                    stack.append(self._in_dict(value, governed))
                else:
                    stack.append(self._in_list(value, governed))
                break
            else:
                stack.pop()

    def _in_dict(
        self, value: dict[Any, Any], governed: NameClass | None
    ) -> Iterator[tuple[Any, NameClass | None]]:
        """Adds the texts; yields the containers with the class that governs them."""
        seen, classes, fixed = self.seen, self._classes, self._fixed_keys
        self._count(len(value))
        named, inherited = _beside(value, governed) if "value" in value else (None, governed)
        typed = _NOTHING_TYPED
        if governed is None and not neighbours.TYPED.isdisjoint(value):
            typed = dict(neighbours.in_object(value))
        if not neighbours.HEADERS.isdisjoint(value):
            self._cells.update(neighbours.in_table(value))
        for name, item in value.items():
            if name in classes:
                below = classes[name]
            elif type(name) is str:
                below = classes[name] = secret_class(name)
            else:
                raise RedactionError("The document has an object with a key that is not text.")
            if name not in fixed:
                seen[name] = None
            kind = type(item)
            if named is not None and name == "value":
                below = named
            elif name in typed:
                below = typed[name]
            elif inherited is not None:
                below = _inherit(below, inherited)
            if kind is str:
                if below is None:
                    seen[item] = None
                else:
                    seen[item, below] = None
                    self.under[id(value), name] = below
            elif kind is int:
                if (item >= _GOVERNED and below is not None) or (
                    not -LONG_NUMBER < item < LONG_NUMBER and name not in fixed
                ):
                    self._number(value, name, item, below)
            elif kind is float:
                if below is not None and _is_long(item):
                    self._number(value, name, item, below)
            elif kind is bool or item is None:
                continue
            elif isinstance(item, dict):
                yield item, None if below is not None and _is_schema(item) else below
            elif isinstance(item, (list, tuple)):
                if below is None and _are_short_numbers(item):
                    self._count(len(item))
                else:
                    yield item, below
            else:
                raise _odd(kind)

    def _in_list(self, value: Any, governed: NameClass | None) -> Iterator[tuple[Any, NameClass | None]]:
        seen = self.seen
        self._count(len(value))
        marks: dict[int, Mark] = self._cells.get(id(value), _NO_MARKS)
        if governed is None and len(value) > 1:
            if type(value[0]) is str:
                marks = {**neighbours.in_list(value), **marks}
            elif type(value[0]) is list:
                self._cells.update(neighbours.in_rows(value))
        for i, item in enumerate(value):
            kind = type(item)
            if kind is str:
                mark: Mark | None = marks.get(i) if governed is None else governed
                if mark is None:
                    seen[item] = None
                else:
                    seen[item, mark] = None
                    self.under[id(value), i] = mark
            elif kind is int:
                if not -LONG_NUMBER < item < LONG_NUMBER or (governed is not None and item >= _GOVERNED):
                    self._number(value, i, item, governed)
            elif kind is float:
                if governed is not None and _is_long(item):
                    self._number(value, i, item, governed)
            elif kind is bool or item is None:
                continue
            elif isinstance(item, (dict, list, tuple)):
                yield item, governed
            else:
                raise _odd(kind)

    def _number(self, holder: Any, step: str | int, item: float, governed: NameClass | None) -> None:
        if governed is None:
            self.seen[str(item)] = None
        else:
            self.seen[str(item), governed] = None
            self.under[id(holder), step] = governed

    def _count(self, parts: int) -> None:
        self._parts += parts + 1
        if self._parts > MAX_PARTS:
            raise RedactionError("The document has too many parts to be redacted; send it in pieces.")


def collect(document: Any, fixed_keys: frozenset[str] = frozenset()) -> Texts:
    """Returns all distinct texts of ``document``. Raises RedactionError beyond the limits and for values that
    are not JSON.

    ``fixed_keys`` are dict keys that are not read as texts; long numbers under them are not read either.
    """
    collector = _Collector(fixed_keys)
    collector.walk(document)
    texts = Texts(list(collector.seen), collector.under)
    if sum(map(len, texts.plain())) > MAX_TEXT:
        raise RedactionError("The document has too much text to be redacted; send it in pieces.")
    return texts


class Fixed(NamedTuple):
    """Words of a contract. ``keys``: dict keys that are not read as texts, nor long numbers under them.
    ``numbers``: keys whose numbers, or lists of numbers, are never replaced."""

    keys: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()


NOTHING_FIXED = Fixed()


class Rebuilt(NamedTuple):
    document: Any
    paths: set[Path]
    """Paths of the changes, in the copy."""
    places: Counter[Key]
    """Number of occurrences of each changed text."""
    numbers: Counter[str]
    """Placeholders of numbers that were not read as texts."""


class _Rebuilder:
    def __init__(
        self, texts: Texts, new: dict[Key, str], number: Callable[[float], str | None] | None, fixed: Fixed
    ) -> None:
        self.touched: Counter[Key] = Counter()
        self.paths: set[Path] = set()
        self.numbers: Counter[str] = Counter()
        self._under = texts.under
        self._new = new
        self._number = number
        self._fixed_keys, self._fixed_numbers = fixed

    def copy(self, value: Any, holder: Any, step: str | int, path: Path) -> Any:
        kind = type(value)
        if kind is str:
            return self._text(value, value, holder, step, path)
        if kind is int or kind is float:
            if kind is int and -_GOVERNED < value < _GOVERNED:
                return value
            if kind is float and (id(holder), step) not in self._under:
                return self._found_number(value, step, path)
            new = self._text(value, str(value), holder, step, path)
            return new if new is not value else self._found_number(value, step, path)
        if isinstance(value, dict):
            return self._dict(value, path)
        if isinstance(value, (list, tuple)):
            return [self.copy(item, value, i, (*path, i)) for i, item in enumerate(value)]
        return value

    def _text(self, value: Any, text: str, holder: Any, step: str | int, path: Path) -> Any:
        """Returns the replacement of ``value``, whose text is ``text``; ``value`` itself if there is none."""
        governed = self._under.get((id(holder), step))
        key = text if governed is None else (text, governed)
        new = self._new.get(key)
        if new is None or (governed is None and value is not text and self._is_fixed(step, path)):
            return value
        self.touched[key] += 1
        self.paths.add(path)
        return new

    def _is_fixed(self, step: str | int, path: Path) -> bool:
        name = path[-2] if type(step) is int and len(path) > 1 else step
        return name in self._fixed_numbers or step in self._fixed_keys

    def _found_number(self, value: float, step: str | int, path: Path) -> Any:
        new = None if self._number is None else self._number(value)
        if new is None or (path[-2] if type(step) is int and len(path) > 1 else step) in self._fixed_numbers:
            return value
        self.numbers[new] += 1
        self.paths.add(path)
        return new

    def _dict(self, value: dict[str, Any], path: Path) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, item in value.items():
            new = None if name in self._fixed_keys else self._new.get(name)
            if new is not None:
                self.touched[name] += 1
                base, number = new, 2
                while new in out or (new != name and new in value):
                    new, number = f"{base}#{number}", number + 1
                self.paths.add((*path, new))
            else:
                new = name
            out[new] = self.copy(item, value, name, (*path, new))
        return out


def rebuild(
    document: Any,
    texts: Texts,
    new: dict[Key, str],
    number: Callable[[float], str | None] | None = None,
    fixed: Fixed = NOTHING_FIXED,
) -> Rebuilt:
    """Returns a copy of ``document`` with ``new`` texts, and with the results of ``number`` for shorter
    numbers. Renamed keys keep their order and never merge. A replaced number becomes text."""
    rebuilder = _Rebuilder(texts, new, number, fixed)
    copy = rebuilder.copy(document, None, 0, ())
    return Rebuilt(copy, rebuilder.paths, rebuilder.touched, rebuilder.numbers)


def _is_long(number: float) -> bool:
    """Returns whether a governed float is read as text: positive, five digits or more."""
    return number > 0 and sum(map(str.isdigit, str(number))) >= 5


def _inherit(own: NameClass | None, governed: NameClass) -> NameClass:
    """Returns the class of a value below a governed container: a cookie value within cookies, else its own
    class, unless that of the container is stricter. The value's own name may be redacted: a second run, which
    then knows the container's class alone, must find nothing new."""
    if governed in ("COOKIE", "COOKIE_VALUE"):
        return "COOKIE_VALUE"
    if own is None:
        return governed
    if own in PERSONAL or governed in PERSONAL:
        return own  # judged by rules of their own, neither stricter nor weaker
    return governed if _strictness(governed) > _strictness(own) else own


def _strictness(kind: NameClass) -> int:
    """Returns how much of the values under a name counts as secret: most of them under a password's."""
    return 2 if kind == "PASSWORD" else int(kind in ("SECRET", "API_KEY"))


def _beside(value: dict[Any, Any], governed: NameClass | None) -> tuple[NameClass | None, NameClass | None]:
    """Handles ``{"name": "Authorization", "value": …}``: the name is next to its value, and other members of
    the object (a cookie's path, a header's comment) are not secret."""
    for label in ("name", "key", "header"):
        name = value.get(label)
        if type(name) is str:
            if governed in ("COOKIE", "COOKIE_VALUE"):
                return "COOKIE_VALUE", None
            return secret_class(name) or governed, governed
    return None, governed


def _is_schema(value: dict[Any, Any]) -> bool:
    """Returns whether it is a JSON Schema: under ``password`` it describes a parameter."""
    kind = value.get("type")
    return "$ref" in value or "anyOf" in value or (type(kind) is str and kind in _SCHEMA_TYPES)


def _odd(kind: type) -> RedactionError:
    return RedactionError(
        f"The document holds a value of type {kind.__name__}; give text, numbers, lists and objects."
    )
