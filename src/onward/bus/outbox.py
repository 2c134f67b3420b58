"""The outbox: what a producer hands over is on disk before it goes on, whatever the network does.

Know before changing: ``put`` returns after an fsync (WAL, synchronous=FULL); a message leaves only after
the server's PubAck. Removal is not fsynced: after a power cut a message may be published twice, which
ids sort out, and never zero times. SQLite must not be carried over a fork, so it is closed before one.
Every method raises OutboxFullError for a full disk and BusError for whatever else the file does.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onward.bus.outbox_file import OutboxFile, is_full_disk
from onward.errors import ConflictError, OutboxFullError
from onward.forks import Forking, follow
from onward.telemetry.crashpoints import crashpoint

if TYPE_CHECKING:
    from onward.bus.connection import Bus

OVERHEAD = 200
"""Bytes counted for a message beyond its body."""
BATCH_MESSAGES = 64
BATCH_BYTES = 4 << 20
"""What a drainer holds in memory at a time; one larger message makes a batch of its own."""
RECEIPT_SECONDS = 30 * 86_400.0
"""Receipts are kept this long after the PubAck: as long as the streams keep the message."""
RECEIPTS_AT_A_TIME = 1000
"""Old receipts that are forgotten in one go: whoever records waits no longer than that."""


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


@dataclass(frozen=True)
class Waiting:
    """A message on its way out."""

    seq: int
    msg_id: str
    subject: str
    headers: dict[str, str]
    body: bytes


Send = Callable[[Waiting], Awaitable[object]]
"""Returns after the PubAck. Raises PublishRejectedError (never again as it is) or ObjectError (later)."""


class Outbox(Forking):
    """A durable queue in one SQLite file (mode 0600). Any thread and process may ``put``; one drains."""

    def __init__(self, path: Path | str, max_bytes: int = 1 << 30) -> None:
        """``max_bytes`` bounds what waits, bodies plus 200 bytes each. Raises BusError for a file that is
        no outbox or cannot be made."""
        self.path = Path(path)
        self.max_bytes = max_bytes
        self._file = OutboxFile(self.path)
        self._wake: Callable[[], None] | None = None
        self._turns: set[int] = set()
        follow(self)

    @property
    def _writer(self) -> sqlite3.Connection:
        return self._file.writer

    @property
    def _remover(self) -> sqlite3.Connection:
        return self._file.remover

    def put(
        self,
        subject: str,
        data: bytes,
        msg_id: str,
        headers: Mapping[str, str] | None = None,
        *,
        same: bytes | None = None,
    ) -> None:
        """Accept one message; durable on return. The same id with the same body is accepted once.

        ``same`` is what makes a body the same, where it also holds what changes from try to try, such as its
        time. Blocks for one fsync (a fraction of a millisecond on an SSD); async code calls it in a thread.

        Raises OutboxFullError (the byte limit or the disk; nothing was dropped), ConflictError for the same
        id with another body, BusError when the file cannot be used.
        """
        digest = hashlib.sha256(subject.encode() + b"\0" + (data if same is None else same)).digest()
        encoded = json.dumps(dict(headers or {}))
        with self._file.writing() as writer:
            self._insert(writer, subject, data, msg_id, digest, encoded)
        crashpoint("outbox.committed")
        if self._wake is not None:
            self._wake()

    def _insert(
        self,
        writer: sqlite3.Connection,
        subject: str,
        data: bytes,
        msg_id: str,
        digest: bytes,
        headers: str,
    ) -> None:
        writer.execute("BEGIN IMMEDIATE")
        row = writer.execute("SELECT sha256 FROM receipts WHERE msg_id = ?", (msg_id,)).fetchone()
        if row is not None:
            if row[0] != digest:
                raise ConflictError(f"Message id {msg_id!r} was used for another body: give each its own id.")
            return
        (waiting,) = writer.execute("SELECT bytes FROM size").fetchone()
        if waiting + len(data) + OVERHEAD > self.max_bytes:
            raise OutboxFullError(
                f"The outbox {self.path} holds {waiting} of {self.max_bytes} bytes: "
                f"is NATS reachable? Nothing was dropped; give it again later."
            )
        cursor = writer.execute(
            "INSERT INTO receipts (msg_id, sha256, accepted_at) VALUES (?, ?, ?)",
            (msg_id, digest, time.time()),
        )
        writer.execute(
            "INSERT INTO queue (seq, subject, headers, body) VALUES (?, ?, ?, ?)",
            (cursor.lastrowid, subject, headers, data),
        )
        writer.execute("COMMIT")

    def pending(self) -> int:
        """Messages that wait for a PubAck; refused ones are not counted."""
        with self._file.writing() as file:
            return file.execute("SELECT count(*) FROM queue WHERE error IS NULL").fetchone()[0]

    def waiting_bytes(self) -> int:
        """What counts against ``max_bytes`` now."""
        with self._file.writing() as file:
            return file.execute("SELECT bytes FROM size").fetchone()[0]

    def refused(self) -> list[Refused]:
        """Messages that the server will never take (too large …), kept with the reason."""
        with self._file.writing() as file:
            rows = file.execute(
                "SELECT msg_id, subject, length(body), error FROM queue JOIN receipts USING (seq) "
                "WHERE error IS NOT NULL ORDER BY seq"
            ).fetchall()
        return [Refused(*row) for row in rows]

    def retry_refused(self) -> int:
        """Let refused messages wait again, for what refused them may have been set right. How many."""
        with self._file.writing() as file:
            return file.execute("UPDATE queue SET error = NULL WHERE error IS NOT NULL").rowcount

    def receipts(self) -> Iterator[Receipt]:
        """What was accepted, in order: all that waits, and the last 30 days of what was acknowledged."""
        last = 0
        while True:
            with self._file.writing() as file:
                rows = file.execute(
                    "SELECT seq, msg_id, accepted_at, acked_at FROM receipts "
                    "WHERE seq > ? ORDER BY seq LIMIT 1000",
                    (last,),
                ).fetchall()
            if not rows:
                return
            for seq, msg_id, accepted_at, acked_at in rows:
                last = seq
                yield Receipt(msg_id, accepted_at, acked_at)

    async def drain(self, bus: Bus, *, once: bool = False, send: Send | None = None) -> int:
        """Publish what waits, in order, and remove it after its PubAck.

        ``once`` returns when nothing waits; otherwise it goes on until cancelled. ``send`` publishes one
        message in place of ``bus.publish``. Returns the number published. Dying at any point repeats at
        most the last 64 messages under their old ids. A second drainer of the same file waits for the first.
        """
        from onward.bus.draining import drain

        return await drain(self, bus, once=once, send=send)

    def take_turn(self, lock: int) -> bool:
        """Whether the caller is the one drainer now; it gives ``lock`` back with ``end_turn``."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def open_turn(self) -> int:
        lock = os.open(self.path.with_name(self.path.name + ".drain"), os.O_RDWR | os.O_CREAT, 0o600)
        self._turns.add(lock)
        return lock

    def end_turn(self, lock: int) -> None:
        if lock in self._turns:
            self._turns.discard(lock)
            os.close(lock)

    def wake_with(self, wake: Callable[[], None] | None) -> None:
        """``wake`` is called, from any thread, after each new message."""
        self._wake = wake

    def next_batch(self, skip: Collection[int] = ()) -> list[Waiting]:
        """The oldest that wait, but for ``skip``: at most 64, and 4 MiB unless one alone is larger."""
        batch: list[Waiting] = []
        size = 0
        with self._file.removing() as file:
            cursor = file.execute(
                "SELECT seq, msg_id, subject, headers, length(body) FROM queue JOIN receipts USING (seq) "
                "WHERE error IS NULL ORDER BY seq LIMIT ?",
                (BATCH_MESSAGES + len(skip),),
            )
            for seq, msg_id, subject, headers, length in cursor.fetchall():
                if seq in skip:
                    continue
                size += length
                if batch and (size > BATCH_BYTES or len(batch) == BATCH_MESSAGES):
                    break
                (body,) = file.execute("SELECT body FROM queue WHERE seq = ?", (seq,)).fetchone()
                batch.append(Waiting(seq, msg_id, subject, json.loads(headers), body))
        return batch

    def remove(self, sequences: list[int]) -> None:
        """Take acknowledged messages out; their receipts get the time. All or nothing."""
        if not sequences:
            return
        with self._file.removing() as file:
            try:
                _delete(file, sequences)
            except sqlite3.Error as error:
                if not is_full_disk(error):
                    raise
                # On a full disk even a removal needs room in the log: make some out of what is done.
                if file.in_transaction:
                    file.execute("ROLLBACK")
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                _delete(file, sequences)
            crashpoint("outbox.removed")

    def mark(self, seq: int, error: str) -> None:
        """Keep a refused message, with the reason; it does not wait any more."""
        with self._file.removing() as file:
            file.execute("UPDATE queue SET error = ? WHERE seq = ?", (error, seq))

    def forget_old_receipts(self) -> int:
        """Forget the oldest receipts that were kept long enough, at most 1000; how many it was."""
        with self._file.removing() as file:
            return file.execute(
                "DELETE FROM receipts WHERE seq IN "
                "(SELECT seq FROM receipts WHERE acked_at < ? ORDER BY acked_at LIMIT ?)",
                (time.time() - RECEIPT_SECONDS, RECEIPTS_AT_A_TIME),
            ).rowcount

    def give_room_back(self) -> None:
        """After an outage the file is as large as it ever was: shrink it a little at a time."""
        with self._file.removing() as file:
            (free,) = file.execute("PRAGMA freelist_count").fetchone()
            if free > 2048:
                file.executescript("PRAGMA incremental_vacuum(1024)")  # execute() does one page

    def close(self) -> None:
        """Close the file. What waits is sent by the next one who drains it."""
        self._file.close()

    def before_fork(self) -> None:
        self._file.hold()

    def after_fork(self) -> None:
        self._file.release()

    def after_fork_in_child(self) -> None:
        self._file.locks()
        self._wake = None
        for lock in tuple(self._turns):  # or the parent's turn as the drainer would outlive the parent
            self.end_turn(lock)


def _delete(file: sqlite3.Connection, sequences: list[int]) -> None:
    now = time.time()
    file.execute("BEGIN IMMEDIATE")
    file.executemany("UPDATE receipts SET acked_at = ? WHERE seq = ?", [(now, seq) for seq in sequences])
    file.executemany("DELETE FROM queue WHERE seq = ?", [(seq,) for seq in sequences])
    file.execute("COMMIT")
