"""Fault 18: two schedulers, and a network that parts one of them from NATS: never two owners of one epoch."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from partition import Partition, partition
from trainer_world import asked

from onward import config, roles
from onward.bus import Bus, NatsServer
from onward.bus.leases import Lease
from onward.clock import SystemClock
from onward.errors import BusError, ConflictError
from onward.telemetry.metrics import Metrics
from onward.training.role import trainer as service
from onward.training.role.job_table import JobTable

Work = list[tuple[int, str, float]]
"""Epoch, worker and time of each step of work."""
TERM = 1.0


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Bus, Bus, Partition]]:
    """Two connections to one server; the first can be cut off."""
    server = NatsServer(tmp_path / "data")
    await server.start()
    try:
        async with partition(server.url) as cut:
            first = await Bus.connect(cut.url, token=server.token)
            second = await Bus.connect(server.url, token=server.token)
            await second.ensure_streams()
            try:
                yield first, second, cut
            finally:
                cut.heal()
                await first.close()
                await second.close()
    finally:
        await server.stop()


def check_one_owner_at_a_time(work: Work) -> list[int]:
    """No epoch has two workers, and no step of an epoch is after one of a later epoch. Returns the epochs."""
    for epoch, steps in itertools.groupby(sorted(work), key=lambda step: step[0]):
        assert len({worker for _, worker, _ in steps}) == 1, f"two owners of epoch {epoch}"
    in_time = [epoch for epoch, _, _ in sorted(work, key=lambda step: step[2])]
    assert in_time == sorted(in_time), "an owner went on working after the next one had begun"
    return sorted(set(in_time))


async def _until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def _running(*coroutines: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one) for one in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_two_releasers_and_a_partition_never_own_one_epoch(two: tuple[Bus, Bus, Partition]) -> None:
    first, second, cut = two
    work: Work = []

    def role(name: str, bus: Bus) -> Any:
        ctx: Any = SimpleNamespace(bus=bus, clock=SystemClock(), ready={})

        async def steps(lease: Lease) -> None:
            while True:
                if lease.held:
                    work.append((lease.epoch or 0, name, time.monotonic()))
                await asyncio.sleep(0.005)

        return roles.lead(ctx, "releaser", TERM, steps)

    async with _running(role("a", first)):
        await _until(lambda: work)
        async with _running(role("b", second)):
            for _ in range(2):
                cut.cut()
                await _until(lambda: work[-1][1] == "b")
                cut.heal()
                await asyncio.sleep(2 * TERM)  # the first one is back, with what it sent meanwhile
        await _until(lambda: work[-1][1] == "a")  # released: it takes over
    assert len(check_one_owner_at_a_time(work)) >= 3


async def test_two_trainers_and_a_partition_never_run_one_attempt(
    two: tuple[Bus, Bus, Partition], tmp_path: Path
) -> None:
    first, second, cut = two
    work: Work = []

    def trainer(name: str, bus: Bus) -> service.Trainer:
        overrides = {"data_dir": tmp_path / name, "training": {"lease_seconds": TERM}}
        alerts = SimpleNamespace(raise_=lambda *_, **__: asyncio.sleep(0))
        ctx: Any = SimpleNamespace(
            settings=config.load(environ={}, overrides=overrides), clock=SystemClock(), bus=bus,
            metrics=Metrics(), alerts=alerts,
        )  # fmt: skip
        made = service.Trainer(ctx)

        async def attempt(lease: Any) -> Any:
            while True:
                work.append((lease.record.attempt, name, time.monotonic()))
                await asyncio.sleep(0.005)

        made._attempt = attempt  # type: ignore[method-assign]
        return made

    table = JobTable(second.bucket("rl_jobs"), SystemClock())
    await table.register(asked(None, "reinforce", source="clickhouse"))
    async with _running(trainer("a", first).run_jobs()):
        await _until(lambda: work)
        record, revision = await table.get("job-1")
        async with _running(trainer("b", second).run_jobs()):
            cut.cut()
            await _until(lambda: work[-1][1] == "b")
            cut.heal()
            await asyncio.sleep(2 * TERM)
    assert check_one_owner_at_a_time(work)[:2] == [1, 2]
    # What the first one would still write, it cannot: its revision is gone.
    late = JobTable(first.bucket("rl_jobs"), SystemClock())
    with pytest.raises((ConflictError, BusError)):
        await late.move(record, revision, "completed")
    assert (await table.get("job-1"))[0].failed_attempts <= 1
