"""The place where each answer of Agent Zero was recorded, for feedback that comes later.

One SQLite file. It holds ids alone. An entry lives as long as a trajectory in the streams, 30 days.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

DAYS = 30
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    chat TEXT, message TEXT, trajectory_id TEXT, turn_id INTEGER, session_id TEXT, at REAL,
    PRIMARY KEY (chat, message)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_time ON answers (chat, at);
"""


class Place(NamedTuple):
    trajectory_id: str
    turn_id: int | None
    session_id: str


class Answers:
    def __init__(self, path: Path) -> None:
        """Opens or creates the file. Raises sqlite3.Error."""
        self._file = sqlite3.connect(path, isolation_level=None, timeout=10.0)
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.executescript(_SCHEMA)
        path.chmod(0o600)
        self._file.execute("DELETE FROM answers WHERE at < ?", (time.time() - DAYS * 86_400,))

    def add(
        self, chat: str, places: Mapping[str, int], trajectory_id: str, session_id: str, at: float
    ) -> None:
        """Notes the turns of a trajectory's messages, and the trajectory itself without a turn."""
        rows = [(chat, message, trajectory_id, turn, session_id, at) for message, turn in places.items()]
        rows.append((chat, f"task:{trajectory_id}", trajectory_id, None, session_id, at))  # type: ignore[arg-type]
        self._file.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", rows)

    def find(self, chat: str, message: str, *, since: float = 0.0) -> Place | None:
        """Returns where a message was recorded; without one, the latest task of the chat, unless it had ended
        before ``since``."""
        if message:
            where, values = "chat = ? AND message = ?", (chat, message)
        else:
            where, values = "chat = ? AND turn_id IS NULL AND at >= ?", (chat, since)
        row = self._file.execute(
            f"SELECT trajectory_id, turn_id, session_id FROM answers WHERE {where} ORDER BY at DESC LIMIT 1",
            values,
        ).fetchone()
        return None if row is None else Place(*row)

    def ended(self, chat: str, trajectory_id: str) -> float | None:
        """Returns when a task that was recorded had ended; None if it was not."""
        row = self._file.execute(
            "SELECT at FROM answers WHERE chat = ? AND message = ?", (chat, f"task:{trajectory_id}")
        ).fetchone()
        return None if row is None else float(row[0])

    def close(self) -> None:
        self._file.close()
