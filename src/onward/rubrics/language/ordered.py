"""The grammar of rubrics in canonical order, for constrained decoding.

A check cannot occur twice, and a rubric has one text. Engines of constrained decoding cannot count optional
properties of a JSON schema, nor keep a list in order, so the grammar is in llguidance's dialect of Lark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from onward.lm.constrained import Grammar
from onward.rubrics.check import Check
from onward.rubrics.language.criteria import LEAST_CRITERIA, MOST_CRITERIA, WEIGHTS, InvalidRubric


def ordered_grammar(checks: Iterable[Check]) -> Grammar:
    """Returns the grammar of the texts of ``serialise`` without a repeated check, for any tokenizer.

    It is the part of ``schema_of``'s language that is in canonical order: three to seven criteria. It has a
    rule for each place in the order and each count of criteria so far. Raises InvalidRubric for fewer than
    three checks.
    """
    heads = [
        json.dumps({"check": check.name, "arg": check.arg}, ensure_ascii=False)[:-1] + ', "weight": '
        for check in sorted(set(checks))
    ]
    size = len(heads)
    if size < LEAST_CRITERIA:
        raise InvalidRubric(f"{size} checks were given: a rubric needs {LEAST_CRITERIA} different ones.")
    weights = " | ".join(f'"{weight}"' for weight in WEIGHTS)
    opening, tail, closing = _quoted('{"criteria": ['), _quoted("}"), _quoted("]}")
    rules = [f"start: {opening} {_rule(0, 0)} {closing}", f"weight: {weights}"]
    for place, head in enumerate(heads):
        for count in range(min(place, MOST_CRITERIA) + 1):
            if count + size - place < LEAST_CRITERIA:
                continue
            ways = []
            if count < MOST_CRITERIA:
                text = _quoted(f", {head}" if count else head)
                ways.append(f"{text} weight {tail} {_rule(place + 1, count + 1)}")
            if count + size - place - 1 >= LEAST_CRITERIA:
                ways.append(_rule(place + 1, count))
            rules.append(f"{_rule(place, count)}: {' | '.join(ways)}")
    rules += [f'{_rule(size, count)}: ""' for count in range(LEAST_CRITERIA, min(size, MOST_CRITERIA) + 1)]
    return Grammar("json_schema", "\n".join(rules) + "\n", "lark")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _rule(place: int, count: int) -> str:
    return f"from_{place}_with_{count}"
