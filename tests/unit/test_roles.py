"""The skeleton of a role: readiness, loops side by side, one active process, an end in its own time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from lease_bucket import MemoryBucket

from onward.bus.leases import Lease
from onward.clock import ManualClock
from onward.errors import BusError, ConfigError, ConflictError, StreamDriftError, WarehouseError
from onward.roles import (
    AWAY_SECONDS,
    STANDBY_SECONDS,
    error_sentence,
    keep_running,
    lead,
    ready,
    to_the_end,
    together,
)
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics

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


class Service:
    """One role that is kept running. ``script``: what each run of it does, the last one repeatedly."""

    def __init__(self, *script: BaseException | float | None, started: bool = True) -> None:
        """An error is raised at once; a number of seconds is worked, then the role fails; None works on."""
        self.script, self.clock, self.bucket = list(script), ManualClock(), MemoryBucket()
        self.notices: list[dict[str, Any]] = []
        self.begun: list[float] = []
        self.metrics = Metrics()
        bus: Any = SimpleNamespace(bucket=lambda _: self.bucket, notify=self._notify)
        self.ctx: Any = SimpleNamespace(
            clock=self.clock, ready={}, bus=bus, metrics=self.metrics,
            alerts=Alerts(bus, self.clock, self.metrics),
        )  # fmt: skip
        self.task = asyncio.create_task(keep_running(self.ctx, "scorer", self._run, lambda: started))

    async def _notify(self, subject: str, data: bytes) -> None:
        self.notices.append(json.loads(data))

    async def _run(self) -> None:
        self.begun.append(self.clock.monotonic())
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        with ready(self.ctx, "scorer"):
            if isinstance(step, BaseException):
                raise step
            await self.clock.sleep(1e9 if step is None else step)
            raise ValueError("a defect")

    @property
    def report(self) -> dict[str, Any] | None:
        return None if self.bucket.entry is None else json.loads(self.bucket.entry.value)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_a_role_that_keeps_failing_starts_again_after_pauses_that_double_up_to_a_minute():
    service = Service(KeyError("a defect"))
    for _ in range(200):
        await service.clock.advance(1)
    assert service.begun == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    await service.stop()
    assert service.task.cancelled()


async def test_after_a_quiet_minute_the_next_pause_is_the_first_one_again():
    service = Service(ValueError("a"), ValueError("a"), 61.0)
    for _ in range(70):
        await service.clock.advance(1)
    assert service.begun == [0, 1, 3, 65]
    await service.stop()


async def test_a_failure_is_shown_until_the_role_has_run_quietly_for_a_minute():
    service = Service(ValueError("bad\nrow"), ValueError("bad\nrow"), None)
    await service.clock.advance(0.5)
    assert service.ctx.ready == {"scorer": "the scorer failed and starts again in 1 s: ValueError: bad row"}
    await service.clock.advance(1)
    assert service.report is not None
    assert (service.report["error"], service.report["restarts"]) == ("ValueError: bad row", 2)
    for _ in range(30):
        await service.clock.advance(1)
    assert service.ctx.ready == {"scorer": True} and service.report is not None
    for _ in range(40):
        await service.clock.advance(1)
    assert service.report is None
    assert [(n["kind"], n["severity"]) for n in service.notices] == [
        ("role_failed", "critical"), ("role_failed", "resolved")
    ], "the same failure is reported once"  # fmt: skip
    assert b'onward_role_restarts_total{role="scorer"} 2.0' in service.metrics.render()
    await service.stop()


async def test_a_role_goes_on_failing_and_starting_while_nats_is_away():
    service = Service(ValueError("a defect"))
    service.bucket.away = True
    await service.clock.advance(1)
    await service.clock.advance(2)
    assert service.begun == [0, 1, 3]
    await service.stop()


async def test_an_error_for_a_person_before_the_first_readiness_ends_the_start():
    service = Service(ConfigError("The port is busy."), started=False)
    with pytest.raises(ConfigError, match="busy"):
        await service.task


@pytest.mark.parametrize("started", [True, False])
async def test_a_defect_before_the_first_readiness_is_contained_like_any_other(started):
    service = Service(TypeError("a defect"), None, started=started)
    await service.clock.advance(1)
    assert service.begun == [0, 1] and not service.task.done()
    await service.stop()


@pytest.mark.parametrize("error", [ConfigError("changed"), asyncio.CancelledError(), BusError("away")])
async def test_any_error_of_a_role_that_was_ready_is_contained(error):
    service = Service(error, None)
    await service.clock.advance(1)
    assert service.begun == [0, 1] and not service.task.done()
    await service.stop()
    assert service.task.cancelled()


async def test_a_failed_loop_beside_others_ends_its_role_alone_and_the_role_starts_again():
    service, begun = Service(None), []
    await service.stop()

    async def loop(fails: bool) -> None:
        await service.clock.sleep(1)
        if fails:
            raise KeyError("a defect")
        await service.clock.sleep(1e9)

    async def role() -> None:
        begun.append(service.clock.monotonic())
        await together(loop(False), loop(True))

    task = asyncio.create_task(keep_running(service.ctx, "scorer", role, lambda: True))
    for _ in range(8):
        await service.clock.advance(1)
    assert begun == [0, 2, 5] and not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_role_that_fails_while_it_is_stopped_is_not_started_again():
    service = Service(None)

    async def fails_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("a defect at the end")

    service.task.cancel()
    task = asyncio.create_task(keep_running(service.ctx, "scorer", fails_at_its_end, lambda: True))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ValueError, match="at the end"):
        await task


def test_an_error_is_shown_in_one_short_line_without_a_login():
    assert error_sentence(BusError("NATS at nats://me:secret@host is away.")) == (
        "NATS at nats://host is away."
    )
    assert error_sentence(KeyError("arms")) == "KeyError: 'arms'"
    assert error_sentence(RuntimeError()) == "RuntimeError"
    assert len(error_sentence(ValueError("x" * 1000))) == 300
