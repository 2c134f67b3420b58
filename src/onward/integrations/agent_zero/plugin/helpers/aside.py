"""Tasks on which the worker ended again and again, or met an error. They are put aside, so that the others
go on.

The worker notes what it works on in a file, which survives its end. A task that stands there at three ends of
the worker is not given to it any more: the next worker gets its lines as one text, seals it unread, and
``onward agent-zero retry`` gives it one more try.
"""

from __future__ import annotations

import os
from pathlib import Path

ATTEMPTS = 3
"""Ends of the worker on one task after which the task is put aside."""
FILE = "working"
_BYTES = 200


class Working:
    """The worker's note of what it works on. A failure to write it is ignored: then no task is blamed."""

    def __init__(self, data: Path) -> None:
        try:
            self._file: int | None = os.open(data / FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            self._file = None
        self.note("")

    def note(self, name: str) -> None:
        """Notes the id of a task or vote; empty: nothing."""
        if self._file is None:
            return
        try:
            os.pwrite(self._file, name.encode()[:_BYTES].ljust(_BYTES), 0)
        except OSError:
            pass


class Aside:
    """Knowledge of the feeding thread about tasks that end the worker."""

    def __init__(self, data: Path) -> None:
        self._path = data / FILE
        self._ends: dict[str, int] = {}
        self._reasons: dict[str, str] = {}

    def blame(self, code: int | None) -> str:
        """Counts an end of the worker with an exit code, and returns the task that is put aside by it; empty
        if none is."""
        try:
            name = self._path.read_bytes()[:_BYTES].decode(errors="replace").strip()
        except OSError:
            return ""
        if not name or not code:
            return ""
        self._ends[name] = self._ends.get(name, 0) + 1
        if self._ends[name] != ATTEMPTS:
            return ""
        end = f"signal {-code}" if code < 0 else f"code {code}"
        self._reasons[name] = f"the worker ended with {end} on it {ATTEMPTS} times"
        return name

    def condemn(self, name: str, reason: str) -> None:
        """Has a task put aside for a reason that the worker gave."""
        self._reasons[name] = reason

    def reason(self, name: str) -> str:
        """Returns the reason that a task is put aside; empty if it is not."""
        return self._reasons.get(name, "")

    def is_sealable(self, name: str) -> bool:
        """Returns whether a worker may seal the task. One that ended the worker even so stays in memory."""
        return self._ends.get(name, 0) < 2 * ATTEMPTS

    def forget(self, name: str) -> None:
        self._ends.pop(name, None)
        self._reasons.pop(name, None)
