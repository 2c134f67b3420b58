"""Passed closes: a gateway that may hold tasks is never left out because the bus is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from onward.bus.buckets import Entry
from onward.clock import ManualClock, utc_text
from onward.contracts.buckets import AnsweredClose, AskedClose, ClosedTask, GatewayReport
from onward.errors import BusError
from onward.http.app import HttpError
from onward.serving.recording.passed_closes import PassedCloses

DONE = AnsweredClose(closed=[ClosedTask(trajectory_id="t1", session_id="s1", turns=1, silent=False)])
UNDER_WAY = AnsweredClose(status=409, error="A call is under way.")
FULL = AnsweredClose(status=503, error="The outbox takes nothing.")
NOTHING = AnsweredClose(status=404, error="Nothing is open.")


class Scripted:
    """A bus with two buckets, as one gateway, ``me``, sees them."""

    def __init__(self, *first: str) -> None:
        self.clock, self.is_connected, self.readable = ManualClock(), True, True
        self.answers: dict[str, AnsweredClose] = {}
        self.asked = 0
        self._revision = 0
        self._streams: dict[str, asyncio.Queue[Entry]] = {
            name: asyncio.Queue() for name in (GatewayReport.BUCKET, AskedClose.BUCKET)
        }
        self.first = [self._report(name) for name in first]
        self.js = SimpleNamespace(stream_info=self._stream_info)
        self.closes = PassedCloses(self, self.clock, "me", self._close)  # type: ignore[arg-type]

    async def _close(self, asked: AskedClose) -> AnsweredClose:
        raise AssertionError("nobody asks this gateway")

    async def _stream_info(self, name: str) -> Any:
        return SimpleNamespace(state=SimpleNamespace(last_seq=0))

    def _entry(self, key: str, value: bytes) -> Entry:
        self._revision += 1
        return Entry(key, value, self._revision)

    def _report(self, name: str) -> Entry:
        return self._entry(name, f'{{"updated_at": "{utc_text(self.clock.now())}"}}'.encode())

    def bucket(self, name: str) -> Any:
        async def entries() -> list[Entry]:
            if not self.readable:
                raise BusError("away")
            return self.first

        async def watch(**_: Any) -> AsyncIterator[Entry]:
            while True:
                yield await self._streams[name].get()

        async def put(key: str, value: bytes, **_: Any) -> None:
            self.asked += 1
            for gateway_id, answer in self.answers.items():
                kind = f"answer.{key.removeprefix('ask.')}.{gateway_id}"
                self._streams[name].put_nowait(self._entry(kind, answer.dump()))

        return SimpleNamespace(entries=entries, watch=watch, put=put)

    async def hear(self, *names: str) -> None:
        """Reports of these gateways arrive."""
        for name in names:
            self._streams[GatewayReport.BUCKET].put_nowait(self._report(name))
        await self.clock.advance(0)

    async def run(self) -> asyncio.Task[None]:
        running = asyncio.create_task(self.closes.run())
        await self.clock.advance(0)
        return running

    async def ask(self) -> list[str]:
        """Trajectories that the others closed, while the clock goes on."""
        asking = asyncio.create_task(self.closes.ask("s1", None, None))
        await asyncio.sleep(0)
        while not asking.done():
            await self.clock.advance(1)
        return [task.trajectory_id for task in asking.result()]

    async def refused(self) -> HttpError:
        with pytest.raises(HttpError) as refused:
            await self.ask()
        return refused.value


async def test_before_the_first_reports_are_read_no_close_is_confirmed():
    bus = Scripted("other")
    bus.readable, bus.answers = False, {"other": DONE}
    running = await bus.run()
    assert (await bus.refused()).status == 503
    bus.readable = True
    await bus.clock.advance(2)
    assert await bus.ask() == ["t1"]
    running.cancel()


async def test_a_close_right_after_the_start_waits_for_the_first_reports():
    bus = Scripted("other")
    bus.answers = {"other": DONE}
    asking = asyncio.create_task(bus.closes.ask("s1", None, None))
    await asyncio.sleep(0)
    running = await bus.run()
    assert [task.trajectory_id for task in await asking] == ["t1"]
    running.cancel()


async def test_during_an_outage_the_others_are_not_forgotten_and_no_close_is_confirmed():
    bus = Scripted("me", "other")
    running = await bus.run()
    bus.is_connected = False
    for _ in range(3):
        await bus.clock.advance(100)
        assert bus.closes.others() == {"other"}
        assert (await bus.refused()).status == 503
    assert bus.asked == 0
    running.cancel()


async def test_after_an_outage_each_gateway_has_a_whole_lease_again():
    bus = Scripted("me", "other")
    bus.answers = {"other": DONE}
    running = await bus.run()
    await bus.clock.advance(100)
    for _ in range(3):
        await bus.hear("me")
        assert await bus.ask() == ["t1"]
        await bus.clock.advance(5)
    await bus.hear("me")
    assert bus.closes.others() == set(), "it is dead: this gateway heard its own reports for a whole lease"
    assert await bus.ask() == []
    running.cancel()


async def test_a_gateway_without_others_answers_closes_also_during_an_outage():
    bus = Scripted("me")
    running = await bus.run()
    bus.is_connected = False
    await bus.clock.advance(100)
    assert await bus.ask() == [] and bus.asked == 0
    running.cancel()


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [(DONE, UNDER_WAY, 409), (UNDER_WAY, DONE, 409), (DONE, FULL, 503), (UNDER_WAY, FULL, 503)],
)
async def test_an_error_of_any_gateway_is_the_answer_and_503_comes_first(first, second, status):
    bus = Scripted("one", "two")
    bus.answers = {"one": first, "two": second}
    running = await bus.run()
    assert (await bus.refused()).status == status
    running.cancel()


async def test_a_gateway_that_has_nothing_is_no_error():
    bus = Scripted("one", "two")
    bus.answers = {"one": NOTHING, "two": DONE}
    running = await bus.run()
    assert await bus.ask() == ["t1"]
    running.cancel()
