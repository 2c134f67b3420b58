"""Judges the end of a replayed task: by checks, by accepted answers, or by the recorded end. Pure.

Texts are compared without regard to case, spaces and punctuation at their ends. A check is an object with
one of these keys: ``equals``, ``contains``, ``not_contains``, ``matches`` (a regular expression) with a text
about the final answer; ``calls`` with ``{"name": …, "arguments": …}`` that some call must equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from onward.suites.recorded.tasks import Call, RecordedTask
from onward.suites.trained import normal

VERSION = "1"
"""Must change with every change of a judgement: results of two versions are not compared."""
Said = Sequence[tuple[str, str, Any]]
"""Calls as (id, name, arguments)."""


def judge(task: RecordedTask, final: str, last: Said, every: Said) -> tuple[bool, str]:
    """Returns whether the task counts as solved, and why. ``last`` are the calls of the final answer,
    ``every`` all calls."""
    for check in task.checks:
        held, words = _holds(check, final, every)
        if not held:
            return False, words
    if task.expected:
        if normal(final) in {normal(one) for one in task.expected}:
            return True, "the expected answer"
        return False, f"expected {task.expected[0][:80]!r}"
    if task.checks:
        return True, "every check holds"
    if task.final_calls:
        wanted = sorted(key(one.name, one.arguments) for one in task.final_calls)
        same = wanted == sorted(key(name, arguments) for _, name, arguments in last)
        return same, "the recorded last call" if same else "not the recorded last call"
    same = normal(final) == normal(task.final)
    return same, "the recorded answer" if same else f"recorded was {task.final[:80]!r}"


def _holds(check: dict[str, Any], final: str, every: Said) -> tuple[bool, str]:
    for name, wanted in check.items():
        if name == "calls" and isinstance(wanted, dict):
            keys = {key(called, arguments) for _, called, arguments in every}
            held = key(str(wanted.get("name")), wanted.get("arguments")) in keys
        elif name == "equals":
            held = normal(final) == normal(str(wanted))
        elif name == "contains":
            held = normal(str(wanted)) in normal(final)
        elif name == "not_contains":
            held = normal(str(wanted)) not in normal(final)
        elif name == "matches":
            held = re.search(str(wanted), final) is not None
        else:
            return False, f"the check {name!r} is unknown"
        if not held:
            return False, f"the check {name} {str(wanted)[:80]!r} does not hold"
    return True, ""


def key(name: str, arguments: Any) -> str:
    """Returns a call as canonical text: equal calls have equal keys, whatever the order of arguments."""
    return json.dumps([name, arguments], sort_keys=True, ensure_ascii=False)


def recorded_results(calls: Sequence[Call]) -> dict[str, list[str]]:
    """Returns the results of each call, in their order, by ``key``."""
    found: dict[str, list[str]] = {}
    for call in calls:
        found.setdefault(key(call.name, call.arguments), []).append(call.result)
    return found
