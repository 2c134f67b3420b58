"""Position of a durable reader, recorded in a bucket beside the consumer that the server keeps.

A consumer can be deleted and its state file damaged. A stream can be deleted, and a damaged one can lose its
last messages, after which the server gives their sequences to new ones. The recorded position decides where
a consumer that is created again begins.

Invariants: the record follows the acknowledged floor and is never ahead of it, so a consumer that begins
there repeats messages and skips none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors

from onward.bus.documents import read_document
from onward.contracts.buckets import ReaderPosition
from onward.errors import BusError
from onward.telemetry import alerts, logs

if TYPE_CHECKING:
    from nats.js import api

    from onward.bus.connection import Bus

log = logs.get("bus")

RECORD_SECONDS = 5.0
"""Shortest time between two records of one reader."""
WRITE_SECONDS = 5.0
"""Seconds that a record waits for the server; a later one replaces it."""


class Position:
    """Position of one durable on one stream."""

    def __init__(self, bus: Bus, stream: str, durable: str) -> None:
        self._bus, self._stream, self._key = bus, stream, f"{stream}.{durable}"
        self.floor = 0
        """Every message up to this sequence is settled."""
        self._created: Any = None
        self._record: ReaderPosition | None = None
        self._due = 0.0

    async def open(self, info: api.StreamInfo) -> bool:
        """Reads the record of this stream. Returns False if an earlier stream of this name was replaced: its
        positions mean nothing in the new one. Raises BusError."""
        if self._created == info.created:
            return True
        is_first, self._created, self.floor = self._created is None, info.created, 0
        try:
            record = await read_document(self._bus, ReaderPosition, self._key)
        except BusError as error:  # without a record a new consumer repeats everything
            log.warning("a recorded position is not readable", key=self._key, reason=type(error).__name__)
            record = None
        same = record is not None and record.stream_created == str(info.created)
        self._record = record if same else None
        if record is not None and same:
            self.floor = record.sequence
            return True
        if record is not None:
            await report_lost(
                self._bus,
                self._stream,
                str(info.created),
                f"Stream {self._stream} was created again. The earlier one was settled up to message "
                f"{record.sequence} for {self._key.partition('.')[2]}; later messages of it are lost.",
                settled=record.sequence,
            )
        return is_first and record is None

    async def lost_tail(self, info: api.StreamInfo, consumer: api.ConsumerInfo | None) -> int | None:
        """Returns the first sequence that the server gave to a new message after it had lost the last ones
        (one after the end of the stream if there is no new message). None if nothing was lost."""
        delivered = consumer.delivered.stream_seq if consumer and consumer.delivered else 0
        if max(self.floor, delivered) <= info.state.last_seq and not await self._is_replaced():
            return None
        low, high = max(1, info.state.first_seq), info.state.last_seq + 1
        known = "" if self._record is None else self._record.stored_at
        while known and low < high:
            middle = (low + high) // 2
            found = await self._stored_at(middle, at_or_after=True)
            if found and found <= known:
                low = middle + 1
            else:
                high = middle
        await report_lost(
            self._bus,
            self._stream,
            f"end {self._bus.reconnects}",  # only a restart of the server can lose the end
            f"Stream {self._stream} lost its last messages: it ends at {info.state.last_seq}, and "
            f"{max(self.floor, delivered)} were read. New messages are read from {low} on.",
            last=info.state.last_seq,
            settled=self.floor,
        )
        return low

    def is_due(self, now: float) -> bool:
        """Returns whether the last record is old enough for the next one."""
        return now >= self._due

    async def record(self, floor: int, *, now: float) -> None:
        """Takes over the acknowledged floor and records it, if one is due. A failed record is left to the
        next one."""
        self.floor = max(self.floor, floor)
        if now < self._due or (self._record is not None and self._record.sequence == self.floor):
            return
        self._due = now + RECORD_SECONDS
        try:
            document = ReaderPosition(
                stream_created=str(self._created),
                sequence=self.floor,
                stored_at=await self._stored_at(self.floor),
            )
            bucket = self._bus.bucket(ReaderPosition.BUCKET)
            await bucket.put(self._key, document.dump(), deadline=WRITE_SECONDS)
            self._record = document
        except (BusError, nats.errors.Error) as error:
            log.debug("a position is not recorded", key=self._key, reason=type(error).__name__)

    async def _is_replaced(self) -> bool:
        """Returns whether the message at the recorded position is another one than it was."""
        if self._record is None or not self._record.stored_at or self._record.sequence != self.floor:
            return False
        found = await self._stored_at(self.floor)
        return bool(found) and found != self._record.stored_at

    async def _stored_at(self, sequence: int, *, at_or_after: bool = False) -> str:
        """Returns the server's time of a message, comparable as text; empty if there is no such message."""
        options: dict[str, Any] = {"subject": ">", "next": True} if at_or_after else {}
        try:
            raw = await self._bus.js.get_msg(self._stream, seq=max(1, sequence), **options)
        except nats.js.errors.NotFoundError:
            return ""
        return raw.time.isoformat(timespec="microseconds") if raw.time else ""


async def report_lost(bus: Bus, stream: str, loss: str, message: str, **facts: Any) -> None:
    """Reports a loss of ``stream`` once, whichever of its readers meets it first; see ``Bus.is_news``."""
    if bus.is_news(stream, loss):
        await report(bus, "stream_lost", message, stream=stream, **facts)
    else:
        log.warning("another reader of a lost stream", stream=stream, message=message, **facts)


async def report(bus: Bus, kind: str, message: str, **facts: Any) -> None:
    """Reports a loss or a repair: to the log, and to whoever listens to alerts. Never fails."""
    log.error("alert", kind=kind, message=message, **facts)
    try:
        await alerts.notify(bus, bus.clock, kind, message, "critical", facts)
    except Exception as error:  # an alert about a broken bus must not break its caller
        log.warning("alert not sent", kind=kind, error=type(error).__name__)
