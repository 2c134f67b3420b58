"""Typed fields of a config dataclass: bounds in the type, values from text, explanations from the source.

A bound is written only in ``Annotated[float, Range(…)]``; the check, the message and the help are made from
it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from onward.errors import ControlError
from onward.spelling import closest_name


@dataclass(frozen=True)
class Range:
    """Bounds of a number, both inclusive unless ``above``."""

    low: float
    high: float = math.inf
    above: bool = False
    """True where the low bound itself is outside."""

    def holds(self, value: float) -> bool:
        """True where ``value`` is within the bounds, which NaN and infinity never are."""
        over = value > self.low if self.above else value >= self.low
        return math.isfinite(value) and over and value <= self.high

    def __str__(self) -> str:
        low = f"greater than {self.low:g}" if self.above else f"at least {self.low:g}"
        return low if self.high == math.inf else f"{low} and at most {self.high:g}"


def check_fields(config: Any, what: str) -> None:
    """Raises ControlError for the first field of a dataclass whose value does not fit its type."""
    for name, kind in field_types(type(config)).items():
        value = getattr(config, name)
        wanted = _wanted(kind)
        if wanted is not None and not _fits(kind, value):
            raise ControlError(f"{what}: {name} is {value!r}: give {wanted}.")


def as_tuples(config: Any) -> dict[str, tuple[Any, ...]]:
    """Returns the values of fields of widths that came from JSON as a list or from text (``64,64``)."""
    found = {}
    for name, kind in field_types(type(config)).items():
        value = getattr(config, name)
        if _plain(kind)[0] == tuple[int, ...] and isinstance(value, str | list):
            read = _value(kind, value) if isinstance(value, str) else tuple(value)
            if isinstance(read, tuple):
                found[name] = read
    return found


def field_types(cls: type) -> dict[str, Any]:
    """Returns each field's type with bounds, in the order of definition."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def describe(kind: Any) -> str:
    """Returns a type in words, such as "a whole number of at least 1"."""
    return _wanted(kind) or "a value"


def parse(cls: type, what: str, assignments: list[str]) -> dict[str, Any]:
    """Parses ``["clip=0.1", "hidden=64,64"]`` into values of fields of ``cls``.

    Raises ControlError for what is no assignment, an unknown name (with the nearest one), or a value that its
    field cannot hold.
    """
    kinds = field_types(cls)
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not name:
            raise ControlError(f"--set {assignment}: give NAME=VALUE, such as --set gamma=0.99.")
        if name not in kinds:
            near = closest_name(name, kinds)
            known = f"did you mean {near}?" if near else f"it has {', '.join(kinds)}."
            raise ControlError(f"--set {name}: {what} has no such setting, {known}")
        values[name] = _value(kinds[name], text)
        if not _fits(kinds[name], values[name]):
            raise ControlError(f"--set {name}={text}: give {describe(kinds[name])}.")
    return values


def explanations(cls: type) -> dict[str, str]:
    """Returns each field's explanation, the line under it; the nearest class counts first."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found.update(_docstrings(base))
    return {field.name: found.get(field.name, "") for field in dataclasses.fields(cls)}


def _docstrings(cls: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for here, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[here.target.id] = " ".join(text.value.split())
    return found


def _plain(kind: Any) -> tuple[Any, Range | None]:
    if get_origin(kind) is Annotated:
        base, *extras = get_args(kind)
        return base, next((extra for extra in extras if isinstance(extra, Range)), None)
    return kind, None


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _wanted(kind: Any) -> str | None:
    """Returns a type's values in words; None for a type that is not checked here."""
    words = [word for choice in _choices(kind) if (word := _wanted_one(choice)) is not None]
    return " or ".join(words) if len(words) == len(_choices(kind)) else None


def _wanted_one(kind: Any) -> str | None:
    base, bounds = _plain(kind)
    if get_origin(base) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(base))
    words = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
    if base == tuple[int, ...]:
        return "whole numbers of at least 1 with commas, such as 64,64"
    if base not in words:
        return None
    return words[base] + (f" {'of ' if not bounds.above else ''}{bounds}" if bounds else "")


def _fits(kind: Any, value: Any) -> bool:
    return any(_fits_one(choice, value) for choice in _choices(kind))


def _fits_one(kind: Any, value: Any) -> bool:
    base, bounds = _plain(kind)
    if get_origin(base) is Literal:
        return value in get_args(base)
    if base == tuple[int, ...]:
        return isinstance(value, tuple) and all(type(item) is int and item >= 1 for item in value)
    if base is bool:
        return isinstance(value, bool)
    if base is type(None):
        return value is None
    if base is int:
        return type(value) is int and (bounds is None or bounds.holds(value))
    if base is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (bounds.holds(value) if bounds else math.isfinite(value))
    return True


_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _value(kind: Any, text: str) -> Any:
    """Converts ``text`` to the first of the type's choices that can hold it; else returns the text itself."""
    for choice in _choices(kind):
        base, _ = _plain(choice)
        if base is type(None) and text.lower() == "none":
            return None
        if base is bool and text.lower() in _TRUTH:
            return _TRUTH[text.lower()]
        try:
            if base == tuple[int, ...]:
                return tuple(int(part) for part in text.split(",") if part.strip())
            if base in (int, float):
                return base(text)
        except ValueError:
            continue
    return text
