"""Limits of a JSON schema, so that it is compiled to a grammar within about a second. Pure.

A few bytes of a schema may cost minutes and much memory: a multiple of a large number is recognised by an
automaton with as many states as the number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

MOST_BYTES = 65_536
MOST_DEPTH = 32
"""Levels of objects and lists inside each other. A schema has two of them for each level of an answer."""
MOST_MULTIPLE = 1000
"""The largest ``multipleOf``, in units of its last decimal place."""
MOST_COMMON_MULTIPLE = 10_000
"""The same for the least common multiple of all of them, as several may hold for one number."""
MOST_DIGITS = 20
"""Digits of one bound."""
MOST_BOUND_DIGITS = 2000
"""Digits of all bounds together."""
MOST_REPEATS = 4096
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_REPEATS = frozenset(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"))
_BRACES = re.compile(r"\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}")


def beyond_limits(schema: dict[str, Any]) -> str:
    """Returns the limit that a schema exceeds, as words that follow its name; an empty text if none."""
    multiples: list[Decimal] = []
    digits = 0
    for count, (depth, name, value) in enumerate(_entries(schema)):
        if depth > MOST_DEPTH:
            return f"is nested deeper than {MOST_DEPTH} levels"
        if count > MOST_BYTES // 2:
            return f"is longer than {MOST_BYTES} bytes of JSON"
        if name == "patternProperties" and isinstance(value, dict):
            problem = next(filter(None, map(_repeats_of_pattern, value)), "")
        elif name == "pattern" and isinstance(value, str):
            problem = _repeats_of_pattern(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            problem, length = _number(name, value, multiples)
            digits += length
        else:
            continue
        if problem:
            return problem
    if digits > MOST_BOUND_DIGITS:
        return f"has bounds of {digits} digits together, but at most {MOST_BOUND_DIGITS} are possible"
    if len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "surrogatepass")) > MOST_BYTES:
        return f"is longer than {MOST_BYTES} bytes of JSON"
    if _common_multiple(multiples) > MOST_COMMON_MULTIPLE:
        return (
            f"has values of 'multipleOf' with a least common multiple of more than {MOST_COMMON_MULTIPLE} "
            f"(in units of its last decimal place)"
        )
    return ""


def _entries(schema: Any) -> Iterator[tuple[int, str, Any]]:
    """Yields (depth, key, value) of everything inside a schema. Constants too: a property may have the name
    of a keyword."""
    waiting: list[tuple[int, str, Any]] = [(1, "", schema)]
    while waiting:
        depth, name, value = waiting.pop()
        yield depth, name, value
        if isinstance(value, dict):
            waiting += [(depth + 1, key, item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(depth + 1, "", item) for item in value]


def _number(name: str, value: int | float, multiples: list[Decimal]) -> tuple[str, int]:
    """Returns the problem of a keyword's number, and its digits if it is a bound. Collects multiples."""
    if name in _REPEATS:
        return _repeats(name, value), 0
    if name not in _BOUNDS and name != "multipleOf":
        return "", 0
    if not abs(value) < 10**MOST_DIGITS:  # also NaN
        return f"has '{name}' of 10^{MOST_DIGITS} or more, or no number", 0
    exact = Decimal(repr(value)).normalize()
    _, figures, exponent = exact.as_tuple()
    assert isinstance(exponent, int)  # it is finite
    if max(len(figures), -exponent) > MOST_DIGITS:
        return f"has '{name}' {value}, but at most {MOST_DIGITS} digits are possible", 0
    if name in _BOUNDS:
        return "", len(figures) + max(exponent, 0)
    if abs(exact.scaleb(max(-exponent, 0))) > MOST_MULTIPLE:
        return (
            f"has 'multipleOf' {value}, but at most {MOST_MULTIPLE} is possible (in units of its last "
            f"decimal place)",
            0,
        )
    multiples.append(exact)
    return "", 0


def _repeats(name: str, value: float) -> str:
    if value <= MOST_REPEATS:
        return ""
    return f"has {name!r} {value}, but at most {MOST_REPEATS} is possible"


def _repeats_of_pattern(pattern: str) -> str:
    for found in _BRACES.finditer(pattern):
        for text in found.groups():
            if text and (len(text) > 9 or int(text) > MOST_REPEATS):
                return f"has a pattern with {text[:20]} repeats, but at most {MOST_REPEATS} are possible"
    return ""


def _common_multiple(multiples: list[Decimal]) -> int:
    """Returns the least common multiple, in units of its own last decimal place."""
    places = max((max(-int(one.as_tuple().exponent), 0) for one in multiples), default=0)
    common = math.lcm(*(abs(int(one.scaleb(places))) for one in multiples if one))
    while places and common % 10 == 0:
        common, places = common // 10, places - 1
    return common
