"""Closes of sessions whose tasks another gateway holds, passed on through bucket ``rl_closes``.

A client may reach another gateway with its close than with its calls. The gateway that is asked closes its
own tasks and asks every other living gateway for theirs.

Invariants: a close is confirmed only after every living gateway has answered, and each answers after its
tasks are durable. Without an answer the client gets an error and sends its close again. A gateway counts as
dead only after a lease in which this one could read reports: silence of the bus is no sign of death. No text
of a user is written to the bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import nats.errors

from onward.bus import Bus, Entry
from onward.bus.buckets import stream_of
from onward.clock import Clock, is_set_within
from onward.contracts.buckets import (
    GATEWAY_LEASE_SECONDS,
    AnsweredClose,
    AskedClose,
    ClosedTask,
    GatewayReport,
)
from onward.errors import BusError
from onward.http.app import HttpError
from onward.ids import new_id
from onward.roles import together
from onward.telemetry import logs

_log = logs.get("capture")
ANSWER_SECONDS = 10.0
"""Time that the other gateways have: longer than a close waits for a running call."""
BUS_SECONDS = 5.0
RETRY_SECONDS = 1.0
GAP_SECONDS = GATEWAY_LEASE_SECONDS / 2
"""Time without any report, not even this gateway's own, after which the bus counts as interrupted."""
OLD_SECONDS = 60.0
Close = Callable[[AskedClose], Awaitable[AnsweredClose]]


class _Waiting:
    """Answers to one close that this gateway passed on."""

    def __init__(self, gateways: set[str]) -> None:
        self.missing = gateways
        self.answers: list[AnsweredClose] = []
        self.complete = asyncio.Event()

    def add(self, gateway_id: str, answer: AnsweredClose) -> None:
        if gateway_id in self.missing:
            self.missing.discard(gateway_id)
            self.answers.append(answer)
        if not self.missing:
            self.complete.set()


class PassedCloses:
    """Asks other gateways to close their part of a session, and answers them."""

    def __init__(self, bus: Bus, clock: Clock, gateway_id: str, close: Close) -> None:
        """``close`` ends this gateway's tasks for another one; it returns after they are durable."""
        self._bus, self._clock, self._gateway_id, self._close = bus, clock, gateway_id, close
        self._bucket = bus.bucket(AskedClose.BUCKET)
        self._seen: dict[str, float] = {}
        """Other gateway → monotonic seconds of its last report, or of the end of an interruption after it."""
        self._heard = clock.monotonic()
        """Monotonic seconds of the last report of any gateway, this one included."""
        self._known = asyncio.Event()
        """Set once all reports were read that were there at the start."""
        self._waiting: dict[str, _Waiting] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follows the other gateways and their closes until cancelled."""
        try:
            await together(self._follow_gateways(), self._follow_closes())
        finally:
            for task in self._answering:
                task.cancel()

    def others(self) -> set[str]:
        """Returns the other gateways that reported in the 15 seconds before the last report of any gateway.
        While no report comes, as when NATS is away, none of them is given up."""
        return {name for name, at in self._seen.items() if self._heard - at <= GATEWAY_LEASE_SECONDS}

    async def ask(self, name: str, owner: str | None, outcome: dict[str, Any] | None) -> list[ClosedTask]:
        """Returns what the other living gateways closed under this name, recorded by now. Raises HttpError:
        503 if they are unknown or one of them does not answer; else the error of one of them."""
        if not self._known.is_set() and not (
            self._bus.is_connected and await is_set_within(self._known, BUS_SECONDS, self._clock)
        ):
            raise _unavailable("It is not known yet which other gateways may hold tasks of this session")
        others = self.others()
        if not others:
            return []
        if not self._bus.is_connected:
            raise _unavailable("NATS is away, and another gateway may hold tasks of this session")
        number, waiting = new_id(), _Waiting(others)
        self._waiting[number] = waiting
        asked = AskedClose(gateway_id=self._gateway_id, name=name, owner=owner, outcome=outcome)
        try:
            await self._bucket.put(f"{AskedClose.KEY}{number}", asked.dump(), deadline=BUS_SECONDS)
            await is_set_within(waiting.complete, ANSWER_SECONDS, self._clock)
        except BusError:
            pass  # as if nobody had answered
        finally:
            del self._waiting[number]
        if missing := waiting.missing & self.others():
            raise _unavailable(f"Gateway {min(missing)} may hold tasks of this session and did not answer")
        errors = [answer for answer in waiting.answers if answer.status not in (200, 404)]
        if errors:
            error = min(errors, key=lambda answer: answer.status != 503)
            kind = "service_unavailable" if error.status == 503 else "conflict_error"
            raise HttpError(error.status, error.error, type=kind)
        return [task for answer in waiting.answers for task in answer.closed]

    async def _follow_gateways(self) -> None:
        bucket, revisions = self._bus.bucket(GatewayReport.BUCKET), dict[str, int]()
        while not self._known.is_set():
            try:
                for entry in await bucket.entries():
                    self._hear(entry, revisions)
                self._known.set()
            except BusError as error:
                _log.warning("the other gateways cannot be read yet", reason=str(error))
                await self._clock.sleep(RETRY_SECONDS)
        async for entry in bucket.watch(deletes=True):
            self._hear(entry, revisions)

    def _hear(self, entry: Entry, revisions: dict[str, int]) -> None:
        """Notes a report. ``revisions``: the newest one of each gateway so far."""
        if entry.revision <= revisions.get(entry.key, 0):
            return
        is_first = entry.key not in revisions
        revisions[entry.key] = entry.revision
        now = self._clock.monotonic()
        if now - self._heard > GAP_SECONDS:  # the others were not heard either: each has a whole lease again
            self._seen = dict.fromkeys(self.others(), now)
        self._heard = now
        if entry.key == self._gateway_id:
            return
        if entry.deleted:
            self._seen.pop(entry.key, None)
        elif not is_first or not self._is_old(entry):
            self._seen[entry.key] = now

    def _is_old(self, entry: Entry) -> bool:
        """Returns whether a report from before this gateway's start is of a dead one: by the wall clock, with
        tolerance, since nothing else is known yet."""
        try:
            written = datetime.fromisoformat(str(GatewayReport.load(entry.value).updated_at))
            return (self._clock.now() - written).total_seconds() > OLD_SECONDS
        except (ValueError, TypeError):
            return False

    async def _follow_closes(self) -> None:
        after = await self._last_revision()
        async for entry in self._bucket.watch():
            if entry.revision <= after:
                continue  # asked before this process had any task
            try:
                self._follow(entry)
            except ValueError:
                _log.warning("a passed close is not readable", key=entry.key)

    async def _last_revision(self) -> int:
        while True:
            try:
                return (await self._bus.js.stream_info(stream_of(AskedClose.BUCKET))).state.last_seq
            except nats.errors.Error as error:
                _log.warning("passed closes cannot be read yet", reason=type(error).__name__)
                await self._clock.sleep(RETRY_SECONDS)

    def _follow(self, entry: Entry) -> None:
        kind, _, rest = entry.key.partition(".")
        number, _, gateway_id = rest.partition(".")
        if kind == "answer" and (waiting := self._waiting.get(number)) is not None:
            waiting.add(gateway_id, AnsweredClose.load(entry.value))
        elif kind == "ask":
            asked = AskedClose.load(entry.value)
            if asked.gateway_id != self._gateway_id:
                task = asyncio.create_task(self._answer(number, asked), name="gateway-passed-close")
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)

    async def _answer(self, number: str, asked: AskedClose) -> None:
        try:
            answer = await self._close(asked)
            key = f"{AnsweredClose.KEY}{number}.{self._gateway_id}"
            await self._bucket.put(key, answer.dump(), deadline=BUS_SECONDS)
        except BusError as error:
            _log.warning("a passed close is not answered", reason=str(error))


def _unavailable(why: str) -> HttpError:
    return HttpError(503, f"{why}: close it again in a few seconds.", type="service_unavailable")
