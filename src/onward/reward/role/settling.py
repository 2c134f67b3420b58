"""Tracks the trajectory messages that the collector has finished with: the rewarder scores none earlier.

The collector's acknowledgements are plain messages. This module subscribes to them, so a batch continues at
the moment it is stored. Nothing depends on receiving one: missed ones are fetched from the server.
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
from onward.clock import Clock
from onward.errors import BusError
from onward.telemetry import logs

COLLECTOR = "collector"
"""Durable of the collector on the trajectory stream: messages that it has acknowledged are settled."""
_ASK_SECONDS = (0.03, 0.25)
"""First and longest pause before the server is queried, when no acknowledgement was received."""
_LOOK_AT_ROWS_SECONDS = 0.5
_KEPT = 100_000

_log = logs.get("rewarder")


class Settled:
    """Settled messages: ``start`` once, ``wait`` for each batch, then ``stop``."""

    def __init__(self, bus: Bus, stream: str, clock: Clock) -> None:
        self._bus, self._stream, self._clock = bus, stream, clock
        self._acknowledged: set[int] = set()
        self._floor = 0
        self._news = asyncio.Event()
        self._heard: Subscription | None = None
        self._client: object = None

    async def start(self) -> None:
        """Subscribes, then reads the collector's position. Raises BusError."""
        try:
            subject = f"$JS.ACK.{self._stream}.{COLLECTOR}.>"
            self._client = self._bus.nc
            self._heard = await self._client.subscribe(subject, cb=self._overhear)
            await self._client.flush()
        except (nats.errors.Error, OSError) as error:
            raise BusError(f"NATS is away ({type(error).__name__}).") from None
        self._floor = await self._ask()

    async def stop(self) -> None:
        if self._heard is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._heard.unsubscribe()
            self._heard = None

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
        if self._heard is not None and self._client is not self._bus.nc:
            await self.start()  # the client was recreated
        started = looked = asked = clock.monotonic()
        pause, longest = _ASK_SECONDS
        warned = False
        while not (last := self._prefix(messages)):
            if stopping():
                raise BusError("The rewarder stops before the collector was done.")
            heard = await self._hear(pause)
            now = clock.monotonic()
            if not heard or now - asked >= longest:
                asked, pause = now, min(pause * 2, longest)
                self._floor = max(self._floor, await self._ask())
            if now - looked >= _LOOK_AT_ROWS_SECONDS:
                if await are_rows(messages):
                    return messages[-1].sequence
                looked = now
            if not warned and now - started > 30.0:
                warned = True
                _log.warning("waiting for the collector", sequence=messages[0].sequence)
        return last

    def _prefix(self, messages: Sequence[Message]) -> int:
        last = 0
        for message in messages:
            if message.sequence > self._floor and message.sequence not in self._acknowledged:
                break
            last = message.sequence
        return last

    async def _overhear(self, message: Msg) -> None:
        words = message.subject.split(".")
        if message.data[:4] not in (b"+ACK", b"") or len(words) < 6 or not words[5].isdigit():
            return
        if len(self._acknowledged) >= _KEPT:
            self._acknowledged = {n for n in self._acknowledged if n > self._floor}
            if len(self._acknowledged) >= _KEPT:
                self._acknowledged.clear()
        self._acknowledged.add(int(words[5]))
        self._news.set()

    async def _hear(self, seconds: float) -> bool:
        """Checks whether an acknowledgement is received within ``seconds``."""
        heard = asyncio.ensure_future(self._news.wait())
        patience = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({heard, patience}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            heard.cancel()
            patience.cancel()
        found = self._news.is_set()
        self._news.clear()
        return found

    async def _ask(self) -> int:
        try:
            info = await self._bus.js.consumer_info(self._stream, COLLECTOR)
        except nats.js.errors.NotFoundError:
            return 0
        except nats.errors.Error as error:
            raise BusError(f"NATS is away ({type(error).__name__}).") from None
        floor = info.ack_floor.stream_seq if info.ack_floor else 0
        self._acknowledged = {n for n in self._acknowledged if n > floor}
        return floor
