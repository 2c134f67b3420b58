"""The skeleton of a role: readiness, loops side by side, one active process, an end in its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from lease_bucket import MemoryBucket

from onward.bus.leases import Lease
from onward.clock import ManualClock
from onward.errors import BusError, ConflictError, StreamDriftError, WarehouseError
from onward.roles import AWAY_SECONDS, STANDBY_SECONDS, lead, ready, to_the_end, together

TTL = 6.0


def context(bucket: MemoryBucket, clock: ManualClock) -> Any:
    return SimpleNamespace(clock=clock, ready={}, bus=SimpleNamespace(bucket=lambda _: bucket))


class Process:
    """One process that runs the role."""

    def __init__(
        self, bucket: MemoryBucket, clock: ManualClock, work: Callable[[Lease], Awaitable[None]]
    ) -> None:
        self.ctx = context(bucket, clock)
        self.task = asyncio.create_task(lead(self.ctx, "scorer", TTL, work))

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


class Work:
    """Works until it is cancelled and ``finish`` is set; notes both."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.notes = clock, []
        self.finish = asyncio.Event()
        self.finish.set()

    async def __call__(self, lease: Lease) -> None:
        self.notes.append("begins")
        try:
            await self.clock.sleep(1e9)
        finally:
            await self.finish.wait()
            self.notes.append("ended" if lease.held else "ended without the lease")


def test_a_role_is_ready_for_the_block_alone():
    ctx = context(MemoryBucket(), ManualClock())
    with pytest.raises(ValueError), ready(ctx, "scorer"):
        assert ctx.ready == {"scorer": True}
        raise ValueError
    assert ctx.ready == {"scorer": False}


async def test_the_first_loop_that_fails_ends_the_others_and_its_own_error_is_raised():
    ended = []

    async def runs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("runs")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise StreamDriftError("The consumer differs.")

    with pytest.raises(StreamDriftError, match="differs"):
        await together(runs(), together(runs(), fails()))
    assert ended == ["runs", "runs"]


async def test_a_repeated_cancellation_does_not_cut_short_what_a_loop_finishes():
    finish, began, notes = asyncio.Event(), asyncio.Event(), []

    async def loop() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            await finish.wait()
            notes.append("finished")

    role = asyncio.create_task(together(loop()))
    await began.wait()
    for _ in range(3):
        role.cancel()
        await asyncio.sleep(0)
    assert not role.done()
    finish.set()
    with pytest.raises(asyncio.CancelledError):
        await role
    assert notes == ["finished"]


async def test_the_last_steps_go_on_however_often_they_are_cancelled_and_their_error_is_raised():
    finish = asyncio.Event()

    async def steps() -> None:
        await finish.wait()
        raise BusError("The last report was refused.")

    end = asyncio.create_task(to_the_end(steps()))
    for _ in range(3):
        await asyncio.sleep(0)
        end.cancel()
    await asyncio.sleep(0)
    assert not end.done()
    finish.set()
    with pytest.raises(BusError, match="refused"):
        await end


async def test_a_standby_is_ready_and_takes_over_at_once_when_the_leader_stops():
    bucket, clock = MemoryBucket(), ManualClock()
    works = [Work(clock), Work(clock)]
    first = Process(bucket, clock, works[0])
    await clock.advance(0)
    second = Process(bucket, clock, works[1])
    await clock.advance(10 * TTL)
    assert (works[0].notes, works[1].notes) == (["begins"], []), "the lease was renewed all the time"
    assert second.ctx.ready == {"scorer": True}
    await first.stop()
    assert (works[0].notes, first.ctx.ready) == (["begins", "ended"], {"scorer": False})
    await clock.advance(STANDBY_SECONDS)
    assert works[1].notes == ["begins"]
    await second.stop()


async def test_work_that_finishes_after_a_cancellation_still_has_its_lease():
    bucket, clock = MemoryBucket(), ManualClock()
    works = [Work(clock), Work(clock)]
    works[0].finish.clear()
    first = Process(bucket, clock, works[0])
    await clock.advance(0)
    second = Process(bucket, clock, works[1])
    for _ in range(3):  # the host repeats it every second
        first.task.cancel()
        await clock.advance(10 * TTL)
    assert not first.task.done() and works[1].notes == []
    works[0].finish.set()
    await asyncio.wait([first.task])
    assert works[0].notes == ["begins", "ended"]
    await second.stop()


async def test_a_lost_lease_ends_the_work_and_another_one_begins_it_again():
    bucket, clock = MemoryBucket(), ManualClock()
    work = Work(clock)
    process = Process(bucket, clock, work)
    await clock.advance(1)
    bucket.away = True
    await clock.advance(2 * TTL)
    assert work.notes == ["begins", "ended without the lease"]
    bucket.away = False
    await clock.advance(2 * TTL)
    assert work.notes[2:] == ["begins"]
    await process.stop()


@pytest.mark.parametrize(
    ("error", "pause"),
    [(BusError("away"), AWAY_SECONDS), (WarehouseError("away"), AWAY_SECONDS), (ConflictError("taken"), 0.0)],
)
async def test_work_begins_again_after_a_service_was_away_or_another_process_was_faster(error, pause):
    bucket, clock = MemoryBucket(), ManualClock()
    begun = []

    async def work(lease: Lease) -> None:
        begun.append(clock.monotonic())
        if len(begun) == 1:
            raise error
        await clock.sleep(1e9)

    process = Process(bucket, clock, work)
    await clock.advance(AWAY_SECONDS)
    assert begun == [0.0, pause]
    await process.stop()


async def test_a_stream_that_differs_ends_the_role():
    async def work(lease: Lease) -> None:
        raise StreamDriftError("The consumer differs.")

    ctx = context(MemoryBucket(), ManualClock())
    with pytest.raises(StreamDriftError):
        await lead(ctx, "scorer", TTL, work)
    assert ctx.ready == {"scorer": False}
