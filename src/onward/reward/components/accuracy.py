"""Accuracy: compares the final answer with the expected one, by program.

A task carries the expected answer as ``task_context.expected``:
``{"answer": …, "match": "exact" | "number" | "contains" | "json" | "set", "tolerance": 0.01}``. Nothing is
evaluated and no pattern comes from outside. The author of a trajectory also writes that field, so give this
component a weight only where the tasks are your own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import re2

from onward.contracts import Trajectory
from onward.reward.components.base import NotApplicable, Scored, ScoringContext
from onward.reward.measures import facts

_NUMBER = re2.compile(r"[-+−]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")
_WORD_EDGE = r"[^\pL\pN_]"
_LONGEST = 1000
"""Maximum characters of an expected answer, and maximum members of an expected set."""
_READ_FOR_NUMBERS = 20_000
"""Characters read for numbers, from the end of an answer. Each number costs 5 µs, and an agent could write
megabytes of them."""


class Accuracy:
    name = "accuracy"

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Scored | NotApplicable:
        expected = (trajectory.task_context.model_extra or {}).get("expected")
        if expected is None:
            return NotApplicable("the task names no expected answer")
        match = expected.get("match", "exact") if isinstance(expected, Mapping) else None
        compare = _MATCHES.get(match) if isinstance(match, str) else None
        if compare is None or "answer" not in expected:
            return NotApplicable(
                f"task_context.expected needs an answer, and a match of {', '.join(_MATCHES)}"
            )
        last = facts.last_turn(trajectory)
        answer = facts.answer_text(last) if facts.is_final_response(last) else None
        try:
            score = 0.0 if answer is None else compare(answer, expected)
        except _Unusable as error:
            return NotApplicable(f"task_context.expected cannot be used: {error}")
        found = "no final answer was given" if answer is None else f"the final answer has {score:.3g} of it"
        return Scored(
            score=score,
            source="benchmark",
            reasoning=f"The task expects an answer by {match}, and {found}.",
            raw_data={"match": match, "answered": answer is not None},
        )


class _Unusable(ValueError):
    """Raised when the expected answer has another form than its match needs."""


def _exact(answer: str, expected: Mapping[str, Any]) -> float:
    return float(_spaces(answer) == _spaces(_text(expected)))


def _contains(answer: str, expected: Mapping[str, Any]) -> float:
    """Matches a whole word or phrase, ignoring case. An answer that lists every option also matches, so use
    ``exact`` or ``set`` where there are few options."""
    phrase = re2.escape(_spaces(_text(expected)).casefold())
    found = re2.search(f"(?:^|{_WORD_EDGE}){phrase}(?:$|{_WORD_EDGE})", _spaces(answer).casefold())
    return float(found is not None)


def _number(answer: str, expected: Mapping[str, Any]) -> float:
    """Compares the last number of the answer, within ``tolerance`` (absolute; default 1e-9 of the value)."""
    wanted, tolerance = _finite(expected["answer"], "answer"), expected.get("tolerance")
    allowed = 1e-9 * max(1.0, abs(wanted)) if tolerance is None else _finite(tolerance, "tolerance")
    numbers = _NUMBER.findall(answer[-_READ_FOR_NUMBERS:])
    if not numbers:
        return 0.0
    return float(abs(float(numbers[-1].replace(",", "").replace("−", "-")) - wanted) <= allowed)


def _json(answer: str, expected: Mapping[str, Any]) -> float:
    """Compares the whole answer as JSON, in any order of keys, without a fence of three backticks."""
    try:
        return float(_same(json.loads(_unfenced(answer)), expected["answer"]))
    except (ValueError, RecursionError):
        return 0.0


def _set(answer: str, expected: Mapping[str, Any]) -> float:
    """Returns members in common over members in either (Jaccard): a missing member lowers the score, and so
    does an extra one. The answer is a JSON list, or members separated by commas, semicolons or line breaks.
    """
    wanted = expected["answer"]
    if not isinstance(wanted, list) or not wanted or len(wanted) > _LONGEST:
        raise _Unusable(f"answer is not a list of 1 to {_LONGEST} members")
    try:
        given = json.loads(_unfenced(answer))
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, list):
        given = answer.replace(";", ",").replace("\n", ",").split(",")
    one, other = _members(wanted), _members(given)
    return len(one & other) / len(one | other)


_MATCHES: dict[str, Callable[[str, Mapping[str, Any]], float]] = {
    "exact": _exact,
    "number": _number,
    "contains": _contains,
    "json": _json,
    "set": _set,
}


def _members(items: list[Any]) -> set[str]:
    texts = (item if isinstance(item, str) else json.dumps(item, sort_keys=True) for item in items)
    return {text for item in texts if (text := _spaces(item).strip("-*• .").casefold())}


def _text(expected: Mapping[str, Any]) -> str:
    answer = expected["answer"]
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        return str(answer)
    if not isinstance(answer, str) or not 0 < len(answer.strip()) <= _LONGEST:
        raise _Unusable(f"answer is not a text of 1 to {_LONGEST} characters")
    return answer


def _finite(value: Any, name: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise _Unusable(f"{name} is not a finite number")
    return float(value)


def _same(one: Any, other: Any) -> bool:
    """Compares as JSON: 1 equals 1.0, and true does not equal 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _unfenced(text: str) -> str:
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text.partition("\n")[2].removesuffix("```")
    return text


def _spaces(text: str) -> str:
    return " ".join(text.split())
