"""The queue between answers and disk: documents wait here and are written in a thread.

Invariants: a document leaves the queue only when it is durable, or when its user opted out. A write that has
begun is finished even if the caller is cancelled. No error ends the tasks that call this, because the gateway
would end with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from onward.bus import Bus
from onward.bus.cancellation import cancellations, honour_cancellation
from onward.clock import Clock
from onward.errors import OnwardError
from onward.roles import to_the_end
from onward.serving.recording.recording import Document, Recording, Work
from onward.telemetry import logs

_log = logs.get("capture")
BATCH = 200
"""Trajectories that are recorded in one write, because another caller may wait for the next one."""
_RETRY_SECONDS = 1.0


class WriteBehind:
    """Writes documents in the background. ``changed()`` returns the open tasks that changed since its last
    call, as trajectories."""

    def __init__(
        self, open_files: Callable[[], Recording], changed: Callable[[], list[Document]], clock: Clock
    ) -> None:
        self._open_files, self._changed, self._clock = open_files, changed, clock
        self._files: Recording | None = None
        self._work = Work()
        self._in_hand = Work()
        """Documents that are being written."""
        self._writing = asyncio.Lock()

    async def start(self) -> int:
        """Opens the files and queues the tasks of an earlier gateway. Returns their number. Raises BusError
        if the files cannot be used."""
        self._files = await asyncio.to_thread(self._open_files)
        left = await asyncio.to_thread(self._files.left_open)
        self._work.trajectories += left
        return len(left)

    def put_trajectory(self, document: Document, *, first: bool = False) -> None:
        """Queues this trajectory; ``first`` if a caller waits for it."""
        self._work.trajectories.insert(0 if first else len(self._work.trajectories), document)

    def put_feedback(self, feedback: Document) -> None:
        """Queues this feedback."""
        self._work.feedback.append(feedback)

    def are_recorded(self, ids: Iterable[str]) -> bool:
        """Returns whether none of these trajectories and feedbacks waits. No document is ever discarded, so
        one that no longer waits is recorded."""
        works = (self._work, self._in_hand)
        waiting = {item["trajectory_id"] for work in works for item in work.trajectories}
        waiting |= {item["feedback_id"] for work in works for item in work.feedback}
        return waiting.isdisjoint(ids)

    async def write(self) -> None:
        """Writes as much as can be written now; the rest waits for the next call."""
        while await asyncio.shield(asyncio.ensure_future(self._write_some())):
            pass

    async def adopt(self, name: str) -> None:
        """Takes over what a dead gateway left in the place ``name``, a batch at a time between the writes of
        this one; see ``Recording.adopt``. When cancelled, it ends after the batch that has begun."""
        if self._files is None:
            return
        batches, total, asked = self._files.adopt(name), 0, cancellations()
        try:
            while True:
                batch = asyncio.create_task(self._adopt_some(batches))
                await to_the_end(asyncio.wait({batch}))
                honour_cancellation(asked)
                if (count := batch.result()) is None:
                    break
                total += count
        except Exception as error:
            _log.error("not taken over now, and tried again", place=name, reason=_named(error))
        finally:
            batches.close()
        if total:
            _log.warning("what a dead gateway left is taken over", place=name, count=total)

    async def _adopt_some(self, batches: Iterator[int]) -> int | None:
        async with self._writing:
            return None if self._files is None else await asyncio.to_thread(next, batches, None)

    async def deliver(self, bus: Bus) -> None:
        """Publishes the outbox until cancelled, or until ``stop`` has closed the files."""
        while (files := self._files) is not None:
            try:
                await files.deliver(bus)
            except Exception as error:
                _log.warning("the outbox waits", reason=_named(error))
            await self._clock.sleep(_RETRY_SECONDS)

    async def stop(self) -> None:
        """Writes all documents, then closes the files. Whatever cannot be recorded stays in the journal."""
        await self.write()
        async with self._writing:
            files, self._files = self._files, None
            if files is not None:
                await asyncio.to_thread(files.close)

    async def _write_some(self) -> bool:
        """Writes one batch. Returns whether more can be written now."""
        async with self._writing:
            if self._files is None:
                return False
            work, self._work = self._work, Work()
            self._work.trajectories, work.trajectories = work.trajectories[BATCH:], work.trajectories[:BATCH]
            self._in_hand = later = work
            try:
                work.open = self._changed()
                if not work and not self._files.has_unwritten:
                    return False
                later = await asyncio.to_thread(self._files.write, work)
            except Exception as error:
                _log.error("not recorded now, and tried again", reason=_named(error))
            finally:
                self._in_hand = Work()
                self._work.trajectories += later.trajectories
                self._work.feedback += later.feedback
            return bool(self._work.trajectories) and not later


def _named(error: Exception) -> str:
    """Returns the text of an OnwardError. Of others only the class: their text may repeat a document."""
    return str(error) if isinstance(error, OnwardError) else type(error).__name__
