"""Corrections as training data: what a person wrote in place of an answer, beside what the policy had said.

Pure. Know before changing: a correction that is empty or was redacted teaches nothing or something else, so
it is left out and counted; and it is put into the form of the answer that it replaces, because a policy whose
agent reads JSON must not learn to answer in prose.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from onward.contracts import Feedback
from onward.redaction.placeholders import has_one
from onward.reward.answers import SKEW, moment
from onward.training.data import admission, conversations
from onward.training.data.admission import Scored

SIGNAL = "correction"
Line = dict[str, Any]
_TEXTS = ("text", "message")
"""Arguments in which a ``response`` call carries what the user reads, where it has several texts."""


def is_correction(feedback: Feedback) -> bool:
    """Whether a person said it, in so many words: signs in the conversation carry no answer."""
    return feedback.kind == "explicit" and feedback.signal == SIGNAL


def placed(
    said: Iterable[tuple[Feedback, datetime]], work: Iterable[Mapping[str, Any]]
) -> dict[str, Feedback]:
    """Trajectory id → the last correction of it; others of the same trajectory no longer count.

    ``said``: feedback with the time of its arrival. What names no trajectory is about the one of its session
    that began last before it; ``work`` has ``trajectory_id``, ``session_id`` and ``start_ts`` of those.
    """
    begun: dict[str, list[tuple[datetime, str]]] = {}
    for row in work:
        begun.setdefault(row["session_id"], []).append((moment(row["start_ts"]), row["trajectory_id"]))
    found: dict[str, Feedback] = {}
    for feedback, arrived in said:
        if not is_correction(feedback):
            continue
        name = feedback.trajectory_id or _begun_before(begun.get(feedback.session_id, []), arrived)
        if name is None:
            continue
        known = found.get(name)
        if known is None or _order(known) < _order(feedback):
            found[name] = feedback
    return found


def _begun_before(work: Iterable[tuple[datetime, str]], when: datetime) -> str | None:
    """The last that began by ``when``; an agent's clock that is ahead a little still counts."""
    ordered = sorted(work)
    before = [name for start, name in ordered if start <= when]
    late = [name for start, name in ordered if when < start <= when + SKEW]
    return before[-1] if before else late[0] if late else None


def _order(feedback: Feedback) -> tuple[datetime, str]:
    return feedback.timestamp, feedback.feedback_id


def usable_count(rows: Iterable[Mapping[str, Any]]) -> int:
    """How many trajectories (or sessions) have a correction with an answer in it, as their last one.

    ``rows`` are corrections in order of time, with ``trajectory_id`` (or empty), ``session_id``, ``comment``.
    """
    last = {(row["trajectory_id"], row["trajectory_id"] or row["session_id"]): row for row in rows}
    return sum(problem(row["comment"]) is None for row in last.values())


def problem(comment: str | None) -> str | None:
    """Why what was written is no answer to learn: ``correction_empty``, ``correction_redacted``, or None."""
    if not (comment or "").strip():
        return "correction_empty"
    return "correction_redacted" if has_one(str(comment).encode()) else None


def take(line: Line, item: Scored, excluded: Counter[str]) -> Line | str:
    """``line`` with the correction of ``item``; without it where it is left out, which is counted.

    The reason why the trajectory is left out, where it has no score and so nothing but a correction to give.
    """
    if item.correction is not None:
        reason = attach(line, item.trajectory, item.correction.comment, item.correction.turn_id)
        if reason is not None:
            excluded[reason] += 1
    if "correction" not in line and line["outcome"] is None:
        return admission.why_unscored(item.trajectory)
    return line


def attach(line: Line, trajectory: Mapping[str, Any], comment: str | None, turn_id: int | None) -> str | None:
    """Write into ``line`` what ``conversations.corrected`` makes a pair of; or why there can be none.

    ``correction_no_turn``: the turn is not there, or the policy said nothing in it. ``correction_no_tokens``:
    redaction took its tokens. ``correction_other_form``: prose in place of a tool call.
    """
    reason = problem(comment)
    if reason is not None:
        return reason
    turns = trajectory["turns"]
    at = _answer_at(turns, turn_id)
    if at is None:
        return "correction_no_turn"
    action = turns[at]["action"]
    answer = in_form(conversations.answer_of(action), str(comment).strip())
    if answer is None:
        return "correction_other_form"
    if problem(answer) is not None:  # what it keeps of the policy's own words was redacted
        return "correction_redacted"
    if "calls" not in line:
        line["correction"] = {"answer": answer, "message": 2 * at + 1}
        return None
    record = action.get("sampling")
    if not record:
        return "correction_no_turn"
    if record["generation_id"] in admission.masked(line["calls"]):
        return "correction_no_tokens"
    line["correction"] = {"answer": answer, "generation_id": record["generation_id"]}
    return None


def _answer_at(turns: list[Mapping[str, Any]], turn_id: int | None) -> int | None:
    """Index of the turn with that number; without one, of the last answer, else of the last turn."""
    if turn_id is not None:
        return next((at for at, turn in enumerate(turns) if turn.get("turn_id") == turn_id), None)
    answers = [at for at, turn in enumerate(turns) if turn["action"]["type"] == "response"]
    return answers[-1] if answers else len(turns) - 1


def in_form(said: str, written: str) -> str | None:
    """``written`` in the form of ``said``; None where that is a tool call and ``written`` is none.

    A call of ``response`` keeps all but its text, so that what a person wrote as plain text is wrapped as the
    policy wraps its answers. Plain text, and JSON that is no call, are replaced as they are.
    """
    call = _call(said)
    if call is None or _call(written) is not None:
        return written
    arguments = call.get("tool_args")
    if call.get("tool_name") != "response" or not isinstance(arguments, dict):
        return None
    texts = [name for name, value in arguments.items() if isinstance(value, str)]
    name = texts[0] if len(texts) == 1 else next((name for name in _TEXTS if name in texts), None)
    if name is None:
        return None
    for ascii_only in (False, True):  # in place, so that the two sides differ in nothing but the text
        old = json.dumps(arguments[name], ensure_ascii=ascii_only)
        if said.count(old) == 1:
            return said.replace(old, json.dumps(written, ensure_ascii=ascii_only))
    return json.dumps({**call, "tool_args": {**arguments, name: written}}, ensure_ascii=False)


def _call(text: str) -> dict[str, Any] | None:
    """The tool call that a text is; the first of several."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, list):
        found = found[0] if len(found) else None
    is_call = isinstance(found, dict) and ("tool_name" in found or "function" in found)
    return found if is_call else None
