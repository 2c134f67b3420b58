"""Fault 15 with a real server: however often and at once a request comes, it is one job with one number."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainer_world import asked

from onward import config
from onward.bus import Bus, NatsServer, consume
from onward.clock import SystemClock
from onward.contracts import encode, subjects
from onward.telemetry.metrics import Metrics
from onward.training.role.job_table import JobTable
from onward.training.role.trainer import Trainer

REQUEST = asked(None, "reinforce", source="clickhouse")


@asynccontextmanager
async def _connected(folder: Path) -> AsyncIterator[tuple[Bus, Trainer]]:
    """A server on ``folder``, and a trainer that receives requests and runs none."""
    server = NatsServer(folder / "nats")
    await server.start()
    bus = await Bus.connect(server.url, token=server.token, name="test")
    await bus.ensure_streams(migrate=True)
    settings = config.load(environ={}, overrides={"data_dir": folder})
    ctx: Any = SimpleNamespace(settings=settings, clock=SystemClock(), bus=bus, metrics=Metrics())
    trainer = Trainer(ctx)
    intake = asyncio.create_task(
        consume(bus, stream="RL_TRAINING", durable="trainer", subject=subjects.TRAINING_REQUEST,
                handler=trainer.handle_requests)
    )  # fmt: skip
    try:
        yield bus, trainer
    finally:
        intake.cancel()
        await asyncio.gather(intake, return_exceptions=True)
        await bus.close()
        await server.stop()


async def _jobs(table: JobTable, count: int) -> dict[str, int]:
    async with asyncio.timeout(30):
        while len(found := {job.job_id: job.number for job, _ in await table.all() if job.number}) < count:
            await asyncio.sleep(0.05)
    return found


async def test_a_hundred_copies_of_a_request_are_one_job_also_after_the_window_and_a_restart(
    tmp_path: Path,
) -> None:
    async def publish(bus: Bus, number: int) -> None:
        """Every second copy has an id of its own, as one that comes after the dedupe window."""
        msg_id = "job-1" if number % 2 else f"late-{number}"
        await bus.publish(subjects.TRAINING_REQUEST, encode(REQUEST), msg_id=msg_id)

    async with _connected(tmp_path) as (bus, trainer):
        other = JobTable(bus.bucket("rl_jobs"), SystemClock())
        copies = [publish(bus, number) for number in range(60)]
        found = await asyncio.gather(*copies, *(other.register(REQUEST) for _ in range(40)))
        assert sum(one[1] for one in found if one is not None) <= 1, "at most one of them made it"
        assert await _jobs(trainer.table, 1) == {"job-1": 1}
    async with _connected(tmp_path) as (bus, trainer):
        await asyncio.gather(*(publish(bus, number) for number in range(100, 120)))
        second = REQUEST.model_copy(update={"training_job_id": "job-2"})
        await bus.publish(subjects.TRAINING_REQUEST, encode(second), msg_id="job-2")
        assert await _jobs(trainer.table, 2) == {"job-1": 1, "job-2": 2}


async def test_jobs_that_come_at_once_from_several_processes_have_the_numbers_from_one_on(bus: Bus) -> None:
    tables = [JobTable(bus.bucket("rl_jobs"), SystemClock()) for _ in range(3)]
    requests = [REQUEST.model_copy(update={"training_job_id": f"job-{n}"}) for n in range(12)]
    await asyncio.gather(*(tables[n % 3].register(one) for n, one in enumerate(requests * 2)))
    assert sorted((await _jobs(tables[0], 12)).values()) == list(range(1, 13))
