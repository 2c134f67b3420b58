"""A job is cancelled at any time: queued, running, waiting, at its end; and the same twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from trainer_world import World, world_with_a_job

from onward.contracts import TrainingRequest, decode
from onward.errors import ObjectError, TrainingError
from onward.training.checkpoints import Commit
from onward.training.role import trainer as service


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await world_with_a_job(tmp_path)


def _statuses(world: World) -> list[str]:
    return [status["status"] for status in world.published.values()]


async def test_a_running_job_ends_within_seconds_and_its_work_is_stopped(world: World) -> None:
    stopped: list[str] = []

    async def works(lease: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(lease.record.job_id)

    table = service.Trainer(world.ctx).table
    async with world.trainer(works) as task:
        await world.clock.advance(5.0)
        for _ in range(2):
            await table.cancel("job-1", "ops")
        await world.clock.advance(2.0)
        assert (world.job.state, world.job.cancelled_by, stopped) == ("cancelled", "ops", ["job-1"])
        assert not task.done()
        await world.clock.advance(60.0)
    assert (world.job.attempt, _statuses(world).count("cancelled"), world.alerts) == (1, 1, [])
    assert world.job.announced


async def test_a_queued_job_is_announced_as_cancelled_while_another_one_runs(world: World) -> None:
    request = decode(world.request.data, TrainingRequest)
    trainer = service.Trainer(world.ctx)
    await trainer.table.register(request.model_copy(update={"training_job_id": "job-2"}))

    async def works(lease: Any) -> Any:
        await asyncio.Event().wait()

    async with world.trainer(works):
        await world.clock.advance(2.0)
        assert world.job.state == "running"
        assert (await trainer.table.cancel("job-2", "ops")).state == "cancelled"
        await world.clock.advance(2.0)
        said = [one for one in world.published.values() if one["training_job_id"] == "job-2"]
        assert [one["status"] for one in said] == ["cancelled"]
        assert said[0]["metadata"]["cancelled_by"] == "ops"
        assert world.job.state == "running"


async def test_a_job_that_waits_after_an_outage_is_cancelled_at_once(world: World) -> None:
    async def away(lease: Any) -> Any:
        raise ObjectError("The object store is away.")

    async with world.trainer(away):
        await world.clock.advance(1.0)
        assert world.job.not_before is not None
        await service.Trainer(world.ctx).table.cancel("job-1", "ops")
        assert (world.job.state, world.job.not_before) == ("cancelled", None)
        await world.clock.advance(60.0)
    assert world.job.attempt == 1


@pytest.mark.parametrize("ending", ["failed", "outage", "completed"])
async def test_a_request_to_cancel_that_comes_as_the_attempt_ends(world: World, ending: str) -> None:
    """A result that is committed already counts; nothing else does."""
    table = service.Trainer(world.ctx).table
    commit: Any = {
        "job_id": "job-1", "epoch": 1, "manifest_sha256": "m", "object_prefix": "p", "adapter_digest": "d",
    }  # fmt: skip

    async def ends(lease: Any) -> Any:
        await table.cancel("job-1", "ops")
        if ending == "failed":
            raise TrainingError("DATA", "Nothing to train on.")
        if ending == "outage":
            raise ObjectError("The object store is away.")
        return Commit(**commit), {"samples": 1, "metrics": {}, "seconds": 1.0}

    async with world.trainer(ends):
        await world.clock.advance(5.0)
    assert (world.job.state, world.job.attempt) == (
        "completed" if ending == "completed" else "cancelled", 1,
    )  # fmt: skip


async def test_a_job_whose_trainer_died_after_the_request_to_cancel_is_not_run_again(world: World) -> None:
    table = service.Trainer(world.ctx).table
    await table.claim(*await table.get("job-1"), "another-node:1")
    await table.cancel("job-1", "ops")
    async with world.trainer(lambda lease: pytest.fail("it ran")):
        await world.clock.advance(world.settings.training.lease_seconds + 2)
    assert (world.job.state, world.job.attempt) == ("cancelled", 1)


async def test_a_clean_stop_of_the_trainer_ends_a_job_that_is_to_be_cancelled(world: World) -> None:
    async def works(lease: Any) -> Any:
        await asyncio.Event().wait()

    async with world.trainer(works):
        await world.clock.advance(1.0)
        await service.Trainer(world.ctx).table.cancel("job-1", "ops")
    assert world.job.state == "cancelled"
    await service.Trainer(world.ctx).reannounce()
    assert "cancelled" in _statuses(world)
