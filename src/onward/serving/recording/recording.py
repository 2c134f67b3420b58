"""Writes captured tasks in the background: ended ones to the outbox, open ones to the journal.

Everything is redacted before it is written anywhere. A task that cannot be redacted is sealed in the
quarantine, or stays in memory.

Invariants: a task leaves the journal after its trajectory is in the outbox. If the
gateway is killed in between, the trajectory is recorded twice under one id and counts once; it is never lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from onward.bus import Bus
from onward.bus.outbox import Outbox, Outgoing
from onward.capture import claim_check
from onward.capture.collecting.quarantine import Quarantine
from onward.capture.conversations import turns
from onward.capture.opt_out import OptOut
from onward.capture.recorder.core import HEADERS
from onward.capture.recorder.preparation import Preparer
from onward.capture.retrying import reason_of, with_one_retry
from onward.clock import Clock
from onward.contracts import Feedback, encode, sha256_hex, subjects, validate
from onward.errors import BusError, ConflictError, OutboxFullError
from onward.redaction import Redactor
from onward.telemetry.crashpoints import crashpoint

_SCHEMA = """
CREATE TABLE IF NOT EXISTS open (trajectory_id TEXT PRIMARY KEY, document BLOB NOT NULL);
"""


class Journal:
    """Open conversations, which a killed gateway would otherwise lose: one SQLite file, mode 0600.

    It holds the redacted trajectory that each would be if it ended now, and never any text that was not
    redacted. An entry is removed only after its trajectory is in the outbox. Any thread may call; durable on
    return.
    """

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
        """Stores these documents under their ids and deletes the ids in ``gone``, all or nothing. Raises
        BusError if the file cannot be written."""
        rows = [(name, to_json(document)) for name, document in changed.items()]
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

    def get(self, trajectory_id: str) -> dict[str, Any] | None:
        """Returns one document, or None. Raises BusError if the file cannot be read."""
        try:
            with self._lock:
                row = self._file.execute(
                    "SELECT document FROM open WHERE trajectory_id = ?", (trajectory_id,)
                ).fetchone()
        except sqlite3.Error as error:
            raise BusError(f"{self._path} is not readable ({error}): move it away and restart.") from None
        return None if row is None else json.loads(row[0])

    def close(self) -> None:
        with self._lock:
            self._file.close()


Document = dict[str, Any]
ADOPTED_TASKS = 16
"""Tasks of a dead gateway that are taken over at once, while this gateway's own documents wait: each is
redacted anew."""
RESTART = "restart"
"""``metadata.capture.closed`` of a task as the journal holds it."""


def outbox_of(name: str) -> str:
    """Returns the file name of the outbox in the place ``name`` (``serving.place``)."""
    return f"{name}.db"


def journal_of(name: str) -> str:
    """Returns the file name of the journal in the place ``name``."""
    return f"{name}-open.db"


@dataclass
class Work:
    """Documents to be written next."""

    trajectories: list[Document] = field(default_factory=list)
    """Trajectories."""
    feedback: list[Document] = field(default_factory=list)
    """Feedback."""
    open: list[Document] = field(default_factory=list)
    """Tasks in progress, as the trajectories they would be if they ended now."""

    def __bool__(self) -> bool:
        return bool(self.trajectories or self.feedback or self.open)


class Recording:
    """The files of one gateway, in one folder. Any thread may write, one at a time."""

    def __init__(
        self,
        folder: Path,
        name: str = "gateway",
        *,
        clock: Clock,
        quarantine: Quarantine,
        redactor: Redactor,
        opt_out: OptOut,
        on_error: Callable[[str, Exception], None],
        on_held: Callable[[str], None],
    ) -> None:
        """``name``: the place of this process, whose files no other one uses. ``on_error`` receives a step
        and its exception, ``on_held`` a reason for quarantine; in any thread. Raises BusError for a file
        that cannot be used."""
        self._folder = folder
        self._clock, self._opt_out = clock, opt_out
        self._on_error, self._on_held = on_error, on_held
        self._quarantine, self._redactor = quarantine, redactor
        self._preparer = Preparer(redactor, has_store=True)
        self._outbox = Outbox(folder / outbox_of(name))
        self._outbox.retry_refused()
        self._journal = Journal(folder / journal_of(name))
        self._unkept: dict[str, Mapping[str, Any]] = {}
        """Redacted documents that the journal could not store so far."""
        self._gone: set[str] = set()
        """Ids that are recorded, and stay in the journal until it can be written."""
        self._redacted: dict[str, Any] = {}
        """Trajectory id → content of which the journal holds the redacted form."""

    def left_open(self) -> list[Document]:
        """Returns the tasks that an earlier gateway had open when it was killed."""
        return self._journal.read()

    def adopt(self, name: str) -> Generator[int, None, None]:
        """Takes over what a dead gateway left in the place ``name``; the caller holds that place. Yields the
        number of tasks and messages of each batch, so that this gateway writes its own in between. Raises
        OutboxFullError or BusError; the rest is then still there.

        A crash in between repeats some of it: its ids are the same.
        """
        journal, outbox = Journal(self._folder / journal_of(name)), Outbox(self._folder / outbox_of(name))
        try:
            outbox.retry_refused()
            while batch := outbox.next_batch():
                self._put_all([Outgoing(one.subject, one.body, one.msg_id, one.headers) for one in batch])
                crashpoint("capture.adopted")
                outbox.remove([message.seq for message in batch])
                yield len(batch)
            tasks = journal.read()
            for left in (tasks[at : at + ADOPTED_TASKS] for at in range(0, len(tasks), ADOPTED_TASKS)):
                unknown = [one for one in left if not outbox.has_accepted(one["trajectory_id"])]
                waiting = {one["trajectory_id"] for one in self._record_all(unknown)}
                taken = {one["trajectory_id"] for one in left} - waiting
                journal.write({}, taken)
                yield len(taken)
        finally:
            outbox.close()
            journal.close()

    def write(self, work: Work) -> Work:
        """Writes ``work``; blocks for some fsyncs. Returns what could not be written; the rest is durable."""
        later = Work()
        later.feedback = [feedback for feedback in work.feedback if not self._put_feedback(feedback)]
        later.trajectories = self._record_all(work.trajectories)
        waiting = {document["trajectory_id"] for document in later.trajectories}
        self._gone |= {document["trajectory_id"] for document in work.trajectories} - waiting
        if work.trajectories:
            crashpoint("capture.recorded")
        self._keep([*later.trajectories, *work.open])
        return later

    @property
    def has_unwritten(self) -> bool:
        """True if the journal lacks changes that could not be written earlier."""
        return bool(self._unkept or self._gone)

    async def deliver(self, bus: Bus) -> None:
        """Publishes the outbox until cancelled or NATS goes away (BusError)."""
        await self._outbox.drain(
            bus, send=claim_check.outbox_sender(bus, self._quarantine.objects, self._clock)
        )

    def close(self) -> None:
        self._outbox.close()
        self._journal.close()

    def _record_all(self, documents: Sequence[Document]) -> list[Document]:
        """Puts trajectories into the outbox with one fsync, else each by itself, or into the quarantine;
        discards none. Returns those for which nothing is possible now."""
        later: list[Document] = []
        ready: list[tuple[Document, bytes]] = []
        for document in documents:
            try:
                if not self._opt_out.matches_document(document):
                    ready.append((document, self._prepare(document)))
            except Exception as error:
                self._on_error("record", error)
                if not self._hold(document, error):
                    later.append(document)
        try:
            self._outbox.put_all(
                [
                    Outgoing(subjects.TRAJECTORY, data, document["trajectory_id"], HEADERS)
                    for document, data in ready
                ]
            )
        except Exception:  # one of them: the others must not wait for it
            later += [document for document, data in ready if not self._put_trajectory(document, data)]
        return later

    def _prepare(self, document: Document) -> bytes:
        """Returns the message of a trajectory. What the journal holds of it is redacted already."""
        before = self._redacted.get(document["trajectory_id"])
        if before is not None and before == _content(document):
            with suppress(BusError):
                kept = self._journal.get(document["trajectory_id"])
                if kept is not None:
                    ours = {name: document["metadata"][name] for name in _OURS & document["metadata"].keys()}
                    kept["metadata"] |= turns.plain(ours)
                    return self._preparer.encode(kept)
        plain = turns.plain(document)
        return with_one_retry(lambda: self._preparer.prepare(plain))

    def _put_trajectory(self, document: Document, data: bytes) -> bool:
        try:
            # From the journal: what the outbox has under this id is the same task when it ended, or this.
            is_older = document["metadata"].get("capture", {}).get("closed") == RESTART
            self._put(subjects.TRAJECTORY, data, document["trajectory_id"], HEADERS, or_earlier=is_older)
        except Exception as error:
            self._on_error("outbox", error)
            return False
        return True

    def _put_all(self, messages: Sequence[Outgoing]) -> None:
        """Puts messages into the outbox with one fsync; with an id among them that is taken, each by
        itself."""
        try:
            self._outbox.put_all(messages)
        except ConflictError:
            for message in messages:
                self._put(message.subject, message.data, message.msg_id, message.headers)

    def _put(
        self, subject: str, data: bytes, msg_id: str, headers: Mapping[str, str], *, or_earlier: bool = False
    ) -> None:
        """Puts a message into the outbox. Another body under the same id goes under an id of its own, and the
        collector decides by content which of both counts; with ``or_earlier``, the earlier one stays."""
        try:
            self._outbox.put(subject, data, msg_id=msg_id, headers=headers)
        except ConflictError:
            if not or_earlier:
                own_id = f"{msg_id}.{sha256_hex(data)[:16]}"
                self._outbox.put(subject, data, msg_id=own_id, headers=headers)

    def _hold(self, document: Document, error: Exception) -> bool:
        """Quarantines a document. Only the error's class is stored: its text may repeat the document."""
        reason = reason_of(error)
        try:
            body = json.dumps(document, default=str).encode()
            name = document["trajectory_id"]
            crashpoint("capture.holding")
            asyncio.run(self._quarantine.hold_trajectory(name, body, reason, type(error).__name__))
            crashpoint("capture.held")
        except Exception as failure:
            self._on_error("hold", failure)
            return False
        try:
            self._on_held(reason)
        except Exception as failure:
            self._on_error("hold", failure)
        return True

    def _put_feedback(self, feedback: Document) -> bool:
        """Puts feedback into the outbox. False: not possible now; its sender then gets an error."""
        try:
            clean = self._redactor.document(feedback).document
            data = encode(validate(clean, Feedback))
            self._outbox.put(subjects.FEEDBACK, data, msg_id=feedback["feedback_id"])
        except ConflictError:
            pass  # put in a write that failed later on
        except Exception as error:
            self._on_error("outbox" if isinstance(error, OutboxFullError | BusError) else "feedback", error)
            return False
        return True

    def _keep(self, documents: Iterable[Document]) -> None:
        """Writes open tasks to the journal and deletes recorded ones. A failed write is retried."""
        contents: dict[str, Any] = {}
        for document in documents:
            try:
                if self._opt_out.matches_document(document):
                    continue
                self._unkept[document["trajectory_id"]] = self._preparer.redact(turns.plain(document))
                contents[document["trajectory_id"]] = _content(document)
            except Exception as error:
                self._on_error("journal", error)
        for name in self._gone:
            self._unkept.pop(name, None)
            self._redacted.pop(name, None)
        try:
            if self.has_unwritten:
                self._journal.write(self._unkept, self._gone)
        except Exception as error:
            self._on_error("journal", error)
            return
        self._redacted |= {name: contents[name] for name in contents.keys() & self._unkept.keys()}
        self._unkept, self._gone = {}, set()


_OURS = frozenset(("capture", "outcome"))
"""Parts of the metadata that a close changes: words and numbers of Onward's own, without any user's text."""


def _content(document: Document) -> Any:
    """Returns what differs between two versions of one task: an exchange never changes, only its results."""
    rest = {name: value for name, value in document["metadata"].items() if name not in _OURS}
    turns_of = document["turns"]
    return document["end_timestamp"], rest, [(turn["timestamp"], turn["result"]) for turn in turns_of]
