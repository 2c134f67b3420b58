"""The outbox: a message is on disk before its producer goes on, whatever the network does.

Invariants: ``put`` returns after an fsync (WAL, synchronous=FULL); a message leaves only after the server's
PubAck. Removal is not fsynced: after a power cut a message may be published twice, which its id reveals, but
never zero times. SQLite must not be carried over a fork, so it is closed before one. Every method raises
OutboxFullError for a full disk and BusError for any other failure of the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from onward.bus.outbox_file import OutboxFile, is_full_disk
from onward.errors import ConflictError, OutboxFullError
from onward.forks import Forking, register_fork_hooks
from onward.telemetry.crashpoints import crashpoint

if TYPE_CHECKING:
    from onward.bus.connection import Bus

OVERHEAD = 200
"""Bytes counted for a message beyond its body."""
BATCH_MESSAGES = 64
BATCH_BYTES = 4 << 20
"""Bytes that a drainer loads into memory at a time; one larger message is a batch by itself."""
RECEIPT_SECONDS = 30 * 86_400.0
"""Seconds that receipts are stored after the PubAck: as long as the streams keep the message."""
RECEIPTS_AT_A_TIME = 1000
"""Old receipts that are deleted in one go: a recording process waits no longer than that."""


@dataclass(frozen=True)
class Receipt:
    msg_id: str
    accepted_at: float
    """Unix seconds."""
    acked_at: float | None
    """Unix seconds of the server's PubAck; None while it waits."""


@dataclass(frozen=True)
class Refused:
    """A message that the server will never accept as it is. It stays in the outbox."""

    msg_id: str
    subject: str
    size: int
    error: str


@dataclass(frozen=True)
class Outgoing:
    """A message to be accepted; ``Outbox.put`` has the meaning of its parts."""

    subject: str
    data: bytes
    msg_id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    same: bytes | None = None


@dataclass(frozen=True)
class Waiting:
    """A message that waits to be published."""

    seq: int
    msg_id: str
    subject: str
    headers: dict[str, str]
    body: bytes


Send = Callable[[Waiting], Awaitable[object]]
"""Publisher of one message; it returns after the PubAck. Raises PublishRejectedError (never accepted as it
is) or ObjectError (try later)."""


class Outbox(Forking):
    """A durable queue in one SQLite file (mode 0600). Any thread and process may ``put``; one drains."""

    def __init__(self, path: Path | str, max_bytes: int = 1 << 30) -> None:
        """Opens or creates the file. ``max_bytes`` bounds the waiting messages, bodies plus 200 bytes each.
        Raises BusError for a file that is not an outbox or cannot be created."""
        self.path = Path(path)
        self.max_bytes = max_bytes
        self._file = OutboxFile(self.path)
        self._wake: Callable[[], None] | None = None
        self._turns: set[int] = set()
        register_fork_hooks(self)

    def put(
        self,
        subject: str,
        data: bytes,
        msg_id: str,
        headers: Mapping[str, str] | None = None,
        *,
        same: bytes | None = None,
    ) -> None:
        """Accepts one message; durable on return. The same id with the same body is accepted once.

        ``same`` replaces the body in that comparison, if the body also holds parts that change from try to
        try, such as its time. Blocks for one fsync (a fraction of a millisecond on an SSD); async code calls
        it in a thread.

        Raises OutboxFullError (the byte limit or the disk; nothing was dropped), ConflictError for the same
        id with another body, BusError if the file cannot be used.
        """
        self.put_all([Outgoing(subject, data, msg_id, headers or {}, same)])

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        """Accepts these messages with one fsync, all or none; see ``put`` for each of them."""
        if not messages:
            return
        with self._file.writing() as writer:
            writer.execute("BEGIN IMMEDIATE")
            for message in messages:
                self._insert(writer, message)
            writer.execute("COMMIT")
        crashpoint("outbox.committed")
        if self._wake is not None:
            self._wake()

    def _insert(self, writer: sqlite3.Connection, message: Outgoing) -> None:
        compared = message.data if message.same is None else message.same
        digest = hashlib.sha256(message.subject.encode() + b"\0" + compared).digest()
        row = writer.execute("SELECT sha256 FROM receipts WHERE msg_id = ?", (message.msg_id,)).fetchone()
        if row is not None:
            if row[0] != digest:
                raise ConflictError(
                    f"Message id {message.msg_id!r} was used for another body: give each its own id."
                )
            return
        (waiting,) = writer.execute("SELECT bytes FROM size").fetchone()
        if waiting + len(message.data) + OVERHEAD > self.max_bytes:
            raise OutboxFullError(
                f"The outbox {self.path} holds {waiting} of {self.max_bytes} bytes: "
                f"is NATS reachable? Nothing was dropped; give it again later."
            )
        cursor = writer.execute(
            "INSERT INTO receipts (msg_id, sha256, accepted_at) VALUES (?, ?, ?)",
            (message.msg_id, digest, time.time()),
        )
        writer.execute(
            "INSERT INTO queue (seq, subject, headers, body) VALUES (?, ?, ?, ?)",
            (cursor.lastrowid, message.subject, json.dumps(dict(message.headers)), message.data),
        )

    def pending(self) -> int:
        """Returns the number of messages that wait for a PubAck; refused ones are not counted."""
        with self._file.writing() as file:
            return file.execute("SELECT count(*) FROM queue WHERE error IS NULL").fetchone()[0]

    def waiting_bytes(self) -> int:
        """Returns the bytes that count against ``max_bytes`` now."""
        with self._file.writing() as file:
            return file.execute("SELECT bytes FROM size").fetchone()[0]

    def refused(self) -> list[Refused]:
        """Returns the messages that the server will never accept (too large …), with the reason."""
        with self._file.writing() as file:
            rows = file.execute(
                "SELECT msg_id, subject, length(body), error FROM queue JOIN receipts USING (seq) "
                "WHERE error IS NOT NULL ORDER BY seq"
            ).fetchall()
        return [Refused(*row) for row in rows]

    def retry_refused(self) -> int:
        """Queues refused messages again, because the cause may be fixed by now. Returns their number."""
        with self._file.writing() as file:
            return file.execute("UPDATE queue SET error = NULL WHERE error IS NOT NULL").rowcount

    def has_accepted(self, msg_id: str) -> bool:
        """Returns whether a message with this id was accepted, and waits or was published in the last 30
        days."""
        with self._file.writing() as file:
            row = file.execute("SELECT 1 FROM receipts WHERE msg_id = ?", (msg_id,)).fetchone()
        return row is not None

    def receipts(self) -> Iterator[Receipt]:
        """Yields accepted messages in order: all that wait, and those acknowledged in the last 30 days."""
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
        """Publishes waiting messages in order, and removes each after its PubAck. One that has to be
        published again may come after later ones.

        ``once`` returns when nothing waits; otherwise it goes on until cancelled. ``send`` publishes one
        message in place of ``bus.publish``. Returns the number published. A crash at any point repeats at
        most the last 64 messages under their old ids. A second drainer of the same file waits for the first.
        """
        from onward.bus.draining import drain

        return await drain(self, bus, once=once, send=send)

    def take_turn(self, lock: int) -> bool:
        """Returns whether the caller is the one drainer now; it releases ``lock`` with ``end_turn``."""
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
        """Sets the callback ``wake``, called from any thread after each new message."""
        self._wake = wake

    def next_batch(self, skip: Collection[int] = ()) -> list[Waiting]:
        """Returns the oldest waiting messages except ``skip``: at most 64, and 4 MiB or one larger."""
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
        """Removes acknowledged messages; their receipts get the time. All or nothing."""
        if not sequences:
            return
        with self._file.removing() as file:
            try:
                _delete(file, sequences)
            except sqlite3.Error as error:
                if not is_full_disk(error):
                    raise
                # On a full disk even a removal needs room in the log: a checkpoint frees some.
                if file.in_transaction:
                    file.execute("ROLLBACK")
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                _delete(file, sequences)
            crashpoint("outbox.removed")

    def mark_refused(self, seq: int, error: str) -> None:
        """Marks a message as refused, with the reason; it no longer waits."""
        with self._file.removing() as file:
            file.execute("UPDATE queue SET error = ? WHERE seq = ?", (error, seq))

    def forget_old_receipts(self) -> int:
        """Deletes the oldest receipts that have expired, at most 1000; returns their number."""
        with self._file.removing() as file:
            return file.execute(
                "DELETE FROM receipts WHERE seq IN "
                "(SELECT seq FROM receipts WHERE acked_at < ? ORDER BY acked_at LIMIT ?)",
                (time.time() - RECEIPT_SECONDS, RECEIPTS_AT_A_TIME),
            ).rowcount

    def reclaim_space(self) -> None:
        """Shrinks the file a little at a time: after an outage it stays as large as it ever was."""
        with self._file.removing() as file:
            (free,) = file.execute("PRAGMA freelist_count").fetchone()
            if free > 2048:
                file.executescript("PRAGMA incremental_vacuum(1024)")  # execute() does one page

    def close(self) -> None:
        """Closes the file. The next drainer sends the waiting messages."""
        self._file.close()

    def before_fork(self) -> None:
        self._file.hold()

    def after_fork(self) -> None:
        self._file.release()

    def after_fork_in_child(self) -> None:
        self._file.locks()
        self._wake = None
        for lock in tuple(self._turns):  # else the parent's turn as the drainer would outlive the parent
            self.end_turn(lock)


def _delete(file: sqlite3.Connection, sequences: list[int]) -> None:
    now = time.time()
    file.execute("BEGIN IMMEDIATE")
    file.executemany("UPDATE receipts SET acked_at = ? WHERE seq = ?", [(now, seq) for seq in sequences])
    file.executemany("DELETE FROM queue WHERE seq = ?", [(seq,) for seq in sequences])
    file.execute("COMMIT")
