"""The outbox: what a producer hands over is on disk before it goes on, whatever the network does.

Know before changing: ``put`` returns after an fsync (WAL, synchronous=FULL); a message leaves only after
the server's PubAck. Removal is not fsynced: after a power cut a message may be published twice, which
ids sort out, and never zero times. Ids of everything ever accepted stay as receipts.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import BusError, ConflictError, OutboxFullError
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.bus.connection import Bus

log = logs.get("outbox")

OVERHEAD = 200
"""Bytes counted for a message beyond its body."""
_BATCH = 64

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
CREATE TABLE IF NOT EXISTS size (one INTEGER PRIMARY KEY CHECK (one = 1), bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO size VALUES (1, 0);
CREATE TRIGGER IF NOT EXISTS grow AFTER INSERT ON queue BEGIN
  UPDATE size SET bytes = bytes + length(NEW.body) + 200;
END;
CREATE TRIGGER IF NOT EXISTS shrink AFTER DELETE ON queue BEGIN
  UPDATE size SET bytes = bytes - length(OLD.body) - 200;
END;
"""


@dataclass(frozen=True)
class Receipt:
    msg_id: str
    accepted_at: float
    """Unix seconds."""
    acked_at: float | None
    """Unix seconds of the server's PubAck; None while it waits."""


@dataclass(frozen=True)
class Refused:
    """A message that the server will never take as it is. It stays in the outbox."""

    msg_id: str
    subject: str
    size: int
    error: str


class Outbox:
    """A durable queue in one SQLite file (mode 0600). Any thread may ``put``; one drainer at a time."""

    def __init__(self, path: Path | str, max_bytes: int = 1 << 30) -> None:
        """``max_bytes`` bounds what waits, bodies plus 200 bytes each."""
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        self._lock = threading.Lock()
        self._writer = self._connect("FULL")
        self._remover_lock = threading.Lock()
        self._remover = self._connect("NORMAL")
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _connect(self, synchronous: str) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.path, timeout=30.0, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")
            connection.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise BusError(
                f"{self.path} is not a usable outbox ({error}): move it away and restart."
            ) from None
        return connection

    def put(self, subject: str, data: bytes, msg_id: str, headers: Mapping[str, str] | None = None) -> None:
        """Accept one message; durable on return. The same id with the same body is accepted once.

        Blocks for one fsync (a fraction of a millisecond on an SSD); async code calls it in a thread.

        Raises OutboxFullError (nothing was dropped), ConflictError for the same id with another body.
        """
        digest = hashlib.sha256(subject.encode() + b"\0" + data).digest()
        encoded = json.dumps(dict(headers or {}))
        with self._lock:
            try:
                self._insert(subject, data, msg_id, digest, encoded)
            except sqlite3.OperationalError as error:
                self._rollback()
                if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    raise OutboxFullError(
                        f"The disk under {self.path} is full: make room; nothing was dropped."
                    ) from None
                raise BusError(f"The outbox {self.path} cannot be written ({error}).") from None
            except BaseException:
                self._rollback()
                raise
        self._wake()

    def _insert(self, subject: str, data: bytes, msg_id: str, digest: bytes, headers: str) -> None:
        self._writer.execute("BEGIN IMMEDIATE")
        row = self._writer.execute("SELECT sha256 FROM receipts WHERE msg_id = ?", (msg_id,)).fetchone()
        if row is not None:
            self._writer.execute("ROLLBACK")
            if row[0] != digest:
                raise ConflictError(f"Message id {msg_id!r} was used for another body: give each its own id.")
            return
        (waiting,) = self._writer.execute("SELECT bytes FROM size").fetchone()
        if waiting + len(data) + OVERHEAD > self.max_bytes:
            raise OutboxFullError(
                f"The outbox {self.path} holds {waiting} of {self.max_bytes} bytes: "
                f"is NATS reachable? Nothing was dropped; give it again later."
            )
        cursor = self._writer.execute(
            "INSERT INTO receipts (msg_id, sha256, accepted_at) VALUES (?, ?, ?)",
            (msg_id, digest, time.time()),
        )
        self._writer.execute(
            "INSERT INTO queue (seq, subject, headers, body) VALUES (?, ?, ?, ?)",
            (cursor.lastrowid, subject, headers, data),
        )
        self._writer.execute("COMMIT")

    def _rollback(self) -> None:
        if self._writer.in_transaction:
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")

    def pending(self) -> int:
        """Messages that wait for a PubAck; refused ones are not counted."""
        with self._lock:
            return self._writer.execute("SELECT count(*) FROM queue WHERE error IS NULL").fetchone()[0]

    def refused(self) -> list[Refused]:
        """Messages that the server will never take (too large …), kept with the reason."""
        with self._lock:
            rows = self._writer.execute(
                "SELECT msg_id, subject, length(body), error FROM queue JOIN receipts USING (seq) "
                "WHERE error IS NOT NULL ORDER BY seq"
            ).fetchall()
        return [Refused(*row) for row in rows]

    def receipts(self) -> Iterator[Receipt]:
        """Everything ever accepted, in order."""
        last = 0
        while True:
            with self._lock:
                rows = self._writer.execute(
                    "SELECT seq, msg_id, accepted_at, acked_at FROM receipts "
                    "WHERE seq > ? ORDER BY seq LIMIT 1000",
                    (last,),
                ).fetchall()
            if not rows:
                return
            for seq, msg_id, accepted_at, acked_at in rows:
                last = seq
                yield Receipt(msg_id, accepted_at, acked_at)

    async def drain(self, bus: Bus, *, once: bool = False) -> int:
        """Publish what waits, in order, and remove it after its PubAck.

        ``once`` returns when nothing waits; otherwise it goes on until cancelled. Returns the number
        published. Dying at any point repeats at most the last 64 messages under their old ids. A
        second drainer of the same file waits for the first.
        """
        from onward.bus.connection import PublishRejectedError

        lock = os.open(self.path.with_name(self.path.name + ".drain"), os.O_RDWR | os.O_CREAT, 0o600)
        self._waiting = (asyncio.get_running_loop(), asyncio.Event())
        published = 0
        try:
            await self._become_drainer(lock, bus)
            while True:
                rows = await asyncio.to_thread(self._waiting_rows)
                if not rows:
                    if once:
                        return published
                    await self._wait_for_more(bus)
                    continue
                done: list[int] = []
                try:
                    for seq, msg_id, subject, headers, body in rows:
                        try:
                            await bus.publish(subject, body, msg_id=msg_id, headers=json.loads(headers))
                        except PublishRejectedError as error:
                            log.error("a message was refused and stays in the outbox", reason=str(error))
                            self._mark(seq, str(error))
                            continue
                        done.append(seq)
                finally:
                    self._remove(done)
                    published += len(done)
        finally:
            self._waiting = None
            os.close(lock)

    async def _become_drainer(self, lock: int, bus: Bus) -> None:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                await bus.clock.sleep(0.2)

    async def _wait_for_more(self, bus: Bus) -> None:
        assert self._waiting is not None
        event = self._waiting[1]
        timer = asyncio.ensure_future(bus.clock.sleep(0.25))
        waiter = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({timer, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waiter.cancel()
            event.clear()

    def _wake(self) -> None:
        waiting = self._waiting
        if waiting is not None:
            with suppress(RuntimeError):  # the drainer's loop has just ended
                waiting[0].call_soon_threadsafe(waiting[1].set)

    def _waiting_rows(self) -> list[tuple[int, str, str, str, bytes]]:
        with self._remover_lock:
            return self._remover.execute(
                "SELECT seq, msg_id, subject, headers, body FROM queue JOIN receipts USING (seq) "
                "WHERE error IS NULL ORDER BY seq LIMIT ?",
                (_BATCH,),
            ).fetchall()

    def _remove(self, sequences: list[int]) -> None:
        if not sequences:
            return
        now = time.time()
        with self._remover_lock:
            self._remover.execute("BEGIN IMMEDIATE")
            self._remover.executemany(
                "UPDATE receipts SET acked_at = ? WHERE seq = ?", [(now, seq) for seq in sequences]
            )
            self._remover.executemany("DELETE FROM queue WHERE seq = ?", [(seq,) for seq in sequences])
            self._remover.execute("COMMIT")

    def _mark(self, seq: int, error: str) -> None:
        with self._remover_lock:
            self._remover.execute("UPDATE queue SET error = ? WHERE seq = ?", (error, seq))

    def close(self) -> None:
        """Close the file. What waits is sent by the next one who drains it."""
        with self._lock:
            self._writer.close()
        with self._remover_lock:
            self._remover.close()
