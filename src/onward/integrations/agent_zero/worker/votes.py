"""Reads the events of feedback: which answer each is about, and what it says."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from onward.integrations.agent_zero import signals
from onward.integrations.agent_zero.worker.answers import Answers, Place

ENDED_SECONDS = 30.0
"""Age at which a task that has ended is no longer the one that was stopped."""


def is_action(event: Mapping[str, Any]) -> bool:
    return event["said"].get("kind") == "implicit"


def linked_task(event: Mapping[str, Any]) -> str | None:
    """Returns the task of the answer that feedback names; None if it names none that Agent Zero knows."""
    link = event.get("link")
    return link.get("trajectory_id") if isinstance(link, Mapping) else None


def is_of_open_task(event: Mapping[str, Any], tasks: Container[str | None], chats: Container[str]) -> bool:
    """Checks whether feedback is about one of the ``tasks`` in progress. What names no answer is about the
    one that runs in its chat."""
    if isinstance(event.get("link"), Mapping):
        return linked_task(event) in tasks
    return not event.get("message") and str(event["chat"]) in chats


def place(event: Mapping[str, Any], answers: Answers) -> Place | None:
    """Returns what feedback is about. An action that names no answer is about the task that it has just
    ended; if that one was not recorded, an older task of the chat must not pay for it."""
    since = float(event.get("at", 0.0)) - ENDED_SECONDS if is_action(event) else 0.0
    return answers.find(str(event["chat"]), str(event.get("message") or ""), since=since)


def document(event: Mapping[str, Any], where: Place) -> dict[str, Any] | None:
    """Returns the content of the vote; None for a message that is a new task, and no word about the last
    one."""
    said = {name: value for name, value in event["said"].items() if value is not None}
    if said["signal"] == signals.MESSAGE:
        meant = signals.of_message(str(said.pop("comment", "")))
        if meant is None:
            return None
        said["signal"] = meant
    said |= {"session_id": where.session_id, "trajectory_id": where.trajectory_id}
    if where.turn_id is not None:
        said["turn_id"] = where.turn_id
    return said
