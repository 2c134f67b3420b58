"""Finds refused writes in the log of the embedded server.

After one failed write (a full disk, a broken one) nats-server 2.15 refuses every later write to that stream,
also when there is room again, and leaves the publishers without an answer (nats-server#7654). Only its log
shows that, with a line for each refused message.
"""

from __future__ import annotations

import re
from pathlib import Path

_REFUSED = re.compile(
    rb"JetStream failed to store a msg on stream '[^']*?([A-Za-z0-9_-]+)'"
    rb"|Filestore \[([A-Za-z0-9_-]+)\] Critical write error"
)
MAX_READ = 1 << 20
"""Bytes read at once. Older ones are skipped: the newest show whether the store refuses now."""


class ServerLog:
    """Reads what was appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = self._size()

    def refused_writes(self) -> list[str]:
        """Returns the streams that refused a message since the last call, sorted."""
        size = self._size()
        new_file = size < self._at  # the server starts one at 10 MB
        start = max(0 if new_file else self._at, size - MAX_READ)
        self._at = size
        if size == start:
            return []
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                text = file.read(size - start)
        except FileNotFoundError:  # it was renamed a moment ago
            return []
        return sorted({(match[1] or match[2]).decode() for match in _REFUSED.finditer(text)})

    def skip(self) -> None:
        """Leaves out what was appended until now."""
        self._at = self._size()

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0
