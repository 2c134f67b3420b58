"""What capture writes, behind the answers: what ended into the outbox, what is open into the journal.

Everything is redacted before it is written anywhere. Know before changing: a task leaves the journal after
its trajectory is in the outbox, so a gateway that is killed in between records it twice under one id, which
counts once, and never zero times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onward.bus import Bus
from onward.bus.outbox import Outbox
from onward.capture import claims, turns
from onward.capture.opt_out import OptOut
from onward.capture.recorder import Recorder
from onward.capture.redaction import Known, redact, redact_trajectory
from onward.clock import Clock
from onward.contracts import Feedback, encode, subjects, validate
from onward.errors import BusError, ConflictError, OnwardError, OutboxFullError
from onward.serving.journal import Journal
from onward.warehouse import Objects

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
        objects: Objects,
        secrets: Iterable[str],
        opt_out: str,
        on_error: Callable[[str, Exception], None],
    ) -> None:
        """``secrets`` vanish wherever they stand. ``on_error`` gets a step and what it raised, in any thread.

        Raises BusError for a file that cannot be used.
        """
        self._clock, self._objects, self._on_error = clock, objects, on_error
        self._opt_out = OptOut.parse(opt_out)
        self._known = Known(secrets)
        self._recorder = Recorder(
            folder / OUTBOX,
            clock=clock,
            objects=objects.where,
            known_secrets=secrets,
            opt_out=opt_out,
        )
        self._outbox = Outbox(folder / OUTBOX)
        self._journal = Journal(folder / JOURNAL)

    def left_open(self) -> list[Document]:
        """Tasks that a gateway before this one had in hand when it was killed."""
        return self._journal.read()

    def write(self, work: Work) -> tuple[Work, set[str]]:
        """Blocks for some fsyncs. Returns what nobody could take yet, and the ids that are recorded now."""
        later = Work()
        later.said = [feedback for feedback in work.said if not self._put_feedback(feedback)]
        recorded, gone = set(), set()
        for document in work.ended:
            done = self._record(document)
            if done is None:
                later.ended.append(document)
                continue
            gone.add(document["trajectory_id"])
            if done:
                recorded.add(document["trajectory_id"])
        self._keep([*later.ended, *work.open], gone)
        return later, recorded

    async def deliver(self, bus: Bus) -> None:
        """Publish what is in the outbox, until cancelled or NATS goes away (BusError)."""
        await self._outbox.drain(bus, send=claims.sender(bus, self._objects, self._clock))

    def close(self) -> None:
        self._recorder.close(0.0)
        self._outbox.close()
        self._journal.close()

    def _record(self, document: Document) -> bool | None:
        """Into the outbox. None: there is no room now; False: it can never go in."""
        try:
            self._recorder.accept(turns.plain(document))
        except (OutboxFullError, BusError) as error:
            self._on_error("outbox", error)
            return None
        except ConflictError:
            return True  # by the gateway before this one, which had no time to say so in the journal
        except Exception as error:
            self._on_error("record", error)
            return False
        return True

    def _put_feedback(self, feedback: Document) -> bool:
        try:
            clean = redact(feedback, known=self._known).document
            data = encode(validate(clean, Feedback))
            self._outbox.put(subjects.FEEDBACK, data, msg_id=feedback["feedback_id"])
        except (OutboxFullError, BusError) as error:
            self._on_error("outbox", error)
            return False
        except Exception as error:
            self._on_error("feedback", error)
        return True

    def _keep(self, documents: Iterable[Document], gone: set[str]) -> None:
        changed: dict[str, Mapping[str, Any]] = {}
        for document in documents:
            if self._opt_out.matches_document(document):
                continue
            try:
                redacted = redact_trajectory(turns.plain(document), known=self._known)
                changed[document["trajectory_id"]] = redacted.document
            except Exception as error:
                self._on_error("journal", error)
        try:
            if changed or gone:
                self._journal.write(changed, gone)
        except OnwardError as error:
            self._on_error("journal", error)
