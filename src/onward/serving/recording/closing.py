"""``POST /sessions/{id}/close``: the outcome of a task, a user's feedback on it, and the most recent closes.

Pure.

Invariants: clients repeat a close, so one that was carried out is remembered until its session has a new
task. Feedback is checked when it is parsed, so nothing is acknowledged and refused later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, get_args

from onward.capture.conversations.turns import MAX_STRING
from onward.capture.recorder.task import Status
from onward.clock import utc_text
from onward.contracts.buckets import ClosedTask
from onward.http.app import HttpError
from onward.ids import is_id, new_id
from onward.lru import Lru
from onward.serving.recording.trajectory import SOURCE

Outcome = dict[str, Any]
"""``status`` and, if given, ``completion_percentage``."""
GivenFeedback = dict[str, Any]
"""``signal`` and, if given, ``value`` and ``comment``."""
REMEMBERED = 10_000


@dataclass
class Closing:
    """A close that was carried out."""

    outcome: Outcome | None
    tasks: list[dict[str, Any]] = field(default_factory=list)
    """Recorded tasks: ``trajectory_id``, ``session_id`` and number of ``turns``."""
    silent: set[str] = field(default_factory=set)
    """Trajectories of users who opted out, and choices that were not used: no feedback is published about
    them."""
    feedback: list[GivenFeedback] = field(default_factory=list)
    feedback_ids: list[str] = field(default_factory=list)

    def add_tasks(self, tasks: Iterable[ClosedTask]) -> None:
        """Adds tasks that another gateway closed and recorded; each counts once."""
        known = {task["trajectory_id"] for task in self.tasks}
        for task in tasks:
            if task.trajectory_id not in known:
                self.tasks.append(task.model_dump(exclude={"silent"}))
                if task.silent:
                    self.silent.add(task.trajectory_id)

    def closed_tasks(self) -> list[ClosedTask]:
        """Returns the tasks in the form in which another gateway receives them."""
        return [ClosedTask(**task, silent=task["trajectory_id"] in self.silent) for task in self.tasks]

    @property
    def ids(self) -> list[str]:
        """Ids of all that must be on disk before the close is answered."""
        return [*(task["trajectory_id"] for task in self.tasks), *self.feedback_ids]

    def add_feedback(self, feedback: GivenFeedback | None, now: datetime) -> list[dict[str, Any]]:
        """Returns one feedback message for each task; none if this feedback was given before."""
        if feedback is None or feedback in self.feedback:
            return []
        self.feedback.append(feedback)
        tasks = [task for task in self.tasks if task["trajectory_id"] not in self.silent]
        messages = [_feedback_on(task, feedback, now) for task in tasks]
        self.feedback_ids += [message["feedback_id"] for message in messages]
        return messages


class Closings:
    """The latest closes, by their client (None: an administrator) and the name of what was closed."""

    def __init__(self) -> None:
        self._latest: Lru[tuple[str | None, str], Closing] = Lru(REMEMBERED)

    def put(self, name: str, owner: str | None, closing: Closing) -> None:
        self._latest[owner, name] = closing

    def find(self, name: str, owner: str | None, outcome: Outcome | None) -> Closing | None:
        """Returns the remembered close, or None. Raises HttpError 409 if it had another outcome. A request
        without an outcome does not conflict."""
        closing = self._latest.get((owner, name))
        if closing is not None and outcome is not None and outcome != closing.outcome:
            raise HttpError(
                409, "This task is closed and recorded with another outcome.", type="conflict_error"
            )
        return closing

    def forget(self, session_id: str, owner: str) -> None:
        """Forgets closes of a session with a new task: the next close under its name is for that task."""
        self._latest.pop((owner, session_id), None)
        self._latest.pop((None, session_id), None)


def _feedback_on(task: dict[str, Any], said: GivenFeedback, now: datetime) -> dict[str, Any]:
    return {
        "feedback_id": new_id(),
        "session_id": task["session_id"],
        "trajectory_id": task["trajectory_id"],
        "kind": "explicit",
        "source": SOURCE,
        "timestamp": utc_text(now),
        **said,
    }


def parse_close(document: dict[str, Any]) -> tuple[Outcome | None, GivenFeedback | None]:
    """Returns outcome and feedback, each None if not given. Raises HttpError 400 that names the field."""
    unknown = document.keys() - {"status", "completion_percentage", "feedback"}
    if unknown:
        name = min(unknown)
        raise _bad(f"{name[:64]!r} is not known here: give status, completion_percentage, feedback.", name)
    return _outcome(document), _feedback(document.get("feedback"))


def _outcome(document: dict[str, Any]) -> Outcome | None:
    status, share = document.get("status"), document.get("completion_percentage")
    if status is None:
        if share is not None:
            raise _bad("'completion_percentage' needs a 'status'.", "status")
        return None
    if status not in get_args(Status):
        raise _bad(f"'status' must be one of {', '.join(get_args(Status))}.", "status")
    if share is None:
        return {"status": status}
    return {"status": status, "completion_percentage": _share(share, "completion_percentage")}


def _feedback(given: Any) -> GivenFeedback | None:
    """Parses ``{"signal": "thumbs_up", "value"?: 0 to 1, "comment"?: text}``."""
    if given is None:
        return None
    if not isinstance(given, dict) or given.keys() - {"signal", "value", "comment"}:
        raise _bad("'feedback' must be an object with signal, value and comment.", "feedback")
    signal, comment = given.get("signal"), given.get("comment")
    if not isinstance(signal, str) or not is_id(signal):
        raise _bad("'feedback.signal' must be a word such as thumbs_up or rating.", "feedback.signal")
    if comment is not None and not (isinstance(comment, str) and len(comment.encode()) <= MAX_STRING):
        raise _bad(
            f"'feedback.comment' must be text of at most {MAX_STRING} bytes in UTF-8.",
            "feedback.comment",
        )
    kept: GivenFeedback = {"signal": signal}
    if given.get("value") is not None:
        kept["value"] = _share(given["value"], "feedback.value")
    elif signal == "rating":
        raise _bad("A rating needs a 'value' from 0 to 1.", "feedback.value")
    return kept if comment is None else {**kept, "comment": comment}


def _share(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _bad(f"{name!r} must be a number from 0 to 1: a share, 0.5 for one half.", name)
    return float(value)


def _bad(message: str, param: str) -> HttpError:
    return HttpError(400, message, param=param)
