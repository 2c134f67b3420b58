"""Work that the models of a comparison were trained on, so that recorded tasks do not ask it again. Pure.

A recorded task counts as trained on if its trajectory, its task id or its question is among that work. What
is not known about a model is named in ``unknown`` and never taken for nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Match = Literal["trajectory", "task", "question"]
"""Part that a recorded task shares with the work that was trained on."""
_HEX = 32
"""Hexadecimal digits of a question's digest that are kept."""


@dataclass(frozen=True)
class TrainedOn:
    """Ids of trajectories, ids of tasks and digests of questions."""

    trajectories: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    questions: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    """One sentence for each part of the work that is not known."""

    def match(self, trajectory_id: str, task_id: str | None, asked: str) -> Match | None:
        """Returns the first match of a recorded task; ``asked`` is the digest of its question."""
        if trajectory_id in self.trajectories:
            return "trajectory"
        if task_id and task_id in self.tasks:
            return "task"
        return "question" if asked in self.questions else None


def normal(text: str) -> str:
    """Returns ``text`` for a comparison: lower case, single spaces, no punctuation at the ends."""
    return " ".join(text.casefold().split()).strip(" .,!?;:\"'`*")


def question(messages: Sequence[Mapping[str, Any]]) -> str:
    """Returns the digest of a task's first request: the messages of the user before the first answer,
    normalised. A system message takes no part, since many have the time of day in them."""
    said: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            break
        if message["role"] == "user":
            said.append(normal(str(message.get("content") or "")))
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:_HEX]
