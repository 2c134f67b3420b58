"""Votes: turns a posted body into ``agent.rl.feedback.v1``, and judges a vote for the gates.

Pure.

Invariants: an accepted vote is acknowledged, so nothing may be refused later on. The holder of a token can
say only what a person says on the page, about the one thing that the token names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.contracts import Feedback
from onward.feedback.tokens import MAX_SESSION, Subject, is_text
from onward.http.app import HttpError
from onward.ids import is_id
from onward.reward.components.user_feedback import WITHDRAWN, signal_value

STARS = 5
COMMENT_BYTES = 8 << 10
VOTES = ("thumbs_up", "thumbs_down", "rating", "correction")
"""Signals that a token may send: each is a statement by a person."""
_FIXED = frozenset({"thumbs_up", "thumbs_down", "correction", "abandoned"})
"""Signals whose value Onward's rule sets: a value beside them would be ignored, so it is refused."""
_DONE = frozenset(
    {"abandoned", "retry", "accepted", "copied", "branched", "nudged", "interrupted", "reset", "thanks"}
)
"""Signals of a person's actions, not statements: implicit unless ``kind`` is set otherwise."""
_FIELDS = ("signal", "stars", "value", "comment", "session_id", "trajectory_id", "turn_id")
_FIELDS_OF_KEYS = (*_FIELDS, "kind", "source", "feedback_id")


def is_negative(feedback: Feedback) -> bool | None:
    """Returns whether an explicit vote is negative: worth less than half. A withdrawn vote is not. None if it
    is no vote."""
    if feedback.kind == "explicit" and feedback.signal == WITHDRAWN:
        return False
    value = signal_value(feedback) if feedback.kind == "explicit" else None
    return None if value is None else value < 0.5


def read_subject(document: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Returns the session and trajectory that a body names, each None if absent. Raises HttpError 400."""
    session_id, trajectory_id = document.get("session_id"), document.get("trajectory_id")
    if session_id is not None and not (
        isinstance(session_id, str) and 0 < len(session_id) <= MAX_SESSION and is_text(session_id)
    ):
        raise _bad(f"'session_id' must be text of 1 to {MAX_SESSION} characters.", "session_id")
    if trajectory_id is not None and not (isinstance(trajectory_id, str) and is_id(trajectory_id)):
        raise _bad("'trajectory_id' must be 1 to 128 letters, digits, '_' or '-'.", "trajectory_id")
    return session_id, trajectory_id


def read_vote(document: Mapping[str, Any], *, by_key: bool) -> dict[str, Any]:
    """Returns the fields of feedback.v1 in a body: signal, kind, value, comment, turn_id, source. ``by_key``:
    it came with an API key and not with a token. Raises HttpError 400 that names the field."""
    known = _FIELDS_OF_KEYS if by_key else _FIELDS
    for name in document.keys() - set(known):
        if name in _FIELDS_OF_KEYS:
            raise _bad(f"'{name}' may only be given with an API key.", name)
        raise _bad(f"{name[:64]!r} is not known here: give {', '.join(known)}.", name[:64])
    signal = document.get("signal")
    if not isinstance(signal, str) or not is_id(signal):
        raise _bad("'signal' must be a word such as thumbs_up, thumbs_down, rating or correction.", "signal")
    if not by_key and signal not in VOTES:
        raise _bad(f"With a feedback token 'signal' is one of {', '.join(VOTES)}.", "signal")
    kind = document.get("kind", "implicit" if signal in _DONE else "explicit")
    if kind not in ("explicit", "implicit"):
        raise _bad("'kind' must be 'explicit' (a person said it) or 'implicit' (a person did it).", "kind")
    source = document.get("source", "api" if by_key else "widget")
    if not isinstance(source, str) or not is_id(source):
        raise _bad("'source' must be a word such as webui: letters, digits, '_' or '-'.", "source")
    said: dict[str, Any] = {"signal": signal, "kind": kind, "source": source}
    value = _value(document, signal)
    if value is not None:
        said["value"] = value
    comment = document.get("comment")
    if comment is not None and not (is_text(comment) and len(comment.encode()) <= COMMENT_BYTES):
        raise _bad(f"'comment' must be text of at most {COMMENT_BYTES} bytes in UTF-8.", "comment")
    if comment:
        said["comment"] = comment
    turn_id = document.get("turn_id")
    if turn_id is not None:
        if isinstance(turn_id, bool) or not isinstance(turn_id, int) or turn_id < 1:
            raise _bad("'turn_id' must be a number from 1 on.", "turn_id")
        said["turn_id"] = turn_id
    return said


def check_scope(subject: Subject, session_id: str | None, trajectory_id: str | None) -> None:
    """Checks that a body names nothing beyond the subject of its token. Raises HttpError 403."""
    if session_id not in (None, subject.session_id):
        raise _beyond("This feedback token is for another session: leave 'session_id' out.", "session_id")
    if trajectory_id in (None, subject.trajectory_id):
        return
    if subject.trajectory_id is None:
        raise _beyond(
            "This feedback token is for a session as a whole: leave 'trajectory_id' out, or have a token "
            "made for the trajectory.",
            "trajectory_id",
        )
    raise _beyond(
        "This feedback token is for another trajectory: leave 'trajectory_id' out.", "trajectory_id"
    )


def _value(document: Mapping[str, Any], signal: str) -> float | None:
    """Value from 0 to 1: ``value`` as it is, or ``stars`` (1 to 5) as n/5."""
    stars, value = document.get("stars"), document.get("value")
    if stars is None and value is None:
        if signal == "rating":
            raise _bad("A rating needs 'stars' from 1 to 5, or a 'value' from 0 to 1.", "stars")
        return None
    if stars is not None and value is not None:
        raise _bad("Give 'stars' (1 to 5) or 'value' (0 to 1), not both.", "value")
    if signal in _FIXED:
        name = "stars" if value is None else "value"
        raise _bad(f"{signal!r} has its own worth: leave {name!r} out, or send a rating.", name)
    if stars is not None:
        if signal != "rating":
            raise _bad("'stars' go with the signal 'rating' alone.", "stars")
        if isinstance(stars, bool) or not isinstance(stars, int) or not 1 <= stars <= STARS:
            raise _bad("'stars' must be a whole number from 1 to 5.", "stars")
        return stars / STARS
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _bad("'value' must be a number from 0 (bad) to 1 (good); stars go into 'stars'.", "value")
    return float(value)


def _bad(message: str, param: str) -> HttpError:
    return HttpError(400, message, param=param)


def _beyond(message: str, param: str) -> HttpError:
    return HttpError(403, message, type="permission_error", param=param)
