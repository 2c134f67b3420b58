"""Corrections as training data: a user's text in place of an answer, paired with the policy's answer. Pure.

Invariants: a correction that is empty or was redacted is left out and counted, since it teaches nothing or
something else. A correction gets the form of the answer that it replaces, because a policy whose agent reads
JSON must not learn to answer in prose.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from onward.contracts import Feedback
from onward.redaction.placeholders import has_placeholder
from onward.reward.stored_feedback import SKEW, as_time
from onward.training.data import admission, conversations
from onward.training.data.admission import ScoredTrajectory

SIGNAL = "correction"
Line = dict[str, Any]
_TEXTS = ("text", "message")
"""Arguments in which a ``response`` call carries the text for the user, if it has several texts."""


def is_correction(feedback: Feedback) -> bool:
    """Reports if the feedback is an explicit correction; implicit signs in a conversation carry no answer."""
    return feedback.kind == "explicit" and feedback.signal == SIGNAL


def match_to_trajectories(
    said: Iterable[tuple[Feedback, datetime]], work: Iterable[Mapping[str, Any]]
) -> dict[str, Feedback]:
    """Returns trajectory id → its last correction; earlier ones of the same trajectory do not count.

    ``said`` is feedback with the time of its arrival. Feedback without a trajectory applies to the trajectory
    of its session that began last before it; ``work`` has ``trajectory_id``, ``session_id`` and ``start_ts``
    of those.
    """
    begun: dict[str, list[tuple[datetime, str]]] = {}
    for row in work:
        begun.setdefault(row["session_id"], []).append((as_time(row["start_ts"]), row["trajectory_id"]))
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
    """Returns the last trajectory begun by ``when``. A start at most ``SKEW`` later also counts, if none is
    earlier, since an agent's clock may be ahead.
    """
    ordered = sorted(work)
    before = [name for start, name in ordered if start <= when]
    late = [name for start, name in ordered if when < start <= when + SKEW]
    return before[-1] if before else late[0] if late else None


def _order(feedback: Feedback) -> tuple[datetime, str]:
    return feedback.timestamp, feedback.feedback_id


def usable_count(rows: Iterable[Mapping[str, Any]]) -> int:
    """Counts the trajectories (or sessions) whose last correction contains an answer. ``rows`` are
    corrections in order of time, with ``trajectory_id`` (or empty), ``session_id``, ``comment``."""
    last = {(row["trajectory_id"], row["trajectory_id"] or row["session_id"]): row for row in rows}
    return sum(unusable_reason(row["comment"]) is None for row in last.values())


def unusable_reason(comment: str | None) -> str | None:
    """Returns the reason against learning a text: ``correction_empty``, ``correction_redacted``, or None."""
    if not (comment or "").strip():
        return "correction_empty"
    return "correction_redacted" if has_placeholder(str(comment).encode()) else None


def apply_correction(line: Line, item: ScoredTrajectory, excluded: Counter[str]) -> Line | str:
    """Adds the correction of ``item`` to ``line``; a correction that cannot be used is left out and counted.

    Returns the line, or the reason for excluding a trajectory that has neither a score nor a usable
    correction.
    """
    if item.correction is not None:
        reason = attach(line, item.trajectory, item.correction.comment, item.correction.turn_id)
        if reason is not None:
            excluded[reason] += 1
    if "correction" not in line and line["outcome"] is None:
        return admission.why_unscored(item.trajectory)
    return line


def attach(line: Line, trajectory: Mapping[str, Any], comment: str | None, turn_id: int | None) -> str | None:
    """Writes the correction into ``line`` for ``conversations.corrected``; returns the reason if it cannot.

    ``correction_no_turn``: the turn is missing, or the policy gave no answer in it. ``correction_no_tokens``:
    redaction removed its tokens. ``correction_other_form``: prose in place of a tool call.
    """
    reason = unusable_reason(comment)
    if reason is not None:
        return reason
    turns = trajectory["turns"]
    at = _answer_at(turns, turn_id)
    if at is None:
        return "correction_no_turn"
    action, place = turns[at]["action"], None
    if "calls" in line:
        said = conversations.answer_of(action)
    else:
        place = conversations.place_of(trajectory, turns[at]["turn_id"])
        if place is None:
            return "correction_no_turn"
        said = line["messages"][place]["content"]
    answer = in_form(said, str(comment).strip())
    if answer is None:
        return "correction_other_form"
    if unusable_reason(answer) is not None:  # the parts taken from the policy's answer were redacted
        return "correction_redacted"
    if place is not None:
        line["correction"] = {"answer": answer, "message": place}
        return None
    record = action.get("sampling")
    if not record:
        return "correction_no_turn"
    if record["generation_id"] in admission.masked(line["calls"]):
        return "correction_no_tokens"
    line["correction"] = {"answer": answer, "generation_id": record["generation_id"]}
    return None


def _answer_at(turns: list[Mapping[str, Any]], turn_id: int | None) -> int | None:
    """Returns the index of the turn with that number; for None, of the last answer, else of the last turn."""
    if turn_id is not None:
        return next((at for at, turn in enumerate(turns) if turn.get("turn_id") == turn_id), None)
    answers = [at for at, turn in enumerate(turns) if turn["action"]["type"] == "response"]
    return answers[-1] if answers else len(turns) - 1


def in_form(said: str, written: str) -> str | None:
    """Returns ``written`` in the form of ``said``; None if ``said`` is a tool call and ``written`` is not.

    A ``response`` call keeps all but its text, so that a user's plain text is wrapped as the policy wraps its
    answers. Plain text, and JSON that is no call, are replaced as they are.
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
    for ascii_only in (False, True):  # in place, so that the two sides differ only in the text
        old = json.dumps(arguments[name], ensure_ascii=ascii_only)
        if said.count(old) == 1:
            return said.replace(old, json.dumps(written, ensure_ascii=ascii_only))
    return json.dumps({**call, "tool_args": {**arguments, name: written}}, ensure_ascii=False)


def _call(text: str) -> dict[str, Any] | None:
    """Parses a text as a tool call; the first of several."""
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
