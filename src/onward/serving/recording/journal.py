"""The journal of open conversations, which a killed gateway would otherwise lose.

It holds the redacted trajectory that each open conversation would be if it ended now, and never any text that
was not redacted. It is written in the background, so that no answer waits for a disk. An entry is removed
only after its trajectory is in the outbox.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from onward.errors import BusError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS open (trajectory_id TEXT PRIMARY KEY, document BLOB NOT NULL);
"""


class Journal:
    """One SQLite file, mode 0600. Any thread may call; durable on return."""

    def __init__(self, path: Path) -> None:
        """Raises BusError for a file that is no journal or cannot be made."""
        self._path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._file = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=FULL")
            self._file.execute("PRAGMA secure_delete=ON")
            self._file.executescript(_SCHEMA)
        except OSError as error:
            raise BusError(
                f"The journal {path} cannot be made ({error.strerror}): give a path that can be written."
            ) from None
        except sqlite3.Error as error:
            raise BusError(f"{path} is not a usable journal ({error}): move it away and restart.") from None

    def write(self, changed: Mapping[str, Mapping[str, Any]], gone: Iterable[str]) -> None:
        """Stores these documents under their ids and deletes the ids in ``gone``, all or nothing.

        Raises BusError if the file cannot be written.
        """
        rows = [
            (name, json.dumps(document, separators=(",", ":"), ensure_ascii=False))
            for name, document in changed.items()
        ]
        with self._lock:
            try:
                self._file.execute("BEGIN IMMEDIATE")
                self._file.executemany("INSERT OR REPLACE INTO open VALUES (?, ?)", rows)
                self._file.executemany("DELETE FROM open WHERE trajectory_id = ?", [(name,) for name in gone])
                self._file.execute("COMMIT")
            except sqlite3.Error as error:
                if self._file.in_transaction:
                    with suppress(sqlite3.Error):
                        self._file.execute("ROLLBACK")
                raise BusError(f"The journal {self._path} cannot be written ({error}).") from None

    def read(self) -> list[dict[str, Any]]:
        """Returns the documents of an earlier gateway. Raises BusError if the file cannot be read."""
        try:
            with self._lock:
                rows = self._file.execute("SELECT document FROM open ORDER BY rowid").fetchall()
        except sqlite3.Error as error:
            raise BusError(f"{self._path} is not readable ({error}): move it away and restart.") from None
        return [json.loads(row[0]) for row in rows]

    def close(self) -> None:
        with self._lock:
            self._file.close()
