"""A trainer whose job records are damaged, down to one wrong field: it goes on, and runs the other jobs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from stored_documents import JOB
from trainer_world import World

from onward.api.status import next_sentence
from onward.contracts import TrainingRequest, examples
from onward.errors import ContractError
from onward.training.role import trainer as service
from onward.training.role.job_table import JobRecord

VALUES: list[Any] = [None, "x", -1, 7, [], [1], {}, {"a": [1]}, [{}], True, {"metrics": 5}]


async def world_with(folder: Path, field: str, state: str) -> World:
    world = World(folder)
    base = {**JOB, "request": examples.TRAINING_REQUEST, "state": state, "announced": False}
    if state != "completed":
        base |= {"commit": None, "error": None}
    for number, value in enumerate(VALUES):
        wrong = {**base, "job_id": f"bad-{number}", field: value}
        await world.bucket("rl_jobs").create(f"job.bad-{number}", json.dumps(wrong).encode())
    return world


@pytest.mark.parametrize("state", ["completed", "queued", "failed"])
@pytest.mark.parametrize("field", sorted(JobRecord.model_fields))
async def test_jobs_with_one_wrong_field_never_fail_the_trainer(
    tmp_path: Path, field: str, state: str
) -> None:
    world = await world_with(tmp_path, field, state)
    trainer = service.Trainer(world.ctx)
    await trainer.reannounce()
    for record, revision in await trainer.table.all():
        await trainer._reap(record, revision, grace=0.0)
        assert next_sentence({"rewarded": 1, "threshold": 2}, [record], False)
    await trainer.table.queued()


async def test_a_request_under_the_id_of_an_unreadable_job_is_refused_with_what_to_do(tmp_path: Path) -> None:
    world = World(tmp_path)
    asked = TrainingRequest.model_validate(examples.TRAINING_REQUEST)
    await world.bucket("rl_jobs").create(f"job.{asked.training_job_id}", b"not json")
    with pytest.raises(ContractError, match="onward buckets show rl_jobs job"):
        await service.Trainer(world.ctx).table.register(asked)


async def test_a_job_whose_request_cannot_be_read_fails_with_a_reason(tmp_path: Path) -> None:
    world = World(tmp_path)
    wrong = {**JOB, "job_id": "job-1", "state": "queued", "request": {"a": 1}, "commit": None, "error": None}
    await world.bucket("rl_jobs").create("job.job-1", json.dumps(wrong).encode())
    trainer = service.Trainer(world.ctx)
    running = asyncio.create_task(trainer.run_jobs())
    for _ in range(100):
        await world.clock.advance(0.1)
        if world.job.state == "failed":
            break
    running.cancel()
    await asyncio.wait([running])
    assert world.job.error is not None and "cannot be read" in world.job.error.message
    assert world.job.attempt == 2
