"""Tasks that were put aside, since the worker ended or hung on each of them or could not handle it: sealed,
counted, and tried again on request.

Invariants: their lines are not redacted, so they are written only encrypted. A task stays in the folder until
it is recorded: a try that ends the worker once more loses nothing, and is not repeated by itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from onward.capture.recorder.sealed_tasks import Held, HeldTasks
from onward.files import read_json, write_whole

NAME = "failed"
"""The folder is ``failed.held``, its key ``failed.key``."""
REASON = "ends_worker"
VOTE = "vote"
"""Reason in the facts of a vote, which is tried after all tasks: it may be about one of them."""


class FailedTasks:
    """The folder below the plugin's data, and the list of those that shall be tried again."""

    def __init__(self, data: Path, max_bytes: int = 1 << 30) -> None:
        self._held = HeldTasks(data / NAME, max_bytes)
        self._again = data / f"{NAME}.again"

    def put(self, name: str, lines: list[str], reason: str, now: datetime) -> None:
        """Seals the lines of a task, in place of those from before. Raises OnwardError."""
        kind = VOTE if lines and lines[0].startswith('{"op":"feedback"') else REASON
        self._held.hold({"trajectory_id": name, "lines": lines}, kind, reason, now)

    def count(self) -> int:
        """Returns their number. Raises ObjectError."""
        return len(self._held.names())

    def has(self, name: str) -> bool:
        """Raises ObjectError."""
        return name in self._held.names()

    def all(self) -> list[Held]:
        """Returns the facts of each. Raises ObjectError."""
        return self._held.all()

    def drop(self, name: str) -> None:
        """Removes a task that was recorded, or that its user does not want to be stored. Raises OSError."""
        self._held.drop(name)

    def ask_again(self) -> int:
        """Lets the worker try all of them again; returns their number. Raises OSError, ObjectError."""
        names = [held.held_id for held in sorted(self.all(), key=lambda held: held.reason == VOTE)]
        self._save(names)
        return len(names)

    def next_again(self, but: Collection[str] = ()) -> tuple[str, list[Mapping[str, Any]]] | None:
        """Takes one task from that list, and returns its id and events; None if there is none beside ``but``,
        which stay on it. Raises OnwardError, OSError, ValueError for one that cannot be read: it is not on
        the list any more."""
        names = read_json(self._again)
        if not isinstance(names, list):
            return None
        name = next((one for one in names if one not in but), None)
        if name is None:
            return None
        self._save([one for one in names if one != name])
        if not self.has(name):
            return str(name), []
        return str(name), [json.loads(line) for line in self._held.open(str(name))["lines"]]

    def _save(self, names: list[str]) -> None:
        if names:
            write_whole(self._again, json.dumps(names).encode(), 0o600)
        else:
            self._again.unlink(missing_ok=True)
