"""The queue between answers and disk: what is to be recorded waits here and is written in a thread.

Know before changing: nothing leaves the queue before it is durable, or known to be refused for ever, and a
write that has begun is finished whoever is cancelled. No error ends the tasks that call this: the gateway
would go down with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from onward.bus import Bus
from onward.clock import Clock
from onward.errors import OnwardError
from onward.serving.recording.recording import Document, Recording, Work
from onward.telemetry import logs

_log = logs.get("capture")
BATCH = 200
"""Trajectories that are recorded in one go: somebody may wait for the next."""
_RETRY_SECONDS = 1.0


class WriteBehind:
    """``changed()`` gives the open tasks that changed since it was called last, as trajectories."""

    def __init__(
        self, open_files: Callable[[], Recording], changed: Callable[[], list[Document]], clock: Clock
    ) -> None:
        self._open_files, self._changed, self._clock = open_files, changed, clock
        self._files: Recording | None = None
        self._work = Work()
        self._in_hand = Work()
        """What is being written."""
        self._writing = asyncio.Lock()

    async def start(self) -> int:
        """Open the files and take up what a gateway before this one left open; how much. Raises BusError."""
        self._files = await asyncio.to_thread(self._open_files)
        left = await asyncio.to_thread(self._files.left_open)
        self._work.ended += left
        return len(left)

    def put(self, document: Document, *, first: bool = False) -> None:
        """Record this trajectory; ``first`` where somebody waits for it."""
        self._work.ended.insert(0 if first else len(self._work.ended), document)

    def say(self, feedback: Document) -> None:
        """Publish this feedback."""
        self._work.said.append(feedback)

    def are_recorded(self, ids: Iterable[str]) -> bool:
        """Whether none of these trajectories and feedbacks waits. Nothing is ever given up: what does not
        wait any more is recorded."""
        works = (self._work, self._in_hand)
        waiting = {item["trajectory_id"] for work in works for item in work.ended}
        waiting |= {item["feedback_id"] for work in works for item in work.said}
        return waiting.isdisjoint(ids)

    async def write(self) -> None:
        """Write what can be written now; the rest waits for the next time."""
        while await asyncio.shield(asyncio.ensure_future(self._write_some())):
            pass

    async def deliver(self, bus: Bus) -> None:
        """Publish what is in the outbox, until cancelled."""
        while True:
            try:
                assert self._files is not None
                await self._files.deliver(bus)
            except Exception as error:
                _log.warning("the outbox waits", reason=_named(error))
            await self._clock.sleep(_RETRY_SECONDS)

    async def stop(self) -> None:
        """Write all, then close the files. What cannot be recorded stays in the journal."""
        await self.write()
        files, self._files = self._files, None
        if files is not None:
            await asyncio.to_thread(files.close)

    async def _write_some(self) -> bool:
        """Whether there is more that can be done."""
        async with self._writing:
            if self._files is None:
                return False
            work, self._work = self._work, Work()
            self._work.ended, work.ended = work.ended[BATCH:], work.ended[:BATCH]
            self._in_hand = later = work
            try:
                work.open = self._changed()
                if not work and not self._files.owes:
                    return False
                later = await asyncio.to_thread(self._files.write, work)
            except Exception as error:
                _log.error("not recorded now, and tried again", reason=_named(error))
            finally:
                self._in_hand = Work()
                self._work.ended += later.ended
                self._work.said += later.said
            return bool(self._work.ended) and not later


def _named(error: Exception) -> str:
    """The text of an error of ours; of another only its class, for it may repeat what was said."""
    return str(error) if isinstance(error, OnwardError) else type(error).__name__
