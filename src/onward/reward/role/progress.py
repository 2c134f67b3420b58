"""Progress of the two readers of trajectories: how far the collector is, and how far the rewarder is.

The rewarder scores a message after the collector has finished with it. The collector's acknowledgements are
plain messages. ``CollectorProgress`` subscribes to them, so a batch continues at the moment it is stored.
Nothing depends on receiving one: missed ones are fetched from the server.

The rewarder's own progress is its state, in one key, at most a second behind (``Checkpoint``).

Invariants: a restart continues from the checkpoint, so it is written only after everything that it counts is
stored. It is written by compare-and-set: a refused write means that another rewarder is active.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from onward.bus import Bus, Message
from onward.clock import Clock, is_set_within
from onward.context import Context
from onward.contracts.buckets import RewarderState
from onward.errors import BusError
from onward.reward.scoring.state import State
from onward.telemetry import logs

COLLECTOR = "collector"
"""Durable of the collector on the trajectory stream: messages that it has acknowledged are settled."""
CHECKPOINT_SECONDS = 1.0
_POLL_SECONDS = (0.03, 0.25)
"""First and longest pause before the server is queried, when no acknowledgement was received."""
_ROWS_SECONDS = 0.5
_MOST_KNOWN = 100_000

_log = logs.get("rewarder")


class CollectorProgress:
    """Messages that the collector has settled: ``start`` once, ``wait`` for each batch, then ``stop``."""

    def __init__(self, bus: Bus, stream: str, clock: Clock) -> None:
        self._bus, self._stream, self._clock = bus, stream, clock
        self._acknowledged: set[int] = set()
        self._floor = 0
        self._arrived = asyncio.Event()
        self._subscription: Subscription | None = None
        self._client: object = None

    async def start(self) -> None:
        """Subscribes, then reads the collector's position. Raises BusError."""
        try:
            subject = f"$JS.ACK.{self._stream}.{COLLECTOR}.>"
            self._client = self._bus.nc
            self._subscription = await self._client.subscribe(subject, cb=self._on_acknowledgement)
            await self._client.flush()
        except (nats.errors.Error, OSError) as error:
            raise BusError(f"NATS is away ({type(error).__name__}).") from None
        self._floor = await self._read_floor()

    async def stop(self) -> None:
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
            self._subscription = None

    async def wait(
        self,
        messages: Sequence[Message],
        are_rows: Callable[[Sequence[Message]], Awaitable[bool]],
        stopping: Callable[[], bool],
    ) -> int:
        """Waits until the first of ``messages`` (by sequence) is settled; returns the last sequence before a
        gap. ``are_rows`` checks whether all of them are stored, which also suffices where the collector
        acknowledges out of order. Raises BusError."""
        clock = self._clock
        if self._subscription is not None and self._client is not self._bus.nc:
            await self.start()  # the client was recreated
        started = rows_checked = polled = clock.monotonic()
        pause, longest = _POLL_SECONDS
        warned = False
        while not (last := self._settled_prefix(messages)):
            if stopping():
                raise BusError("The rewarder stops before the collector was done.")
            received = await self._acknowledgement_within(pause)
            now = clock.monotonic()
            if not received or now - polled >= longest:
                polled, pause = now, min(pause * 2, longest)
                self._floor = max(self._floor, await self._read_floor())
            if now - rows_checked >= _ROWS_SECONDS:
                if await are_rows(messages):
                    return messages[-1].sequence
                rows_checked = now
            if not warned and now - started > 30.0:
                warned = True
                _log.warning("waiting for the collector", sequence=messages[0].sequence)
        return last

    def _settled_prefix(self, messages: Sequence[Message]) -> int:
        last = 0
        for message in messages:
            if message.sequence > self._floor and message.sequence not in self._acknowledged:
                break
            last = message.sequence
        return last

    async def _on_acknowledgement(self, message: Msg) -> None:
        words = message.subject.split(".")
        if message.data[:4] not in (b"+ACK", b"") or len(words) < 6 or not words[5].isdigit():
            return
        if len(self._acknowledged) >= _MOST_KNOWN:
            self._acknowledged = {n for n in self._acknowledged if n > self._floor}
            if len(self._acknowledged) >= _MOST_KNOWN:
                self._acknowledged.clear()
        self._acknowledged.add(int(words[5]))
        self._arrived.set()

    async def _acknowledgement_within(self, seconds: float) -> bool:
        """Checks whether an acknowledgement is received within ``seconds``."""
        found = await is_set_within(self._arrived, seconds, self._clock)
        self._arrived.clear()
        return found

    async def _read_floor(self) -> int:
        try:
            info = await self._bus.js.consumer_info(self._stream, COLLECTOR)
        except nats.js.errors.NotFoundError:
            return 0
        except nats.errors.Error as error:
            raise BusError(f"NATS is away ({type(error).__name__}).") from None
        floor = info.ack_floor.stream_seq if info.ack_floor else 0
        self._acknowledged = {n for n in self._acknowledged if n > floor}
        return floor


class Checkpoint:
    """Writes the rewarder's state. ``revision``: that of the entry that ``state`` was read from; None if
    there is none yet."""

    def __init__(self, ctx: Context, state: Callable[[], State], revision: int | None) -> None:
        self._bucket, self._clock, self._state = ctx.bus.bucket(RewarderState.BUCKET), ctx.clock, state
        self._revision, self._written_seq = revision, state().stream_seq

    async def write(self) -> None:
        """Writes the state if it changed. Raises ConflictError when another rewarder wrote meanwhile."""
        state = self._state()
        if state.stream_seq == self._written_seq:
            return
        if self._revision is None:
            self._revision = await self._bucket.create(RewarderState.KEY, state.dump())
        else:
            self._revision = await self._bucket.update(RewarderState.KEY, state.dump(), self._revision)
        self._written_seq = state.stream_seq

    async def write_until_cancelled(self) -> None:
        """Writes each second, until cancelled. Raises ConflictError."""
        while True:
            await self._clock.sleep(CHECKPOINT_SECONDS)
            try:
                await asyncio.shield(asyncio.ensure_future(self.write()))
            except BusError as error:
                _log.warning("the record waits", cause=str(error))
