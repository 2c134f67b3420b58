"""Votes and actions of the web interface, as arguments of ``Runtime.feedback``. Standard library alone.

Invariants: what passes here is complete and bounded, so the worker accepts it. A signal of a person's action
is implicit and comes from the interface; the work of agents and of the scheduler has none.
"""

from __future__ import annotations

import re
from typing import Any

STARS = 5
MOST_COMMENT = 8 << 10
MOST_TEXT = 2000
EXPLICIT = ("thumbs_up", "thumbs_down", "rating", "comment", "withdrawn")
IMPLICIT = ("abandoned", "reset", "nudged", "interrupted", "branched", "copied", "message")
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class VoteRefused(ValueError):
    """A body that is no vote; the message gives the reason in one sentence."""


def read_vote(body: Any) -> dict[str, Any]:
    """Returns the arguments of ``Runtime.feedback`` for a posted vote. Raises VoteRefused."""
    signal = _word(body, EXPLICIT)
    vote = {**_place(body), "signal": signal, "kind": "explicit", "source": "webui", "value": None}
    stars = body.get("stars")
    if signal == "rating":
        if isinstance(stars, bool) or not isinstance(stars, int) or not 1 <= stars <= STARS:
            raise VoteRefused("'stars' must be a whole number from 1 to 5.")
        vote["value"] = stars / STARS
    elif stars is not None:
        raise VoteRefused("'stars' go with the signal 'rating' alone.")
    vote["comment"] = _comment(body, MOST_COMMENT)
    if signal == "comment" and vote["comment"] is None:
        raise VoteRefused("A comment needs text in 'comment'.")
    feedback_id = body.get("feedback_id")
    if feedback_id is not None and not _is_id(feedback_id):
        raise VoteRefused("'feedback_id' must be 1 to 128 letters, digits, '_' or '-'.")
    return {**vote, "feedback_id": feedback_id}


def read_signal(body: Any) -> dict[str, Any]:
    """Returns the arguments of ``Runtime.feedback`` for a posted action. Raises VoteRefused."""
    signal = _word(body, IMPLICIT)
    text = _comment(body, 1 << 20)
    if (text is not None) != (signal == "message"):
        raise VoteRefused("The text of a message goes with the signal 'message' alone.")
    return implicit(**_place(body), signal=signal, text=text)


def implicit(context_id: str, message_id: str | None, signal: str, text: str | None = None) -> dict[str, Any]:
    """Returns the arguments of ``Runtime.feedback`` for an action. The worker reads a message for a
    correction or thanks, and stores neither its text nor anything else of it."""
    return {
        "context_id": context_id,
        "message_id": message_id,
        "signal": signal,
        "kind": "implicit",
        "value": None,
        "comment": None if text is None else text[:MOST_TEXT],
        "source": "webui",
        "feedback_id": None,
    }


def is_of_a_person(context: Any) -> bool:
    """Returns whether the chat is one of a person: neither a task of the scheduler nor background work."""
    kind = getattr(context, "type", None)
    return getattr(kind, "value", kind) in (None, "user", "USER")


def last_answer(context: Any) -> str | None:
    """Returns the id of the main agent's last answer in a chat; None before the first."""
    for item in reversed(list(getattr(getattr(context, "log", None), "logs", ()))):
        if getattr(item, "type", "") == "response" and not getattr(item, "agentno", 0):
            return getattr(item, "id", None) or None
    return None


def _word(body: Any, known: tuple[str, ...]) -> str:
    signal = body.get("signal") if isinstance(body, dict) else None
    if signal not in known:
        raise VoteRefused(f"'signal' must be one of {', '.join(known)}.")
    return str(signal)


def _place(body: dict[str, Any]) -> dict[str, Any]:
    context_id, message_id = body.get("context"), body.get("message_id")
    if not _is_id(context_id):
        raise VoteRefused("'context' must be the id of a chat: reload the page.")
    if message_id is not None and not _is_id(message_id):
        raise VoteRefused("'message_id' must be the id of an answer: reload the page.")
    return {"context_id": context_id, "message_id": message_id}


def _comment(body: dict[str, Any], most: int) -> str | None:
    comment = body.get("comment")
    if comment is None:
        return None
    if not isinstance(comment, str):
        raise VoteRefused("'comment' must be text.")
    try:
        size = len(comment.encode())
    except UnicodeEncodeError:
        raise VoteRefused("'comment' must be text that UTF-8 can write.") from None
    if size > most:
        raise VoteRefused(f"'comment' has {size} bytes: shorten it to {most}.")
    return comment.strip() or None


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None
