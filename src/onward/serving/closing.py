"""The body of ``POST /sessions/{id}/close``: how a task ended, and what a person said about it. Pure."""

from __future__ import annotations

from typing import Any, get_args

from onward.capture.recorder.task import Status
from onward.httpbase import HttpError
from onward.ids import is_id

Outcome = dict[str, Any]
"""``status`` and, where given, ``completion_percentage``."""


def parse_close(document: dict[str, Any]) -> tuple[Outcome | None, dict[str, Any] | None]:
    """Outcome and feedback, each None where it was not given. Raises HttpError 400 that names the field."""
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


def _feedback(given: Any) -> dict[str, Any] | None:
    """``{"signal": "thumbs_up", "value"?: 0 to 1, "comment"?: text}``."""
    if given is None:
        return None
    if not isinstance(given, dict) or given.keys() - {"signal", "value", "comment"}:
        raise _bad("'feedback' must be an object with signal, value and comment.", "feedback")
    signal, comment = given.get("signal"), given.get("comment")
    if not isinstance(signal, str) or not is_id(signal):
        raise _bad("'feedback.signal' must be a word such as thumbs_up or rating.", "feedback.signal")
    if not (comment is None or isinstance(comment, str)):
        raise _bad("'feedback.comment' must be text.", "feedback.comment")
    kept: dict[str, Any] = {"signal": signal}
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
