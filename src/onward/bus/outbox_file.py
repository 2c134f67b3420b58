"""The file of an outbox: its tables, its two connections, and the meaning of SQLite's errors.

Invariants: no error of SQLite leaves this module unchanged, because recorders and drainers survive only the
errors that they know. The writer's commits are fsynced, the remover's are not. No fork happens while SQLite
opens or closes a file, because it holds locks of the whole process then: a child that inherits them locked
would wait without end.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onward.errors import BusError, OnwardError, OutboxFullError
from onward.files import sync_folder
from onward.forks import Gate

_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
"""SQLite's error codes for a full disk or quota, and for a file that may not grow."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS receipts (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  msg_id TEXT NOT NULL UNIQUE,
  sha256 BLOB NOT NULL,
  accepted_at REAL NOT NULL,
  acked_at REAL
);
CREATE TABLE IF NOT EXISTS queue (
  seq INTEGER PRIMARY KEY REFERENCES receipts(seq),
  subject TEXT NOT NULL,
  headers TEXT NOT NULL,
  body BLOB NOT NULL,
  error TEXT
);
CREATE INDEX IF NOT EXISTS waiting ON queue(seq) WHERE error IS NULL;
CREATE INDEX IF NOT EXISTS refused ON queue(seq) WHERE error IS NOT NULL;
CREATE INDEX IF NOT EXISTS acknowledged ON receipts(acked_at) WHERE acked_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS size (one INTEGER PRIMARY KEY CHECK (one = 1), bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO size VALUES (1, 0);
CREATE TRIGGER IF NOT EXISTS grow AFTER INSERT ON queue BEGIN
  UPDATE size SET bytes = bytes + length(NEW.body) + 200;
END;
CREATE TRIGGER IF NOT EXISTS shrink AFTER DELETE ON queue BEGIN
  UPDATE size SET bytes = bytes - length(OLD.body) - 200;
END;
"""


class _Opening(Gate):
    """Gate around opening a file, and a list of connections that were left open.

    The garbage collector would close them in any thread, also during a fork.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left: list[tuple[int, sqlite3.Connection]] = []

    def leave(self, connections: Iterable[sqlite3.Connection]) -> None:
        """Takes over connections. Waits for nothing: the garbage collector calls it."""
        self._left += [(os.getpid(), connection) for connection in connections]

    def close_left(self) -> None:
        """Closes them, except those of a parent, which are not this process's to close."""
        own, this = [], os.getpid()
        while self._left:
            own.append(self._left.pop())
        for pid, connection in own:
            if pid != this:
                self._left.append((pid, connection))
                continue
            with suppress(sqlite3.Error):
                connection.close()

    def before_fork(self) -> None:
        super().before_fork()
        self.close_left()


_OPENING = _Opening()


class OutboxFile:
    """One SQLite file, mode 0600. Any thread may use it; each connection serves one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Raises BusError for a file that is no outbox or cannot be made, OutboxFullError."""
        self._connections: dict[str, sqlite3.Connection] = {}
        self.path = path
        self.locks()
        self._closed = False
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            with _OPENING:
                _OPENING.close_left()
                _ = self.writer, self.remover
            sync_folder(path.parent)
        except OSError as error:
            raise BusError(
                f"The outbox {path} cannot be made ({error.strerror}): give a path that can be written."
            ) from None

    def __del__(self) -> None:
        _OPENING.leave(self._connections.values())

    @property
    def writer(self) -> sqlite3.Connection:
        return self._connection("FULL")

    @property
    def remover(self) -> sqlite3.Connection:
        return self._connection("NORMAL")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yields the connection with durable commits, to one caller at a time; rolls open transactions back.
        Raises OutboxFullError if the disk is full, BusError for any other failure of the file."""
        with self._write_lock, self._errors():
            yield from self._used(self.writer)

    @contextmanager
    def removing(self) -> Iterator[sqlite3.Connection]:
        """Works as ``writing``, for changes that may be repeated after a power cut: no wait for the disk."""
        with self._remove_lock, self._errors():
            yield from self._used(self.remover)

    @staticmethod
    def _used(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        try:
            yield connection
        finally:
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._meant(error, f"The outbox {self.path} cannot be used ({error}).") from None

    def _meant(self, error: sqlite3.Error, otherwise: str) -> OnwardError:
        if is_full_disk(error):
            return OutboxFullError(f"The disk under {self.path} is full: make room; nothing was dropped.")
        return BusError(otherwise)

    def _connection(self, synchronous: str) -> sqlite3.Connection:
        known = self._connections.get(synchronous)
        if known is not None:
            return known
        if self._closed:
            raise BusError(f"The outbox {self.path} is closed: open it again.")
        try:
            connection = sqlite3.connect(
                self.path, timeout=30.0, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # new files only: room goes back to the disk
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")
            # Rare, and by the drainer; by a put only if no one drains: it keeps the disk busy for 10 ms.
            connection.execute(f"PRAGMA wal_autocheckpoint={16000 if synchronous == 'FULL' else 4000}")
            connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            message = f"{self.path} is not a usable outbox ({error}): move it away and restart."
            raise self._meant(error, message) from None
        self._connections[synchronous] = connection
        return connection

    def close(self) -> None:
        with self._write_lock, self._remove_lock:
            self._closed = True
            self._disconnect()

    def hold(self) -> None:
        """Locks and closes the file before a fork; it is unused until ``release`` and then opened again."""
        self._write_lock.acquire()
        self._remove_lock.acquire()
        self._disconnect()

    def release(self) -> None:
        self._remove_lock.release()
        self._write_lock.release()

    def locks(self) -> None:
        """Creates the locks; in a forked child new ones, since the old ones would never be released."""
        self._write_lock, self._remove_lock = threading.RLock(), threading.RLock()

    def _disconnect(self) -> None:
        for connection in self._connections.values():
            with suppress(sqlite3.Error):
                connection.close()
        self._connections.clear()


def is_full_disk(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", None) in _DISK
