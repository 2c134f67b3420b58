"""Rows that this process has just stored, for a role that would otherwise query the warehouse for them.

Invariants: this cache only saves a query. A row that is missing here is queried, so the cache may drop
anything. A row is put here after its insert is durable, never before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MAX_BYTES = 32 << 20
"""Limit on the bytes of payloads; the oldest rows are dropped first."""


class RecentRows:
    """Rows of ``trajectories`` by id, for one event loop."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._rows: dict[str, dict[str, Any]] = {}

    def put(self, rows: Iterable[dict[str, Any]]) -> None:
        """Adds rows. The newest row of an id replaces an older one, as in the warehouse's view."""
        for row in rows:
            name = row["trajectory_id"]
            old = self._rows.get(name)
            if old is not None and old["stream_seq"] > row["stream_seq"]:
                continue
            self._forget(name)
            self._rows[name] = row
            self._bytes += len(row["payload"])
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._rows)))

    def pop(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Returns id → row for the known ids, and drops these rows: a second caller queries the warehouse."""
        taken = {name: row for name in ids if (row := self._rows.get(name)) is not None}
        for name in taken:
            self._forget(name)
        return taken

    def _forget(self, name: str) -> None:
        row = self._rows.pop(name, None)
        if row is not None:
            self._bytes -= len(row["payload"])
