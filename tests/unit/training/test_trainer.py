"""A job always ends up somewhere: done, failed with a reason, or in the queue again; and never runs twice."""

import asyncio
import errno
import hashlib
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_world import World

from onward.bus import DeadLetter
from onward.contracts import TrainingRequest, encode
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
from onward.training import checkpoints
from onward.training.data import frozen
from onward.training.role import trainer as service
from onward.warehouse import Objects


@pytest.fixture
async def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    asked = TrainingRequest.model_validate(
        {
            "training_job_id": "job-1",
            "timestamp": "2026-01-01T00:00:00Z",
            "requester": "tests",
            "trigger_reason": "threshold_reached",
            "training_config": {
                "algorithm": "reinforce",
                "base_model": "tiny",
                "dataset": {"source": "clickhouse", "sample_size": 10},
                "hyperparameters": {"learning_rate": 1e-3, "batch_size": 8, "epochs": 1},
            },
        }
    )
    await service.Trainer(made.ctx).table.register(asked)
    made.request = SimpleNamespace(data=encode(asked))
    return made


class Crash(BaseException):
    """The process died here."""


def _job(folder: Path) -> Callable[..., Any]:
    """What the child leaves: a checkpoint, the same from the same frozen data."""

    async def compute(lease: Any, at: Path, made: Any) -> dict[str, Any]:
        out = at / "checkpoint"
        out.mkdir(exist_ok=True)
        (out / "adapter_config.json").write_text("{}")
        (out / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        checkpoints.write_manifest(
            out, job_id=lease.record.job_id, epoch=lease.record.attempt, base_digest="base"
        )
        return {"seconds": 1.0, "samples": 2, "metrics": {}}

    return compute


@pytest.mark.parametrize(
    "point", ["intake", "frozen", "before_upload", "before_commit", "after_commit", "finished"]
)
async def test_a_crash_at_each_step_of_a_job_ends_in_one_commit_that_is_announced(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, point: str
) -> None:
    async def prepared(*_: Any) -> dict[str, Any]:
        return {}

    def die(name: str) -> None:
        if name == f"training.{point}":
            raise Crash

    monkeypatch.setattr(service.request, "check", lambda *_: None)
    monkeypatch.setattr(service.Trainer, "_prepare", prepared)
    monkeypatch.setattr(service.Trainer, "_compute", staticmethod(_job(tmp_path)))
    monkeypatch.setattr(service, "crashpoint", die)
    first = service.Trainer(world.ctx)
    with pytest.raises(Crash):
        if point == "intake":
            await first.handle_requests([world.request])
        await first.run_jobs()
    monkeypatch.setattr(service, "crashpoint", lambda name: None)
    second = service.Trainer(world.ctx)
    await second.reannounce()
    await second.handle_requests([world.request])  # it was never acknowledged
    working = asyncio.create_task(second.run_jobs())
    for _ in range(200):
        await world.clock.advance(0.1)
        await asyncio.sleep(0.005)
        if world.job.state == "completed":
            break
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    commit = await checkpoints.read_commit(world.ctx.objects, "job-1")
    assert world.job.state == "completed" and world.job.commit == commit
    assert commit.epoch == (2 if point in ("frozen", "before_upload", "before_commit") else 1)
    done = [status for status in world.published.values() if status["status"] == "completed"]
    assert [status["artifacts"]["final_checkpoint"] for status in done] == [commit.object_prefix]


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
        raise service._ChildDiedError("UNKNOWN", "The training process ended with code -11 and no result.")

    async with world.trainer(dies):
        await world.clock.advance(30.0)
    assert (world.job.state, world.job.attempt) == ("failed", 3)
    assert world.job.error is not None and world.job.error.code == "UNKNOWN"
    assert world.alerts == []  # the coordinator alerts, once, when it hears the status


async def test_a_child_that_is_killed_again_and_again_has_a_limit_of_its_own(world: World) -> None:
    """A job that needs more memory than there is, is killed each time."""

    async def killed(lease: Any) -> Any:
        raise service._ChildKilledError("OOM", "The training process ended with code -9 and no result.")

    async with world.trainer(killed):
        await world.clock.advance(30.0)
        assert (world.job.state, world.job.failed_attempts) == ("queued", 0)
        await world.clock.advance(600.0)
    assert (world.job.state, world.job.attempt, world.job.killed) == ("failed", 10, 10)
    assert world.job.error is not None and world.job.error.code == "OOM"
    assert world.alerts == ["training_interrupted"]


OUTAGES = {
    "bus": BusError("NATS is away."),
    "store": ObjectError("The object store is away."),
    "warehouse": WarehouseError("The warehouse is away."),
    "disk": OSError(errno.ENOSPC, "No space left on device"),
    "child without room": TrainingError("INFRA", "The job's folder cannot be used (OSError)."),
}


@pytest.mark.parametrize("kind", OUTAGES)
async def test_an_outage_however_long_does_not_use_up_the_attempts(world: World, kind: str) -> None:
    ends = 3600.0

    async def attempt(lease: Any) -> Any:
        if world.clock.monotonic() < ends:
            raise OUTAGES[kind]
        raise TrainingError("DATA", "Nothing to train on.")

    async with world.trainer(attempt) as task:
        await world.clock.advance(ends - 10)
        assert not task.done()
        assert world.job.state in ("queued", "running") and world.job.failed_attempts <= 1
        assert 60 <= world.job.attempt < 90  # each minute, after the first few
        assert world.alerts[0] == "training_interrupted" and len(world.alerts) < 4
        await world.clock.advance(120.0)
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


@pytest.mark.parametrize(
    ("ending", "killed"),
    [("os.kill(os.getpid(), 9)", True), ("os.kill(os.getpid(), 15)", True), ("sys.exit(3)", True),
     ("os.abort()", False), ("sys.exit(1)", False), ("sys.exit(0)", False)],
)  # fmt: skip
async def test_a_childs_end_tells_a_kill_from_a_crash(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str, killed: bool
) -> None:
    async def start(*_: Any, **__: Any) -> Any:
        code = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); {ending}"
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )

    monkeypatch.setattr(service.children, "start", start)
    trainer = service.Trainer(world.ctx)
    record, revision = await trainer.table.get("job-1")
    lease = service.JobLease(trainer.table, record, revision, world.clock, 30.0, 0.0)
    with pytest.raises(service._ChildDiedError) as ended:
        await trainer._compute(lease, tmp_path, {"samples": 1, "excluded": {}})
    assert isinstance(ended.value, service._ChildKilledError) is killed


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


async def test_a_stored_adapter_that_is_not_the_one_that_serves_is_not_trained_from(tmp_path: Path) -> None:
    made = tmp_path / "checkpoint"
    made.mkdir()
    (made / "adapter_config.json").write_text("{}")
    (made / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    manifest = checkpoints.write_manifest(made, job_id="j", epoch=1, base_digest="base")
    objects = Objects.open(tmp_path / "objects")
    prefix = await checkpoints.upload(objects, made, job_id="j", epoch=1)
    ctx: Any = SimpleNamespace(objects=objects)
    sha = hashlib.sha256((made / "manifest.json").read_bytes()).hexdigest()
    current = {
        "model_id": "m", "object_prefix": prefix, "adapter_digest": manifest.adapter_digest,
        "manifest_sha256": sha,
    }  # fmt: skip
    await frozen._fetch_start(ctx, current, tmp_path / "start")
    assert json.loads((tmp_path / "start" / "manifest.json").read_text())["job_id"] == "j"
    with pytest.raises(TamperedError, match="must not be trained from"):
        await frozen._fetch_start(ctx, {**current, "adapter_digest": "f" * 64}, tmp_path / "start")
    with pytest.raises(TamperedError, match="not the one that was committed"):
        await frozen._fetch_start(ctx, {**current, "manifest_sha256": "f" * 64}, tmp_path / "start")


async def test_a_request_that_would_skip_the_validation_becomes_a_dead_letter_and_no_job(
    world: World,
) -> None:
    document = json.loads(world.request.data)
    document |= {"training_job_id": "job-2", "metadata": {"skip_validation": True}}
    trainer = service.Trainer(world.ctx)
    (disposition,) = await trainer.handle_requests([SimpleNamespace(data=json.dumps(document).encode())])
    assert isinstance(disposition, DeadLetter) and disposition.reason == "operator_only"
    assert [record.job_id for record, _ in await trainer.table.all()] == ["job-1"]
