"""A job always ends up somewhere: done, failed with a reason, or in the queue again; and never runs twice."""

import asyncio
import errno
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_world import World, world_with_a_job

from onward.bus import DeadLetter
from onward.contracts import TrainingRequest
from onward.errors import (
    BusError,
    BusRefusedError,
    ConfigError,
    ObjectError,
    ObjectRefusedError,
    TamperedError,
    TrainingError,
    WarehouseError,
    WarehouseRefusedError,
)
from onward.training.role import trainer as service
from onward.training.role.endings import ChildError, ChildKilledError


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await world_with_a_job(tmp_path)


async def _for_ever(lease: Any) -> Any:
    await asyncio.Event().wait()


async def test_a_job_whose_lease_ran_out_while_nats_was_away_is_run_again_by_the_same_trainer(
    world: World,
) -> None:
    async with world.trainer(_for_ever) as task:
        await world.clock.advance(1.0)
        assert (world.job.state, world.job.attempt) == ("running", 1)
        world.bucket("rl_jobs").away = True
        await world.clock.advance(60.0)
        world.bucket("rl_jobs").away = False
        await world.clock.advance(5.0)
        assert not task.done()
        assert (world.job.state, world.job.attempt) == ("running", 2)


async def test_a_child_that_crashes_is_started_again_until_the_attempts_are_used_up(world: World) -> None:
    async def dies(lease: Any) -> Any:
        raise ChildError("UNKNOWN", "The training process ended with code -11 and no result.")

    async with world.trainer(dies):
        await world.clock.advance(30.0)
    assert (world.job.state, world.job.attempt) == ("failed", 3)
    assert world.job.error is not None and world.job.error.code == "UNKNOWN"
    assert world.alerts == ["training_unknown_error"] * 3


async def test_a_child_that_is_killed_again_and_again_has_a_limit_of_its_own(world: World) -> None:
    """The job may be the cause, where the kernel does not say whom it killed for memory."""

    async def killed(lease: Any) -> Any:
        raise ChildKilledError("INFRA", "The training process ended with code -9 and no result.")

    async with world.trainer(killed):
        await world.clock.advance(30.0)
        assert (world.job.state, world.job.failed_attempts) == ("queued", 0)
        await world.clock.advance(1900.0)
    assert (world.job.state, world.job.attempt, world.job.killed) == ("failed", 10, 10)
    assert world.job.error is not None and world.job.error.code == "INFRA"
    assert world.alerts == ["training_interrupted"] * 2


OUTAGES = {
    "bus": BusError("NATS is away."),
    "store": ObjectError("The object store is away."),
    "warehouse": WarehouseError("The warehouse is away."),
    "disk": OSError(errno.ENOSPC, "No space left on device"),
    "child without room": TrainingError("INFRA", "The job's folder cannot be used (OSError)."),
}


@pytest.mark.parametrize("kind", OUTAGES)
async def test_an_outage_however_long_does_not_use_up_the_attempts(world: World, kind: str) -> None:
    ends = 1300.0

    async def attempt(lease: Any) -> Any:
        if world.clock.monotonic() < ends:
            raise OUTAGES[kind]
        raise TrainingError("DATA", "Nothing to train on.")

    async with world.trainer(attempt) as task:
        await world.clock.advance(ends - 10)
        assert not task.done()
        assert world.job.state in ("queued", "running") and world.job.failed_attempts <= 1
        assert world.job.attempt == 9  # after pauses of 5, 10, 20 … 320, and then 600 s
        assert world.alerts == ["training_interrupted"] * 2
        await world.clock.advance(600.0)
    assert (world.job.state, world.job.failed_attempts) == ("failed", 1)
    assert world.job.error is not None and world.job.error.code == "DATA"


REFUSALS = {
    "bus": BusRefusedError("This login of NATS may not publish."),
    "store": ObjectRefusedError("Object jobs/x cannot be read: Input/output error."),
    "warehouse": WarehouseRefusedError("The warehouse refused a statement: Missing columns: 'x'."),
}


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_refusal_counts_and_fails_the_job_with_its_sentence_after_pauses(
    world: World, kind: str
) -> None:
    started: list[float] = []

    async def attempt(lease: Any) -> Any:
        started.append(world.clock.monotonic())
        raise REFUSALS[kind]

    async with world.trainer(attempt):
        await world.clock.advance(60.0)
    assert (world.job.state, world.job.attempt) == ("failed", 3)
    assert world.job.error is not None
    assert world.job.error.message == f"{REFUSALS[kind]} This was attempt 3 of 3."
    assert [later - sooner >= 5.0 for sooner, later in itertools.pairwise(started)] == [True] * 2


async def test_a_job_that_waits_after_an_outage_holds_up_no_other_job(world: World) -> None:
    """It keeps its place by priority: it is the first again as soon as its pause is over."""
    document = json.loads(world.request.data) | {"training_job_id": "job-2", "priority": "low"}
    document["timestamp"] = "2026-01-01T00:00:01Z"
    trainer = service.Trainer(world.ctx)
    await trainer.table.register(TrainingRequest.model_validate(document))
    ran: list[str] = []

    async def attempt(lease: Any) -> Any:
        ran.append(lease.record.job_id)
        if lease.record.job_id == "job-1":
            raise ObjectError("The object store is away.")
        raise TrainingError("DATA", "Nothing to train on.")

    async with world.trainer(attempt):
        await world.clock.advance(2.0)
        assert ran == ["job-1", "job-2"]
        second, _ = await trainer.table.get("job-2")
        assert (second.state, world.job.state) == ("failed", "queued")
        assert world.job.error is not None and "is away" in world.job.error.message
        await world.clock.advance(4.0)
        assert ran == ["job-1", "job-2", "job-1"]


async def test_a_pause_survives_a_restart_and_a_clock_that_is_set_back_makes_it_no_longer(
    world: World,
) -> None:
    async def away(lease: Any) -> Any:
        raise ObjectError("The object store is away.")

    for _ in range(4):  # pauses of 5, 10, 20 and 40 s
        async with world.trainer(away):
            await world.clock.advance(1.0)
        await world.clock.advance(60.0)
    assert (world.job.attempt, world.job.interruptions) == (4, 4)
    async with world.trainer(away):
        await world.clock.advance(1.0)
    async with world.trainer(away):
        await world.clock.advance(50.0)
        assert world.job.attempt == 5
        world.clock.jump(-3600)
        await world.clock.advance(1.0)
        assert world.job.attempt == 6


async def test_a_record_of_an_earlier_version_has_no_pause(world: World) -> None:
    value, revision = world.bucket("rl_jobs").data["job.job-1"]
    older = {k: v for k, v in json.loads(value).items() if k not in ("interruptions", "not_before")}
    world.bucket("rl_jobs").data["job.job-1"] = (json.dumps(older).encode(), revision)
    assert [record.job_id for record, _ in await service.Trainer(world.ctx).table.queued()] == ["job-1"]


async def test_an_error_of_the_job_itself_uses_up_its_attempts_also_between_outages(world: World) -> None:
    async def attempt(lease: Any) -> Any:
        if lease.record.attempt % 2:
            raise ObjectError("The object store is away.")
        raise TamperedError("adapter.safetensors is not what its manifest says.")

    async with world.trainer(attempt):
        await world.clock.advance(300.0)
    assert (world.job.state, world.job.attempt, world.job.handed_back) == ("failed", 6, 3)


async def test_lost_leases_do_not_use_up_the_attempts(world: World) -> None:
    """The bus is away for longer than the lease, again and again; then the job runs to its end."""
    async with world.trainer(_for_ever):
        for _ in range(5):
            await world.clock.advance(1.0)
            world.bucket("rl_jobs").away = True
            await world.clock.advance(60.0)
            world.bucket("rl_jobs").away = False
            await world.clock.advance(10.0)
        assert (world.job.state, world.job.failed_attempts, world.job.attempt) == ("running", 1, 6)


@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_a_jump_of_the_wall_clock_takes_no_job_from_its_trainer(world: World, seconds: float) -> None:
    """Fault 19: leases are counted by clocks that only go forward."""
    async with world.trainer(_for_ever):
        await world.clock.advance(5.0)
        world.clock.jump(seconds)
        other = service.Trainer(world.ctx)
        for _ in range(20):
            await other._reap(*await other.table.get("job-1"), grace=None)
            await world.clock.advance(5.0)
        assert (world.job.state, world.job.attempt, world.job.killed) == ("running", 1, 0)


async def test_trainers_that_vanish_do_not_use_up_the_attempts(world: World) -> None:
    """Their machines are killed: nothing is handed back, and the lease runs out."""
    for n in range(4):
        record, revision = await service.Trainer(world.ctx).table.get("job-1")
        await service.Trainer(world.ctx).table.claim(record, revision, f"another-node:{n}")
        async with world.trainer(_for_ever):
            await world.clock.advance(world.settings.training.lease_seconds + 2)
            assert (world.job.state, world.job.killed, world.job.failed_attempts) == ("running", n + 1, 1)


async def test_a_store_that_is_away_for_a_moment_fails_no_job_and_no_role(world: World) -> None:
    async def away(lease: Any) -> Any:
        if lease.record.attempt == 1:
            raise ObjectError("The object store is away.")
        await asyncio.Event().wait()

    async with world.trainer(away) as task:
        await world.clock.advance(10.0)
        assert not task.done()
        assert (world.job.state, world.job.attempt, world.alerts) == ("running", 2, [])


async def test_how_a_job_ended_is_announced_once_however_often_the_service_starts(world: World) -> None:
    async def refused(lease: Any) -> Any:
        raise TrainingError("DATA", "Nothing to train on.")

    async with world.trainer(refused):
        await world.clock.advance(10.0)
    assert [status["status"] for status in world.published.values()][-1] == "failed"
    world.published.clear()  # as after the dedupe window
    await service.Trainer(world.ctx).reannounce()
    assert world.published == {}


async def test_a_request_that_cannot_be_met_fails_at_once(world: World) -> None:
    async def refused(lease: Any) -> Any:
        raise TrainingError("DATA", "Nothing to train on.")

    async with world.trainer(refused):
        await world.clock.advance(10.0)
    assert (world.job.state, world.job.attempt) == ("failed", 1)


async def test_clean_stops_do_not_use_up_the_attempts(world: World) -> None:
    for _ in range(5):
        async with world.trainer(_for_ever):
            await world.clock.advance(1.0)
        assert world.job.state == "queued"
    async with world.trainer(_for_ever):
        await world.clock.advance(1.0)
    assert (world.job.state, world.job.attempt, world.job.handed_back) == ("queued", 6, 6)


async def test_a_second_trainer_on_the_same_folder_is_refused_before_it_takes_the_first_ones_job(
    world: World,
) -> None:
    held = service.locked(world.settings.run_dir / "trainer.lock", "busy")
    with held, pytest.raises(ConfigError, match="Another trainer"):
        await service.run(world.ctx)
    assert world.job.state == "queued"


async def test_a_request_that_would_skip_the_validation_becomes_a_dead_letter_and_no_job(
    world: World,
) -> None:
    document = json.loads(world.request.data)
    document |= {"training_job_id": "job-2", "metadata": {"skip_validation": True}}
    trainer = service.Trainer(world.ctx)
    (disposition,) = await trainer.handle_requests([SimpleNamespace(data=json.dumps(document).encode())])
    assert isinstance(disposition, DeadLetter) and disposition.reason == "operator_only"
    assert [record.job_id for record, _ in await trainer.table.all()] == ["job-1"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"base_model": "gpt-of-nobody"}, "This service trains 'smollm2' and was asked for 'gpt-of-nobody'"),
        (
            {"dataset": {"source": "local", "sample_size": 8, "path": "/etc/passwd"}},
            "dataset.path is '/etc/passwd', which is outside",
        ),
        (
            {"dataset": {"source": "local", "sample_size": 8, "environment": {"name": "maze", "stepz": 1}}},
            "dataset.environment.stepz is wrong",
        ),
    ],
)
async def test_an_impossible_request_fails_when_it_arrives_also_behind_a_long_queue(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    world = await world_with_a_job(tmp_path, training={"data_roots": [str(tmp_path)]})
    document = json.loads(world.request.data) | {"training_job_id": "job-2"}
    document["training_config"] = {**document["training_config"], "algorithm": "rloo", **change}
    trainer = service.Trainer(world.ctx)
    message: Any = SimpleNamespace(data=json.dumps(document).encode())
    for _ in range(2):  # the message may come again
        assert not isinstance((await trainer.handle_requests([message]))[0], DeadLetter)
    record, _ = await trainer.table.get("job-2")
    assert (record.state, record.attempt, record.announced) == ("failed", 0, True)
    assert record.error is not None and record.error.code == "DATA" and sentence in record.error.message
    assert (world.job.state, list(await trainer.table.positions())) == ("queued", ["job-1"])
    told = [status["status"] for status in world.published.values() if status["training_job_id"] == "job-2"]
    assert told == ["failed"]


async def test_a_control_request_that_names_code_fails_when_it_arrives(world: World) -> None:
    document = {
        "training_job_id": "job-2", "timestamp": "2026-01-01T00:00:00Z", "requester": "tests",
        "algorithm": "dqn", "environment": "os.path:join",
    }  # fmt: skip
    trainer = service.Trainer(world.ctx)
    await trainer.handle_control([SimpleNamespace(data=json.dumps(document).encode())])  # pyright: ignore
    record, _ = await trainer.table.get("job-2")
    assert record.state == "failed" and record.error is not None
    assert "let the operator list it in training.environments" in record.error.message
