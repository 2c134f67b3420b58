"""Facts that the turns of a trajectory show by themselves, whatever outcome was reported.

Every fact is read from results and texts in time linear in their size; nothing is guessed. An agent writes
most of this text, so a fact may lower a score and must never raise one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from onward.capture.conversations import endings
from onward.contracts import Trajectory, Turn
from onward.reward.measures.correction_requests import asks_for_correction

UNPARSABLE = "unparsable"
"""Prefix of ``result.error`` for an answer that could not be read as an action."""
FINAL_TOOLS = frozenset({"response", "final_answer", "finish", "submit", "answer", "done", "task_done"})
"""Tools that an agent calls to deliver its answer (Agent Zero's is ``response``)."""
_ANSWER_KEYS = ("text", "answer", "response", "message", "result")
_DONE = frozenset({"done", "completed", "completed_successfully", "success", "succeeded", "passed"})


def last_turn(trajectory: Trajectory) -> Turn:
    """Returns the last turn that is not an agent's write to its own memory; the very last where all are."""
    for turn in reversed(trajectory.turns):
        if turn.action.type != "memory_update":
            return turn
    return trajectory.turns[-1]


def is_unparsable(turn: Turn) -> bool:
    return (turn.result.error or "").startswith(UNPARSABLE)


def is_final_response(turn: Turn) -> bool:
    if turn.action.type == "response":
        return True
    return turn.action.type == "tool_call" and (turn.action.tool_name or "") in FINAL_TOOLS


def is_withheld(turn: Turn) -> bool:
    """Checks whether the model refused its answer or a filter withheld it, whatever result was reported."""
    return endings.kind_of(vars(turn.action)) in ("refused", "filtered")


def is_truncated(turn: Turn) -> bool:
    """Checks whether an answer ended at its limit of tokens. Its result does not decide about the task."""
    return endings.kind_of(vars(turn.action)) == "truncated"


def answer_text(turn: Turn) -> str | None:
    """Returns the text of a final response: from the call's arguments, else from the result, else the model's
    raw response. Returns None where none of these was recorded."""
    arguments = turn.action.tool_args or _parsed_arguments(turn.action.raw_response)
    for key in _ANSWER_KEYS:
        if isinstance(arguments.get(key), str):
            return arguments[key]
    if isinstance(turn.result.output, str):
        return turn.result.output
    return turn.action.raw_response


def nothing_recorded(trajectory: Trajectory) -> bool:
    """Checks whether no turn has any trace of work: no arguments, no text, no output."""
    return not any(
        turn.action.tool_args
        or turn.action.tool_name
        or (turn.action.raw_response or "").strip()
        or (turn.result.output.strip() if isinstance(turn.result.output, str) else turn.result.output)
        for turn in trajectory.turns
    )


def anything_succeeded(trajectory: Trajectory) -> bool:
    return any(turn.result.success for turn in trajectory.turns)


def error_rate(trajectory: Trajectory) -> float:
    """Returns the share of results that failed."""
    return sum(not turn.result.success for turn in trajectory.turns) / len(trajectory.turns)


def tests_passed(trajectory: Trajectory) -> float | None:
    """Returns the share of tests passed in the last ``result.checks.tests``; None where there is none.

    Accepted forms: ``{"passed": n, "failed": m}`` or ``{"passed": n, "total": m}``, ``{"pass_rate": share}``,
    a share, or true and false.
    """
    for turn in reversed(trajectory.turns):
        tests = (turn.result.checks or {}).get("tests")
        share = _share_of_tests(tests)
        if share is not None:
            return share
    return None


def subtasks_reported(trajectory: Trajectory) -> float | None:
    """Returns the share of subtasks done, from ``metadata.subtasks`` or ``task_context.subtasks``. The value
    is a list of objects with ``status`` or ``done``, or ``{"done": n, "total": m}``; any other gives None."""
    for extra in (trajectory.metadata.model_extra, trajectory.task_context.model_extra):
        share = _share_of_subtasks((extra or {}).get("subtasks"))
        if share is not None:
            return share
    return None


def subtasks_done(trajectory: Trajectory) -> float | None:
    """Returns the reported share, else the share of subordinate calls that succeeded, else None."""
    reported = subtasks_reported(trajectory)
    calls = [turn.result.success for turn in trajectory.turns if turn.action.type == "subordinate_call"]
    return reported if reported is not None or not calls else sum(calls) / len(calls)


def correction_requested(trajectory: Trajectory) -> int | None:
    """Returns the first turn, after the request itself, in whose message the user asks to redo or correct."""
    for turn in trajectory.turns[1:]:
        observation = turn.observation
        if observation.type == "user_message" and asks_for_correction(_as_text(observation.content)):
            return turn.turn_id
    return None


def texts(value: Any) -> Iterable[str]:
    """Yields every text in a JSON value, keys included."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            stack.extend(item.values())
            stack.extend(item.keys())
        elif isinstance(item, list):
            stack.extend(reversed(item))


def _as_text(content: str | Mapping[str, Any]) -> str:
    return content if isinstance(content, str) else " ".join(texts(content))


def _parsed_arguments(raw: str | None) -> Mapping[str, Any]:
    """Returns the arguments of an answer that is one JSON object ``{"tool_name", "tool_args"}``."""
    if not raw or not raw.lstrip().startswith("{"):
        return {}
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    arguments = document.get("tool_args") if isinstance(document, dict) else None
    return arguments if isinstance(arguments, dict) else {}


def _share_of_tests(tests: Any) -> float | None:
    if isinstance(tests, bool):
        return float(tests)
    if not isinstance(tests, Mapping):
        return share if (share := _number(tests)) is not None and 0.0 <= share <= 1.0 else None
    if isinstance(tests.get("passed"), bool):
        return float(tests["passed"])
    passed, rate = _number(tests.get("passed")), _number(tests.get("pass_rate"))
    if passed is None:
        return rate if rate is not None and 0.0 <= rate <= 1.0 else None
    counts = [count for name in ("failed", "errors") if (count := _number(tests.get(name))) is not None]
    total = _number(tests.get("total"))
    if total is None and counts:
        total = passed + sum(counts)
    return passed / total if total and 0.0 <= passed <= total else None


def _share_of_subtasks(subtasks: Any) -> float | None:
    if isinstance(subtasks, Mapping):
        done, total = _number(subtasks.get("done")), _number(subtasks.get("total"))
        return done / total if done is not None and total and 0.0 <= done <= total else None
    if not isinstance(subtasks, list) or not subtasks:
        return None
    known = [item for item in subtasks if isinstance(item, Mapping) and ("status" in item or "done" in item)]
    if len(known) != len(subtasks):
        return None
    return sum(_is_done(item) for item in known) / len(known)


def _is_done(subtask: Mapping[str, Any]) -> bool:
    return subtask.get("done") is True or subtask.get("status") in _DONE


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
