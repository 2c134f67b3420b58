"""Forms of a rubric in canonical order: the list of ``serialise``, and a JSON object, check → weight.

A check cannot occur twice, and a rubric has one text. Engines of constrained decoding cannot count optional
properties of a JSON schema, nor keep a list in order, so the grammars are in llguidance's dialect of Lark.
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
    """Returns the grammar of the ordered maps over ``checks``: three to seven entries in canonical order."""
    heads = [json.dumps(str(check), ensure_ascii=False) + ": " for check in sorted(set(checks))]
    return _in_order("{", heads, "", "}")


def ordered_grammar(checks: Iterable[Check]) -> Grammar:
    """Returns the grammar of the texts of ``serialise`` without a repeated check, for any tokenizer.

    It is the part of ``schema_of``'s language that is in canonical order.
    """
    heads = [
        json.dumps({"check": check.name, "arg": check.arg}, ensure_ascii=False)[:-1] + ', "weight": '
        for check in sorted(set(checks))
    ]
    return _in_order('{"criteria": [', heads, "}", "]}")


def _in_order(opening: str, heads: list[str], tail: str, closing: str) -> Grammar:
    """Returns the grammar of three to seven entries (head, weight, tail) in the order of ``heads``.

    It has a rule for each place in the order and each count of entries so far.
    """
    size = len(heads)
    if size < LEAST_CRITERIA:
        raise InvalidRubric(f"{size} checks were given: a rubric needs {LEAST_CRITERIA} different ones.")
    weights = " | ".join(f'"{weight}"' for weight in WEIGHTS)
    rules = [f"start: {_quoted(opening)} {_rule(0, 0)} {_quoted(closing)}", f"weight: {weights}"]
    for place, head in enumerate(heads):
        for count in range(min(place, MOST_CRITERIA) + 1):
            if count + size - place < LEAST_CRITERIA:
                continue
            ways = []
            if count < MOST_CRITERIA:
                text = _quoted(f", {head}" if count else head)
                after = f"{_quoted(tail)} " if tail else ""
                ways.append(f"{text} weight {after}{_rule(place + 1, count + 1)}")
            if count + size - place - 1 >= LEAST_CRITERIA:
                ways.append(_rule(place + 1, count))
            rules.append(f"{_rule(place, count)}: {' | '.join(ways)}")
    rules += [f'{_rule(size, count)}: ""' for count in range(LEAST_CRITERIA, min(size, MOST_CRITERIA) + 1)]
    return Grammar("json_schema", "\n".join(rules) + "\n", "lark")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _rule(place: int, count: int) -> str:
    return f"from_{place}_with_{count}"
