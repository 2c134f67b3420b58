"""The view that a rubric has of a trajectory: task, final answer, and files that tools wrote. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from onward.contracts import Trajectory
from onward.reward.measures import facts

_PATHS = ("path", "file_path", "filename", "file")
_CONTENTS = ("content", "file_text", "text", "data")


@dataclass(frozen=True)
class Subject:
    """A trajectory, as rules read it."""

    task_id: str
    instructions: str
    kinds: frozenset[str]
    """Task type and domain."""
    answer: str
    """Final answer; empty if there was none."""
    files: dict[str, str]
    """File → its last text."""

    def artefact(self) -> dict[str, Any]:
        """Returns the JSON value that code rules and judge rules of a free rubric get. ``data`` is the answer
        if it is JSON, else None."""
        try:
            data = json.loads(self.answer)
        except (ValueError, RecursionError):
            data = None
        return {
            "task_id": self.task_id,
            "instructions": self.instructions,
            "answer": self.answer,
            "data": data,
            "files": self.files,
        }


def subject_of(trajectory: Trajectory) -> Subject:
    """Returns what rules see of ``trajectory``."""
    last, task = facts.last_turn(trajectory), trajectory.task_context
    answer = facts.answer_text(last) if facts.is_final_response(last) else None
    kinds = frozenset(kind for kind in (task.task_type, task.domain) if kind)
    return Subject(task.task_id, task.instructions, kinds, answer or "", _files(trajectory))


def _files(trajectory: Trajectory) -> dict[str, str]:
    found: dict[str, str] = {}
    for turn in trajectory.turns:
        arguments = turn.action.tool_args or {}
        if turn.action.type != "tool_call" or not turn.result.success:
            continue
        path = next((arguments[key] for key in _PATHS if isinstance(arguments.get(key), str)), None)
        text = next((arguments[key] for key in _CONTENTS if isinstance(arguments.get(key), str)), None)
        if path is not None and text is not None:
            found[path] = text
    return found
