"""Closes of sessions whose tasks another gateway holds, passed on through bucket ``rl_closes``.

A client may reach another gateway with its close than with its calls. The gateway that is asked closes its
own tasks and asks every other living gateway for theirs.

Invariants: a close is confirmed only after every living gateway has answered, and each answers after its
tasks are durable. Without an answer the client gets an error and sends its close again. No text of a user
is written to the bucket.
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
        """Other gateway → monotonic seconds of its last report."""
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
        """Returns the other gateways that reported in the last 15 seconds."""
        now = self._clock.monotonic()
        return {name for name, at in self._seen.items() if now - at <= GATEWAY_LEASE_SECONDS}

    async def ask(self, name: str, owner: str | None, outcome: dict[str, Any] | None) -> list[ClosedTask]:
        """Returns what the other living gateways closed under this name, recorded by now. Raises HttpError:
        503 if one of them does not answer; its own error if no gateway closed anything."""
        others = self.others()
        if not others:
            return []
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
            raise HttpError(
                503,
                f"Gateway {min(missing)} may hold tasks of this session and did not answer: close it again "
                f"in a few seconds.",
                type="service_unavailable",
            )
        closed = [task for answer in waiting.answers for task in answer.closed]
        errors = [answer for answer in waiting.answers if answer.status != 200]
        if errors and (not closed or errors[0].status == 503):
            kind = "service_unavailable" if errors[0].status == 503 else "conflict_error"
            raise HttpError(errors[0].status, errors[0].error, type=kind)
        return closed

    async def _follow_gateways(self) -> None:
        known: set[str] = set()
        async for entry in self._bus.bucket(GatewayReport.BUCKET).watch(deletes=True):
            if entry.key == self._gateway_id:
                continue
            if entry.deleted:
                self._seen.pop(entry.key, None)
            elif entry.key in known or not self._is_old(entry):
                self._seen[entry.key] = self._clock.monotonic()
            known.add(entry.key)

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
