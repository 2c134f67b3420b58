"""Tasks on which the worker ended or hung again and again, or met an error. They are put aside, so that the
others go on.

The worker notes what it works on in a file, which survives its end. A task that stands there at three ends
of the worker, or at its second hang, is not given to it any more: the next worker gets its lines as one text,
seals it unread, and ``onward agent-zero retry`` gives it one more try. After the first hang the next worker
gets the end of the task after all others.
"""

from __future__ import annotations

import os
from pathlib import Path

ATTEMPTS = 3
"""Ends of the worker on one task after which the task is put aside."""
HANGS = 2
"""Hangs of the worker on one task after which the task is put aside."""
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
    """Knowledge of the feeding thread about tasks that end the worker, or on which it hangs."""

    def __init__(self, data: Path) -> None:
        self._path = data / FILE
        self._ends: dict[str, int] = {}
        self._hangs: dict[str, int] = {}
        self._reasons: dict[str, str] = {}

    def blame(self, code: int | None) -> str:
        """Counts an end of the worker with an exit code, and returns the task that is put aside by it; empty
        if none is."""
        name = self._take_note() if code else ""
        if not code or not name:
            return ""
        self._ends[name] = self._ends.get(name, 0) + 1
        if self._ends[name] != ATTEMPTS:
            return ""
        end = f"signal {-code}" if code < 0 else f"code {code}"
        self._reasons[name] = f"the worker ended with {end} on it {ATTEMPTS} times"
        return name

    def blame_for_hang(self, seconds: float) -> str:
        """Counts a hang of the worker, and returns the task that it worked on; empty if there was none."""
        name = self._take_note()
        if not name or name in self._reasons:  # it hung while it sealed the task: the disk is at fault
            return name
        self._hangs[name] = self._hangs.get(name, 0) + 1
        if self._hangs[name] == HANGS:
            self._reasons[name] = f"the worker made no progress on it for {seconds:g} seconds, {HANGS} times"
        return name

    def is_suspect(self, name: str) -> bool:
        """Returns whether a worker hung on the task."""
        return name in self._hangs

    def _take_note(self) -> str:
        """Returns what the worker that has ended worked on. The note is emptied: a worker that ends before it
        can write one has worked on nothing."""
        try:
            name = self._path.read_bytes()[:_BYTES].decode(errors="replace").strip()
            if name:
                self._path.write_bytes(b"")
        except OSError:
            return ""
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
        self._hangs.pop(name, None)
        self._reasons.pop(name, None)
