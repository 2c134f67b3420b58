"""The second form of a rubric: a JSON object, check → weight, with the checks in canonical order.

A check cannot occur twice, and a rubric has one text. Engines of constrained decoding cannot count optional
properties of a JSON schema, so its grammar is in llguidance's dialect of Lark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from onward.lm.constrained import Grammar
from onward.rubrics.check import Check
from onward.rubrics.language.criteria import (
    LEAST_CRITERIA,
    MOST_CRITERIA,
    WEIGHTS,
    Criterion,
    InvalidRubric,
    Rubric,
)
from onward.rubrics.language.writing import read_json
from onward.spelling import closest_name


def serialise_map(rubric: Rubric) -> str:
    """Returns the text of a rubric. Raises InvalidRubric for a repeated check: this form has none."""
    if rubric.duplicates:
        raise InvalidRubric(f"The check {rubric.duplicates[0]} is repeated: the ordered map states it once.")
    return json.dumps({str(one.check): one.weight for one in rubric.criteria}, ensure_ascii=False)


def parse_map(text: str, checks: Iterable[Check]) -> Rubric:
    """Returns the rubric that a text states over ``checks``. Raises InvalidRubric with the reason."""
    known = {str(check): check for check in sorted(set(checks))}
    value = read_json(text)
    if not isinstance(value, dict):
        raise InvalidRubric("The rubric is not an object: write the weight of each chosen check.")
    places = list(known)
    before = -1
    for name, weight in value.items():
        if name not in known:
            near = closest_name(name, known)
            advice = f"did you mean {near!r}?" if near else f"use some of {', '.join(known)}."
            raise InvalidRubric(f"The rubric has the unknown check {name!r}: {advice}")
        if places.index(name) < before:
            raise InvalidRubric(f"The check {name!r} is out of order: write the checks in canonical order.")
        before = places.index(name)
        if isinstance(weight, bool) or not isinstance(weight, int):
            raise InvalidRubric(
                f"The weight of {name} is {json.dumps(weight)}: use a whole number from {WEIGHTS[0]} to "
                f"{WEIGHTS[-1]}."
            )
    return Rubric([Criterion(known[name], weight) for name, weight in value.items()])


def map_grammar(checks: Iterable[Check]) -> Grammar:
    """Returns the grammar of the ordered maps over ``checks``: three to seven entries in canonical order.

    A rule for each place in the order and each count of entries so far.
    """
    names = [str(check) for check in sorted(set(checks))]
    if len(names) < LEAST_CRITERIA:
        raise InvalidRubric(
            f"{len(names)} checks were given: a rubric needs {LEAST_CRITERIA} different ones."
        )
    weights = " | ".join(f'"{weight}"' for weight in WEIGHTS)
    rules = [f'start: "{{" {_rule(0, 0)} "}}"', f"weight: {weights}"]
    for place, name in enumerate(names):
        for count in range(min(place, MOST_CRITERIA) + 1):
            if count + len(names) - place < LEAST_CRITERIA:
                continue
            key = json.dumps(json.dumps(name, ensure_ascii=False) + ": ", ensure_ascii=False)
            comma = '", " ' if count else ""
            ways = []
            if count < MOST_CRITERIA:
                ways.append(f"{comma}{key} weight {_rule(place + 1, count + 1)}")
            if count + len(names) - place - 1 >= LEAST_CRITERIA:
                ways.append(_rule(place + 1, count))
            rules.append(f"{_rule(place, count)}: {' | '.join(ways)}")
    last = [count for count in range(LEAST_CRITERIA, min(len(names), MOST_CRITERIA) + 1)]
    rules += [f'{_rule(len(names), count)}: ""' for count in last]
    return Grammar("json_schema", "\n".join(rules) + "\n", "lark")


def _rule(place: int, count: int) -> str:
    return f"from_{place}_with_{count}"
