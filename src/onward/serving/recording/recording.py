"""What capture writes, behind the answers: what ended into the outbox, what is open into the journal.

Everything is redacted before it is written anywhere. Know before changing: a task leaves the journal after
its trajectory is in the outbox, so a gateway that is killed in between records it twice under one id, which
counts once, and never zero times. What cannot be redacted is sealed in the quarantine, or kept in memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onward.bus import Bus
from onward.bus.outbox import Outbox
from onward.capture import claim_check
from onward.capture.collecting.attempt import reason_of, twice
from onward.capture.collecting.quarantine import Quarantine
from onward.capture.conversations import turns
from onward.capture.opt_out import OptOut
from onward.capture.recorder.core import HEADERS
from onward.capture.recorder.intake import Intake
from onward.clock import Clock
from onward.contracts import Feedback, encode, subjects, validate
from onward.errors import BusError, ConflictError, OutboxFullError
from onward.redaction import Redactor
from onward.serving.recording.journal import Journal
from onward.telemetry.crashpoints import crashpoint

Document = dict[str, Any]
OUTBOX = "gateway.db"
JOURNAL = "gateway-open.db"


@dataclass
class Work:
    """What is to be written next."""

    ended: list[Document] = field(default_factory=list)
    """Trajectories."""
    said: list[Document] = field(default_factory=list)
    """Feedback."""
    open: list[Document] = field(default_factory=list)
    """Tasks in progress, as the trajectories that they would be if nothing more came."""

    def __bool__(self) -> bool:
        return bool(self.ended or self.said or self.open)


class Recording:
    """The files of one gateway, in one folder. Any thread may write, one at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock,
        quarantine: Quarantine,
        redactor: Redactor,
        opt_out: OptOut,
        on_error: Callable[[str, Exception], None],
        on_held: Callable[[str], None],
    ) -> None:
        """``on_error`` gets a step and what it raised, ``on_held`` why one is held; in any thread.

        Raises BusError for a file that cannot be used.
        """
        self._clock, self._opt_out = clock, opt_out
        self._on_error, self._on_held = on_error, on_held
        self._quarantine, self._redactor = quarantine, redactor
        self._intake = Intake(redactor, has_store=True)
        self._outbox = Outbox(folder / OUTBOX)
        self._outbox.retry_refused()
        self._journal = Journal(folder / JOURNAL)
        self._unkept: dict[str, Mapping[str, Any]] = {}
        """What the journal could not take so far, redacted."""
        self._gone: set[str] = set()
        """Recorded, and in the journal until it can be written."""

    def left_open(self) -> list[Document]:
        """Tasks that a gateway before this one had in hand when it was killed."""
        return self._journal.read()

    def write(self, work: Work) -> Work:
        """Blocks for some fsyncs. Returns what nobody could take yet; all else is recorded, and durable."""
        later = Work()
        later.said = [feedback for feedback in work.said if not self._put_feedback(feedback)]
        for document in work.ended:
            if self._record(document):
                self._gone.add(document["trajectory_id"])
            else:
                later.ended.append(document)
        if work.ended:
            crashpoint("capture.recorded")
        self._keep([*later.ended, *work.open])
        return later

    @property
    def owes(self) -> bool:
        """Whether the journal lacks something that it could not take when it was written."""
        return bool(self._unkept or self._gone)

    async def deliver(self, bus: Bus) -> None:
        """Publish what is in the outbox, until cancelled or NATS goes away (BusError)."""
        await self._outbox.drain(bus, send=claim_check.sender(bus, self._quarantine.objects, self._clock))

    def close(self) -> None:
        self._outbox.close()
        self._journal.close()

    def _record(self, document: Document) -> bool:
        """Into the outbox, or held; False: that cannot be now. Nothing is ever given up here."""
        try:
            if self._opt_out.matches_document(document):
                return True
            plain = turns.plain(document)
            data = twice(lambda: self._intake.prepare(plain))
        except Exception as error:
            self._on_error("record", error)
            return self._hold(document, error)
        try:
            self._outbox.put(subjects.TRAJECTORY, data, msg_id=document["trajectory_id"], headers=HEADERS)
        except ConflictError:
            pass  # by the gateway before this one, which had no time to say so in the journal
        except Exception as error:
            self._on_error("outbox", error)
            return False
        return True

    def _hold(self, document: Document, error: Exception) -> bool:
        """Of the error only its class is kept: its text may repeat the document."""
        reason = reason_of(error)
        try:
            body = json.dumps(document, default=str).encode()
            name = document["trajectory_id"]
            crashpoint("capture.holding")
            asyncio.run(self._quarantine.hold_captured(name, body, reason, type(error).__name__))
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
        """Into the outbox; False: that cannot be now, and who gave it is told so."""
        try:
            clean = self._redactor.document(feedback).document
            data = encode(validate(clean, Feedback))
            self._outbox.put(subjects.FEEDBACK, data, msg_id=feedback["feedback_id"])
        except ConflictError:
            pass  # in a write that failed later on
        except Exception as error:
            self._on_error("outbox" if isinstance(error, OutboxFullError | BusError) else "feedback", error)
            return False
        return True

    def _keep(self, documents: Iterable[Document]) -> None:
        """Into the journal, and out of it what is recorded; where it cannot be written, the next time."""
        for document in documents:
            try:
                if self._opt_out.matches_document(document):
                    continue
                redacted = self._redactor.trajectory(turns.plain(document))
                self._unkept[document["trajectory_id"]] = redacted.document
            except Exception as error:
                self._on_error("journal", error)
        for name in self._gone:
            self._unkept.pop(name, None)
        try:
            if self.owes:
                self._journal.write(self._unkept, self._gone)
        except Exception as error:
            self._on_error("journal", error)
            return
        self._unkept, self._gone = {}, set()
