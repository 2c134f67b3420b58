"""Reads a stream so that nothing is lost: pull, do the durable work, then acknowledge.

Invariants: acknowledgements themselves can be lost (the server flushes them in the background), so every
handler must be idempotent by id. A message leaves a consumer only by ``Ack``, or by ``DeadLetter`` after the
dead-letter stream has stored it; never by a number of tries.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import api

from onward.bus.cancellation import cancellations, honour_cancellation
from onward.bus.deadletter import store_dead_letter
from onward.bus.headers import usable
from onward.bus.position import Position, report, report_lost
from onward.bus.pull import PullBroken, Puller
from onward.clock import Clock
from onward.errors import (
    BusError,
    EngineError,
    ObjectError,
    OutboxFullError,
    StreamDriftError,
    StreamReplacedError,
    WarehouseError,
)
from onward.retry import Backoff
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.bus.connection import Bus

log = logs.get("bus")

AWAY = (BusError, WarehouseError, ObjectError, OutboxFullError, EngineError)
"""Errors of an unavailable service. If a handler raises one, its batch is retried, forever."""
POISON_AFTER = 5
"""Deliveries after which a message becomes a dead letter, if it is alone in its batch and its handler raises
an error that is not in ``AWAY``."""
LINGER_SECONDS = 5.0
STOP_SECONDS = 10.0
"""Seconds that a cancelled reader works on its batch; an unreachable server must not keep it alive."""
AWAY_SECONDS = 0.5
"""First pause when a service is unavailable; it doubles up to 15 s."""
STUCK_AFTER = 3
"""Empty fetches in a row, while messages wait, after which a consumer is created again."""
BROKEN_STORE = 10012
"""The server's error code for a consumer whose state on its disk is damaged."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Message:
    data: bytes
    headers: dict[str, str]
    subject: str
    sequence: int
    """Sequence in the stream; rises, with gaps."""
    num_delivered: int
    """Deliveries so far: 1 at the first."""
    timestamp: datetime
    """Time at which the server stored it; aware, UTC."""


@dataclass(frozen=True)
class Ack:
    """The durable work is done."""


@dataclass(frozen=True)
class Retry:
    """The message is to be delivered again after ``delay`` seconds."""

    delay: float = 5.0


@dataclass(frozen=True)
class DeadLetter:
    """The message goes to the dead letters with a reason. ``body`` None stores the original; pass ``b""`` or
    a redacted form if the original may hold secrets."""

    reason: str
    detail: str = ""
    body: bytes | None = None


Disposition = Ack | Retry | DeadLetter
Handler = Callable[[list[Message]], Awaitable[Sequence[Disposition]]]


async def consume(
    bus: Bus,
    *,
    stream: str,
    durable: str,
    handler: Handler,
    subject: str | None = None,
    batch: int = 100,
    max_wait: float = 0.2,
    clock: Clock | None = None,
    start_sequence: int | None = None,
    ack_wait: float = 15.0,
) -> None:
    """Feeds ``handler`` from ``stream`` until cancelled; a batch in progress is finished first.

    ``batch`` is the most messages per call; ``max_wait`` (seconds) is the longest time spent on filling a
    batch that keeps growing (available messages are never delayed to wait for more). ``start_sequence``
    starts the durable again at that stream sequence. ``ack_wait`` seconds after this process died, other
    consumers receive its messages; while it lives, work may take any time. A missing stream is created, and a
    consumer that is missing, damaged or does not move is created from its recorded position.

    Raises StreamDriftError if the durable exists with a configuration that cannot be changed. Raises
    StreamReplacedError if ``start_sequence`` was given and the stream was created again meanwhile.
    """
    clock = clock or bus.clock
    consumption = _Consumption(bus, stream, durable, subject, handler, batch, max_wait, clock, ack_wait)
    bus.consuming.add((stream, durable))
    try:
        await consumption.run(start_sequence)
    finally:
        bus.consuming.discard((stream, durable))


@dataclass(eq=False)
class _Consumption:
    bus: Bus
    stream: str
    durable: str
    subject: str | None
    handler: Handler
    batch: int
    max_wait: float
    clock: Clock
    ack_wait: float
    _puller: Puller | None = None
    _stopping: bool = False
    _position: Position = field(init=False)
    _empty_fetches: int = 0
    _delivered: int = 0
    _created_again: bool = False
    """The consumer gave nothing, so that it was created again."""

    def __post_init__(self) -> None:
        self._position = Position(self.bus, self.stream, self.durable)

    async def run(self, start_sequence: int | None) -> None:
        backoff, asked = Backoff(0.1, 5.0), cancellations()
        restart_at = start_sequence
        try:
            while True:
                honour_cancellation(asked)
                try:
                    if self._puller is None:
                        await self._bind(restart_at, owned=start_sequence is not None)
                        restart_at = None
                    messages = await self._next_batch()
                except (PullBroken, nats.errors.Error, BusError) as error:
                    if isinstance(error, StreamDriftError | StreamReplacedError):
                        raise
                    log.warning(
                        "reading pauses",
                        stream=self.stream,
                        durable=self.durable,
                        reason=str(error) or repr(error),
                    )
                    await self._drop_puller()
                    await self.bus.revive()
                    await self.clock.sleep(backoff.next())
                    continue
                backoff.reset()
                if messages:
                    await self._finish(messages)
        finally:
            await self._drop_puller()

    async def _next_batch(self) -> list[Msg]:
        assert self._puller is not None
        got: list[Msg] = []
        try:
            got = await self._puller.pull(self.batch, linger=LINGER_SECONDS)
            if not got or self._position.is_due(self.clock.monotonic()):
                await self._watch_consumer(is_empty=not got)
            until = self.clock.monotonic() + self.max_wait
            while got and len(got) < self.batch and self.clock.monotonic() < until:
                more = await self._puller.pull(self.batch - len(got))
                if not more:
                    break
                got += more
        except PullBroken as error:
            got += error.received
            if not got:
                raise
            log.debug("pull ended early", stream=self.stream, reason=str(error))
            await self._drop_puller()
        except asyncio.CancelledError:
            await self._give_back(got)
            raise
        return got

    async def _finish(self, raw: list[Msg]) -> None:
        work = asyncio.ensure_future(self._handle(raw))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stopping = True
            patience = asyncio.ensure_future(self.clock.sleep(STOP_SECONDS))
            try:
                await asyncio.wait({work, patience}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                patience.cancel()
                work.cancel()  # nothing to cancel when it is done, as it nearly always is
                await asyncio.gather(work, return_exceptions=True)
            raise

    async def _handle(self, raw: list[Msg]) -> None:
        beat = asyncio.ensure_future(self._keep_working(raw))
        try:
            answers = await self._answers([_message(m) for m in raw])
            await self._answer(raw, answers)
        finally:
            beat.cancel()

    async def _answers(self, messages: list[Message]) -> list[Disposition]:
        """Calls the handler; waits for unavailable services; isolates a message that breaks it."""
        backoff = Backoff(AWAY_SECONDS, 15.0)
        while True:
            try:
                answers = list(await self.handler(messages))
                if len(answers) != len(messages):
                    raise RuntimeError(
                        f"a handler got {len(messages)} messages and gave {len(answers)} answers"
                    )
                return answers
            except AWAY as error:
                log.warning("a service is away, the batch waits", stream=self.stream, reason=str(error))
                if not self._stopping:
                    await self.clock.sleep(backoff.next())
                if self._stopping:
                    return [Retry(0.0)] * len(messages)
            except Exception as error:
                log.exception("a handler failed", stream=self.stream, durable=self.durable)
                if len(messages) > 1:
                    single = [await self._answers([message]) for message in messages]
                    return [answer for answers in single for answer in answers]
                return [self._after_failure(messages[0], error)]

    @staticmethod
    def _after_failure(message: Message, error: Exception) -> Disposition:
        if message.num_delivered >= POISON_AFTER:
            return DeadLetter("handler_error", type(error).__name__, body=b"")
        return Retry(float(min(2**message.num_delivered, 60)))

    async def _answer(self, raw: list[Msg], answers: list[Disposition]) -> None:
        try:
            for message, answer in zip(raw, answers, strict=True):
                if isinstance(answer, DeadLetter):
                    body = message.data if answer.body is None else answer.body
                    await store_dead_letter(
                        self.bus, self.stream, _message(message), answer.reason, answer.detail, body
                    )
            await self._reply(raw, answers)
        except (nats.errors.Error, BusError) as error:
            # An unacknowledged message is delivered again, and handlers are idempotent.
            log.warning(
                "acknowledgements were not confirmed", stream=self.stream, reason=type(error).__name__
            )

    async def _reply(self, raw: list[Msg], answers: list[Disposition]) -> None:
        """Answers all messages and waits until the server has the last answer. It handles those of one
        connection in order, so that one confirms the others."""
        for message, answer in zip(raw[:-1], answers[:-1], strict=True):
            await self.bus.nc.publish(message.reply, _body_of(answer))
        await self.bus.nc.request(raw[-1].reply, _body_of(answers[-1]), timeout=5.0)

    async def _give_back(self, raw: list[Msg]) -> None:
        for message in raw:
            try:
                await self.bus.nc.publish(message.reply, b"-NAK")
            except nats.errors.Error:
                return  # the server delivers it again after ack_wait

    async def _keep_working(self, raw: list[Msg]) -> None:
        while True:
            await self.clock.sleep(self.ack_wait / 3)
            for message in raw:
                try:
                    await self.bus.nc.publish(message.reply, b"+WPI")
                except nats.errors.Error:
                    break  # the server is unreachable; a redelivery is harmless

    async def _bind(self, start_sequence: int | None, *, owned: bool) -> None:
        """``owned``: the caller keeps the position itself."""
        stream_info = await self._lookup(self.bus.js.stream_info(self.stream))
        if stream_info is None:
            stream_info = await self._create_stream()
        is_known = await self._position.open(stream_info)
        if not is_known and owned and start_sequence is None:
            raise StreamReplacedError(f"Stream {self.stream} was created again: its reader starts anew.")
        if start_sequence is not None:
            await self._lookup(self.bus.js.delete_consumer(self.stream, self.durable))
            self._position.floor = max(0, start_sequence - 1)
        info = await self._lookup(self.bus.js.consumer_info(self.stream, self.durable))
        if start_sequence is None:
            # Read again, after the consumer: another reader of it may have got newer messages meanwhile.
            stream_info = await self._lookup(self.bus.js.stream_info(self.stream)) or stream_info
            info = await self._checked(stream_info, info)
        wanted = self._config()
        if info is None:
            if start_sequence is None and self._position.floor:
                log.warning("a consumer is created again", durable=self.durable, after=self._position.floor)
            info = await self._create(wanted)
        elif changed := self._drift(wanted, info.config):
            log.warning("a consumer is brought to its declared form", durable=self.durable, fields=changed)
            fields = {field: getattr(wanted, field) for field in changed}
            await self.bus.js.add_consumer(self.stream, info.config.evolve(**fields))
        self._empty_fetches = 0
        self._puller = await Puller.open(self.bus, self.stream, self.durable)

    async def _checked(
        self, stream_info: api.StreamInfo, info: api.ConsumerInfo | None
    ) -> api.ConsumerInfo | None:
        """Returns the consumer if it may go on; else deletes it and returns None. ``floor`` is then where the
        next one begins."""
        floor = info.ack_floor.stream_seq if info and info.ack_floor else 0
        begin = await self._position.lost_tail(stream_info, info)
        if begin is not None:
            self._position.floor = begin - 1
        elif floor >= self._position.floor and not self._created_again:
            self._position.floor = floor
            return info
        elif info is not None:
            log.warning("a consumer lost its place", durable=self.durable, at=floor)
        self._created_again = False
        await self._lookup(self.bus.js.delete_consumer(self.stream, self.durable))
        return None

    async def _create(self, wanted: api.ConsumerConfig) -> api.ConsumerInfo:
        try:
            return await self.bus.js.add_consumer(self.stream, wanted)
        except nats.js.errors.APIError as error:
            if error.err_code != BROKEN_STORE:
                raise
        await report(
            self.bus,
            "consumer_damaged",
            f"The state of consumer {self.durable} of {self.stream} is damaged on the server's disk. Reading "
            f"goes on after message {self._position.floor} with a consumer in memory. Remove its folder obs/"
            f"{self.durable} from the server's store.",
            stream=self.stream,
            durable=self.durable,
            after=self._position.floor,
        )
        return await self.bus.js.add_consumer(self.stream, wanted.evolve(mem_storage=True))

    async def _create_stream(self) -> api.StreamInfo:
        from onward.bus.streams import create  # streams imports more than a reader needs

        info = await create(self.bus, self.stream)
        await report_lost(
            self.bus,
            self.stream,
            str(info.created),
            f"Stream {self.stream} did not exist and was created. Messages that it held after "
            f"{self._position.floor} and that {self.durable} had not read are lost.",
            settled=self._position.floor,
        )
        return info

    def _config(self) -> api.ConsumerConfig:
        floor = self._position.floor
        return api.ConsumerConfig(
            name=self.durable,
            durable_name=self.durable,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE if floor else api.DeliverPolicy.ALL,
            opt_start_seq=floor + 1 if floor else None,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=self.ack_wait,
            max_deliver=-1,
            max_ack_pending=max(1000, 4 * self.batch),
            filter_subject=self.subject,
        )

    def _drift(self, wanted: api.ConsumerConfig, there: api.ConsumerConfig) -> list[str]:
        """Returns the fields to update. No backoff is set: its first entry would replace ack_wait."""
        if there.ack_policy != wanted.ack_policy or there.deliver_subject:
            raise StreamDriftError(
                f"Consumer {self.durable} of {self.stream} is not a pull consumer with explicit acks: "
                f"delete it (nats consumer rm) and start again."
            )
        fields = ("ack_wait", "max_deliver", "max_ack_pending", "filter_subject")
        changed = [f for f in fields if (getattr(wanted, f) or None) != (getattr(there, f) or None)]
        return changed + (["backoff"] if there.backoff else [])

    async def _watch_consumer(self, *, is_empty: bool) -> None:
        """Records the floor. Raises PullBroken if the consumer is gone, or if it gave nothing for the third
        time while messages wait: the next binding creates it again."""
        info = await self._lookup(self.bus.js.consumer_info(self.stream, self.durable))
        if info is None:
            raise PullBroken("the consumer was deleted", gone=True, received=[])
        if info.ack_floor is not None:
            await self._position.record(info.ack_floor.stream_seq, now=self.clock.monotonic())
        delivered = info.delivered.consumer_seq if info.delivered else 0
        waits = bool(info.num_pending) and (info.num_ack_pending or 0) < (info.config.max_ack_pending or 1)
        is_stuck = is_empty and waits and delivered == self._delivered
        self._empty_fetches = self._empty_fetches + 1 if is_stuck else 0
        self._delivered = delivered
        if self._empty_fetches >= STUCK_AFTER:
            self._created_again = True
            raise PullBroken("the consumer gives nothing although messages wait", gone=True, received=[])

    @staticmethod
    async def _lookup(call: Awaitable[Any]) -> Any:
        try:
            return await call
        except nats.js.errors.NotFoundError:
            return None

    async def _drop_puller(self) -> None:
        if self._puller is not None:
            await self._puller.close()
            self._puller = None


def _body_of(answer: Disposition) -> bytes:
    """Returns what the server receives for a disposition."""
    if not isinstance(answer, Retry):
        return b"+ACK"
    return b"-NAK " + json.dumps({"delay": max(1, int(answer.delay * 1e9))}).encode()


def _message(raw: Msg) -> Message:
    metadata = raw.metadata
    return Message(
        data=raw.data,
        headers=usable(raw.headers),
        subject=raw.subject,
        sequence=metadata.sequence.stream,
        num_delivered=metadata.num_delivered,
        timestamp=_stored_at(raw.reply),
    )


def _stored_at(reply: str) -> datetime:
    """Reads the time at which the server stored a message from its ack subject, cut to microseconds. The
    client's ``metadata.timestamp`` goes through a float and may be a microsecond off."""
    tokens = reply.split(".")
    nanoseconds = int(tokens[7 if len(tokens) == 9 else Msg.Ack.Timestamp])
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)
