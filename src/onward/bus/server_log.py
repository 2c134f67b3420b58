"""What the log of the embedded server says about its store.

After one failed write (a full disk, a broken one) nats-server 2.15 refuses every later write to that stream,
also when there is room again, and leaves the publishers without an answer (nats-server#7654). Only its log
shows that, with a line for each refused message.
"""

from __future__ import annotations

import re
from pathlib import Path

_REFUSED = re.compile(
    rb"JetStream failed to store a msg on stream '[^']*?([A-Za-z0-9_-]+)'|Critical write error"
)
MAX_READ = 1 << 20
"""Bytes read at once. Older ones are skipped: the newest show whether the store refuses now."""


class ServerLog:
    """Reads what was appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = self._size()

    def refused_writes(self) -> list[str] | None:
        """Returns the streams that refused a message since the last call, sorted; None if there was none."""
        size = self._size()
        start = max(
            0 if size < self._at else self._at, size - MAX_READ
        )  # the server starts a new file at 10 MB
        self._at = size
        if size == start:
            return None
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                found = list(_REFUSED.finditer(file.read(size - start)))
        except FileNotFoundError:  # it was renamed a moment ago
            return None
        return sorted({match[1].decode() for match in found if match[1]}) if found else None

    def skip(self) -> None:
        """Leaves out what was appended until now."""
        self._at = self._size()

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0
