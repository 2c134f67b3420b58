"""JSON of a rubric: its schema over the checks of a task, its canonical writing, and its reader.

The writing is the one of constrained decoding (``lm.constrained.WRITING``): the separators are ", " and ": ".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from onward.rubrics.check import Check
from onward.rubrics.language.criteria import (
    LEAST_CRITERIA,
    MOST_CRITERIA,
    WEIGHTS,
    Criterion,
    InvalidRubric,
    Rubric,
)
from onward.spelling import closest_name

_FIELDS = ("check", "arg", "weight")
_SHOWN = 60
"""Characters of a wrong value that a message shows."""
OPENING, TO_ARGUMENT, TO_WEIGHT = '{"criteria": [{"check": ', ', "arg": ', ', "weight": '
BETWEEN, CLOSING = '}, {"check": ', "}]}"
"""Stretches of the text of ``serialise`` around names, arguments and weights."""


def arguments_of(checks: Iterable[Check]) -> dict[str, list[str]]:
    """Returns check name → its arguments, both sorted."""
    found: dict[str, list[str]] = {}
    for check in sorted(set(checks)):
        found.setdefault(check.name, []).append(check.arg)
    return found


def schema_of(checks: Iterable[Check]) -> dict[str, Any]:
    """Returns the JSON schema of the rubrics over ``checks``. Every value is a constant or an enumeration, so
    the language is finite."""
    arguments = arguments_of(checks)
    if not arguments:
        raise InvalidRubric("A schema of a rubric was requested for no check at all: give at least one.")
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["criteria"],
        "properties": {
            "criteria": {
                "type": "array",
                "minItems": LEAST_CRITERIA,
                "maxItems": MOST_CRITERIA,
                "items": {"anyOf": [_item(name, values) for name, values in arguments.items()]},
            }
        },
    }


def _item(name: str, arguments: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(_FIELDS),
        "properties": {
            "check": {"const": name},
            "arg": {"enum": arguments},
            "weight": {"enum": list(WEIGHTS)},
        },
    }


def serialise(rubric: Rubric) -> str:
    """Returns the one canonical text of a rubric."""
    items = [
        {"check": criterion.check.name, "arg": criterion.check.arg, "weight": criterion.weight}
        for criterion in rubric.criteria
    ]
    return json.dumps({"criteria": items}, ensure_ascii=False)


def parse(text: str, checks: Iterable[Check]) -> Rubric:
    """Returns the rubric that a text states over ``checks``; criteria may come in any order.

    Raises InvalidRubric with the reason.
    """
    arguments = arguments_of(checks)
    value = read_json(text)
    if not isinstance(value, dict) or list(value) != ["criteria"]:
        raise InvalidRubric(f'The rubric is {_shown(value)}: write one object with the key "criteria" alone.')
    items = value["criteria"]
    if not isinstance(items, list):
        raise InvalidRubric(f'"criteria" is {_shown(items)}: write a list.')
    return Rubric([_criterion(place, item, arguments) for place, item in enumerate(items, 1)])


def _criterion(place: int, item: object, arguments: Mapping[str, list[str]]) -> Criterion:
    where = f"Criterion {place}"
    if not isinstance(item, dict) or set(item) != set(_FIELDS):
        raise InvalidRubric(
            f'{where} is {_shown(item)}: write an object with "check", "arg" and "weight" alone.'
        )
    name, argument, weight = (item[field] for field in _FIELDS)
    if not isinstance(name, str) or name not in arguments:
        near = closest_name(name, arguments) if isinstance(name, str) else None
        advice = f"did you mean {near!r}?" if near else f"use one of {', '.join(arguments)}."
        raise InvalidRubric(f"{where} has the unknown check {_shown(name)}: {advice}")
    known = arguments[name]
    if not isinstance(argument, str) or argument not in known:
        raise InvalidRubric(
            f"{where} has the argument {_shown(argument)} for {name}: use {' or '.join(map(repr, known))}."
        )
    if isinstance(weight, bool) or not isinstance(weight, int):
        raise InvalidRubric(
            f"{where} has the weight {_shown(weight)}: use a whole number from {WEIGHTS[0]} to {WEIGHTS[-1]}."
        )
    return Criterion(Check(name, argument), weight)


def read_json(text: str) -> Any:
    """Returns the value of a JSON text. Raises InvalidRubric, also for NaN, Infinity and a repeated key."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise InvalidRubric(
            f"The text of the rubric is not JSON at character {error.pos}: {error.msg}."
        ) from None
    except RecursionError:
        raise InvalidRubric("The text of the rubric is nested too deeply: write a flat list.") from None
    except ValueError:  # Python refuses to read more than 4300 digits
        raise InvalidRubric("The text of the rubric has a number with too many digits: shorten it.") from None


def _refuse_constant(name: str) -> object:
    raise InvalidRubric(f"The rubric has the value {name}, which JSON does not have: write a finite number.")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise InvalidRubric(
            f"The rubric has the key {repeated[:_SHOWN]!r} twice in one object: write it once."
        )
    return made


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
