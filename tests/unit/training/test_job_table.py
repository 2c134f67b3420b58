"""The job table: numbers without gaps, places in the queue, cancelled and repeated jobs."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainer_world import Bucket, World, asked

from onward.contracts import TrainingRequest
from onward.errors import ConflictError, ContractError, IllegalTransitionError
from onward.training.role.job_lease import JobLease
from onward.training.role.job_table import JobError, JobRecord, JobTable


class Interleaved(Bucket):
    """A bucket between whose calls others run, in an order that a seed decides; it may die after a write."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.dies_after: Callable[[str], bool] = lambda key: False

    async def _pause(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)

    async def get(self, key: str) -> Any:
        await self._pause()
        return await super().get(key)

    async def create(self, key: str, value: bytes) -> int:
        await self._pause()
        revision = await super().create(key, value)
        self._die(key)
        return revision

    async def update(self, key: str, value: bytes, revision: int, *, deadline: float = 30.0) -> int:
        await self._pause()
        revision = await super().update(key, value, revision, deadline=deadline)
        self._die(key)
        return revision

    def _die(self, key: str) -> None:
        if self.dies_after(key):
            self.dies_after = lambda key: False
            raise Died

    def numbers(self) -> dict[str, int]:
        jobs = [JobRecord.load(value) for key, (value, _) in self.data.items() if key.startswith("job.")]
        return {job.job_id: job.number for job in jobs}


class Died(BaseException):
    """The process died here."""


def _request(job_id: str, **fields: Any) -> TrainingRequest:
    document = asked(None).model_dump(mode="json", exclude_none=True)
    return TrainingRequest.model_validate({**document, "training_job_id": job_id, **fields})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def table(world: World) -> JobTable:
    bucket: Any = world.bucket("rl_jobs")
    return JobTable(bucket, world.clock)


@pytest.mark.parametrize("seed", range(5))
async def test_jobs_that_arrive_at_once_and_twice_are_numbered_without_gap_or_repeat(
    world: World, seed: int
) -> None:
    bucket: Any = Interleaved(seed)
    tables = [JobTable(bucket, world.clock) for _ in range(4)]
    ids = [f"job-{n % 10}" for n in range(40)]
    found = await asyncio.gather(*(tables[n % 4].register(_request(job_id)) for n, job_id in enumerate(ids)))
    assert sorted(bucket.numbers().values()) == list(range(1, 11))
    assert all(record.number == bucket.numbers()[record.job_id] for record, _ in found)
    assert sum(created for _, created in found) == 10


@pytest.mark.parametrize("key", ["job.job-1", "number"])
@pytest.mark.parametrize("again", ["the same job", "another job", "a start"])
async def test_a_crash_between_the_writes_of_a_number_leaves_no_gap(
    world: World, key: str, again: str
) -> None:
    bucket: Any = Interleaved()
    table = JobTable(bucket, world.clock)
    await table.register(_request("job-0"))
    bucket.dies_after = lambda written: written == key
    with pytest.raises(Died):
        await table.register(_request("job-1"))
    if again == "the same job":
        await table.register(_request("job-1"))
    elif again == "another job":
        await table.register(_request("job-2"))
    await JobTable(bucket, world.clock).number_all()
    await table.register(_request("job-3"))
    numbers = bucket.numbers()
    assert sorted(numbers.values()) == list(range(1, len(numbers) + 1))
    assert numbers["job-0"] == 1 and numbers["job-3"] == len(numbers)


async def test_a_lost_or_unreadable_counter_goes_on_from_the_numbers_of_the_jobs(
    world: World, table: JobTable
) -> None:
    await table.register(_request("job-1"))
    await table.register(_request("job-2"))
    data = world.bucket("rl_jobs").data
    data["number"] = (b"rubbish", data["number"][1])
    assert (await table.register(_request("job-3")))[0].number == 3
    del data["number"]
    assert (await table.register(_request("job-4")))[0].number == 4


async def test_jobs_of_an_earlier_version_are_numbered_by_age(world: World, table: JobTable) -> None:
    bucket = world.bucket("rl_jobs")
    for name in ("b", "a"):
        record, _ = await table.register(_request(name))
        older = {k: v for k, v in json.loads(record.dump()).items() if k != "number"}
        bucket.data[f"job.{name}"] = (json.dumps(older).encode(), 1)
        await world.clock.advance(1.0)
    del bucket.data["number"]
    await table.number_all()
    assert [(record.job_id, record.number) for record, _ in await table.all()] == [("b", 1), ("a", 2)]


async def test_the_queue_is_ordered_by_priority_then_age_and_waiting_jobs_come_last(
    world: World, table: JobTable
) -> None:
    for name, priority in [
        ("low", "low"), ("first", None), ("second", "normal"), ("high", "high"), ("urgent", "urgent")
    ]:  # fmt: skip
        given = {} if priority is None else {"priority": priority}
        await table.register(_request(name, trigger_reason="scheduled", **given))
        await world.clock.advance(1.0)
    assert await table.positions() == {"urgent": 1, "high": 2, "first": 3, "second": 4, "low": 5}
    record, revision = await table.claim(*await table.get("urgent"), "node:1")
    assert await table.positions() == {"high": 1, "first": 2, "second": 3, "low": 4}
    await table.postpone(record, revision, JobError(code="INFRA", message="away"), 60.0)
    assert await table.positions() == {"high": 1, "first": 2, "second": 3, "low": 4, "urgent": 5}


@pytest.mark.parametrize(
    ("trigger", "priority"),
    [
        ("performance_degradation", "urgent"), ("manual", "high"), ("threshold_reached", "normal"),
        ("scheduled", "normal"),
    ],
)  # fmt: skip
async def test_a_request_without_a_priority_has_the_published_one_of_its_trigger(
    table: JobTable, trigger: str, priority: str
) -> None:
    record, _ = await table.register(_request("job-1", trigger_reason=trigger))
    assert record.priority == priority
    named, _ = await table.register(_request("job-2", trigger_reason=trigger, priority="low"))
    assert named.priority == "low"


async def test_a_queued_job_is_cancelled_at_once_and_twice_is_the_same(table: JobTable) -> None:
    await table.register(_request("job-1"))
    first = await table.cancel("job-1", "ops")
    assert (first.state, first.cancelled_by) == ("cancelled", "ops")
    assert await table.cancel("job-1", "another") == first
    assert (await table.queued(), await table.positions()) == ([], {})


async def test_a_running_job_is_asked_to_end_and_never_goes_back_to_the_queue(table: JobTable) -> None:
    await table.register(_request("job-1"))
    await table.claim(*await table.get("job-1"), "node:1")
    first = await table.cancel("job-1", "ops")
    assert (first.state, first.cancel_requested, first.cancelled_by) == ("running", True, "ops")
    assert await table.cancel("job-1", "another") == first
    record, _ = await table.move(*await table.get("job-1"), "queued", owner=None)
    assert record.state == "cancelled"


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_a_job_that_ended_is_not_cancelled(table: JobTable, state: Any) -> None:
    await table.register(_request("job-1"))
    ended, _ = await table.move(*await table.claim(*await table.get("job-1"), "node:1"), state)
    assert await table.cancel("job-1", "ops") == ended


async def test_an_unknown_job_cannot_be_cancelled(table: JobTable) -> None:
    with pytest.raises(ContractError, match="There is no job job-9"):
        await table.cancel("job-9", "ops")


async def test_a_cancelled_job_runs_again_as_a_new_one_and_the_same_new_id_is_the_same_job(
    table: JobTable,
) -> None:
    await table.register(_request("job-1", priority="high"))
    with pytest.raises(IllegalTransitionError, match="job-1 is queued"):
        await table.request_again("job-1", "job-2")
    await table.cancel("job-1", "ops")
    again, _ = await table.register(await table.request_again("job-1", "job-2"))
    assert (again.state, again.number, again.priority, again.attempt) == ("queued", 2, "high", 0)
    assert again.request == {**(await table.get("job-1"))[0].request, "training_job_id": "job-2"}
    assert await table.register(await table.request_again("job-1", "job-2")) == (again, False)


async def test_a_lease_goes_on_when_another_process_asks_to_cancel_and_ends_with_another_owner(
    world: World, table: JobTable
) -> None:
    await table.register(_request("job-1"))
    lease = JobLease(table, *await table.claim(*await table.get("job-1"), "node:1"), world.clock, 15.0, 0.0)
    await table.cancel("job-1", "ops")
    await lease.renew(samples=7)
    stored, _ = await table.get("job-1")
    assert stored == lease.record and (stored.cancel_requested, stored.samples) == (True, 7)
    await table.move(stored, lease.revision, "completed")
    with pytest.raises(ConflictError, match="another owner"):
        await lease.renew()
