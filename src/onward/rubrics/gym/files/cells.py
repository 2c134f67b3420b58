"""Cells and expressions: numbers, dates, conditions, arithmetic and aggregates over rows of text.

Expressions come from data files, so they are evaluated by a small interpreter over Python's syntax tree:
names of columns, numbers, ``+ - * /``, ``min``, ``max``, ``abs``. Nothing else is allowed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

from onward.rubrics.gym.parts import WorkflowError

Row = dict[str, str]

ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
LOCAL_DATE = re.compile(r"(\d\d)/(\d\d)/(\d{4})")
"""Day, month, year with slashes: the form that a careless worker leaves."""


def number(text: str) -> float:
    """Returns the number in a cell. Raises WorkflowError if it has none."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise WorkflowError(f"The cell {text!r} is no number: an expression needs one here.")
    return value


def iso_date(text: str) -> str:
    """Returns a date in ISO form; another text stays as it is."""
    found = LOCAL_DATE.fullmatch(text)
    return f"{found[3]}-{found[2]}-{found[1]}" if found else text


def is_iso_date(text: str) -> bool:
    """Returns whether ``text`` is a date that exists, in ISO form."""
    if not ISO_DATE.fullmatch(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def money(value: float) -> str:
    """Returns ``value`` with two decimals."""
    return f"{value + 0.0:.2f}"


_BINARY: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}


def evaluate(expression: str, values: Mapping[str, float | str]) -> float:
    """Returns the value of an arithmetic expression. Raises WorkflowError for anything else."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError:
        raise WorkflowError(
            f"The expression {expression!r} is not arithmetic: write columns and + - * /."
        ) from None
    return evaluate_tree(tree, values)


def evaluate_tree(node: ast.expr, values: Mapping[str, float | str]) -> float:
    """Returns the value of a parsed expression. Raises WorkflowError for syntax that is not allowed."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name) if name in values:
            value = values[name]
            return number(value) if isinstance(value, str) else float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate_tree(operand, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            try:
                return _BINARY[type(op)](evaluate_tree(left, values), evaluate_tree(right, values))
            except ZeroDivisionError:
                raise WorkflowError(f"{ast.unparse(node)} divides by zero: check the data.") from None
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            given = [evaluate_tree(one, values) for one in arguments]
            return float(_FUNCTIONS[name](*given))
    raise WorkflowError(f"The expression has {ast.unparse(node)!r}: use known columns, numbers and + - * /.")


_COMPARISON = re.compile(r"(\w+) (==|!=|<=|>=|<|>) (.+)")
_COMPARE: dict[str, Callable[..., bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip


def matches(condition: str, row: Mapping[str, str]) -> bool:
    """Returns whether ``row`` satisfies ``column op value``, joined by ``and``; an empty condition holds.

    Two numbers compare as numbers, everything else as text, dates in ISO form.
    """
    return all(_compare(part, row) for part in condition.split(" and ") if part)


def _compare(part: str, row: Mapping[str, str]) -> bool:
    found = _COMPARISON.fullmatch(part.strip())
    if found is None or found[1] not in row:
        raise WorkflowError(f"The condition {part!r} is not 'column op value' over {', '.join(row)}.")
    left, right = iso_date(row[found[1]]), row.get(found[3], found[3])
    try:
        return _COMPARE[found[2]](number(left), number(right))
    except WorkflowError:
        return _COMPARE[found[2]](left, iso_date(right))


def aggregate(expression: str, rows: Sequence[Row]) -> float:
    """Returns ``count``, ``share``, ``sum x``, ``mean x``, ``min x`` or ``max x``, with ``if condition``.

    ``x`` is arithmetic over columns. A sum or mean of no rows is 0; ``share`` is that of the rows that match.
    """
    head, _, condition = expression.partition(" if ")
    kind, _, what = head.strip().partition(" ")
    chosen = [row for row in rows if matches(condition, row)]
    if kind == "count":
        return float(len(chosen))
    if kind == "share":
        return len(chosen) / len(rows) if rows else 0.0
    values = [evaluate(what, row) for row in chosen]
    match kind:
        case "sum":
            return math.fsum(values)
        case "mean":
            return math.fsum(values) / len(values) if values else 0.0
        case "min" | "max":
            return (min if kind == "min" else max)(values, default=0.0)
    raise WorkflowError(f"The aggregate {expression!r} is unknown: use count, share, sum, mean, min or max.")
