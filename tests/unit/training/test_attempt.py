"""One attempt at a job: its input, its child, its one commit."""

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from model_folders import bad_folder, good_model
from trainer_world import World, world_with_a_job

from onward import config
from onward.contracts import TrainingRequest
from onward.errors import (
    TamperedError,
    TrainingError,
)
from onward.training import checkpoints
from onward.training.data import frozen
from onward.training.job import model_needs
from onward.training.role import attempt, conclusions, endings
from onward.training.role import trainer as service
from onward.training.role.attempt import Attempt
from onward.training.role.endings import ChildError, ChildKilledError
from onward.training.role.job_lease import JobLease
from onward.warehouse import Objects


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await world_with_a_job(tmp_path)


class Crash(BaseException):
    """The process died here."""


async def _job(attempt: Attempt, folder: Path, made: Any) -> dict[str, Any]:
    """What the child leaves: a checkpoint, the same from the same frozen data."""
    out = folder / "checkpoint"
    out.mkdir(exist_ok=True)
    (out / "adapter_config.json").write_text("{}")
    (out / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    record = attempt._lease.record
    checkpoints.write_manifest(out, job_id=record.job_id, epoch=record.attempt, base_digest="base")
    return {"seconds": 1.0, "samples": 2, "metrics": {}}


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

    monkeypatch.setattr(attempt.request, "check", lambda *_: None)
    monkeypatch.setattr(Attempt, "_prepare", prepared)
    monkeypatch.setattr(Attempt, "_compute", _job)
    for module in (service, attempt, conclusions):
        monkeypatch.setattr(module, "crashpoint", die)
    first = service.Trainer(world.ctx)
    with pytest.raises(Crash):
        if point == "intake":
            await first.handle_requests([world.request])
        await first.run_jobs()
    for module in (service, attempt, conclusions):
        monkeypatch.setattr(module, "crashpoint", lambda name: None)
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


async def test_a_job_on_a_model_that_cannot_be_used_fails_with_its_sentence_before_data_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world.ctx.base_model = bad_folder(good_model(tmp_path / "good"), tmp_path, "pickle only")
    monkeypatch.setattr(attempt.request, "check", lambda *_: None)
    monkeypatch.setattr(Attempt, "_prepare", lambda *_: pytest.fail("data was read"))
    trainer = service.Trainer(world.ctx)
    await trainer.handle_requests([world.request])
    working = asyncio.create_task(trainer.run_jobs())
    for _ in range(200):
        await world.clock.advance(0.1)
        await asyncio.sleep(0.005)
        if world.job.state == "failed":
            break
    working.cancel()
    assert world.job.error is not None and world.job.error.code == "DATA"
    assert "pickle only" in world.job.error.message


async def test_a_job_waits_for_memory_that_other_programs_use(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An outage, as those above: the next attempt may find the memory free."""
    world.ctx.base_model = good_model(tmp_path / "good")
    asked = TrainingRequest.model_validate_json(world.request.data)
    monkeypatch.setattr(model_needs, "free_memory", lambda: 1 << 20)
    with pytest.raises(TrainingError, match="are free") as caught:
        attempt.check_model(world.ctx, asked)
    assert caught.value.code == "INFRA"
    assert endings.classify(caught.value, tmp_path).cause == "outage"
    monkeypatch.setattr(model_needs, "free_memory", lambda: 1 << 50)
    attempt.check_model(world.ctx, asked)


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

    monkeypatch.setattr(attempt.children, "start", start)
    trainer = service.Trainer(world.ctx)
    record, revision = await trainer.table.get("job-1")
    lease = JobLease(trainer.table, record, revision, world.clock, 30.0, 0.0)
    with pytest.raises(ChildError) as ended:
        await Attempt(world.ctx, lease, trainer.announcer)._compute(tmp_path, {"samples": 1, "excluded": {}})
    assert isinstance(ended.value, ChildKilledError) is killed


async def test_a_warning_of_a_job_is_an_alert_and_the_job_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def start(*_: Any, **__: Any) -> Any:
        events = [{"event": "warning", "message": "look"}, {"event": "done", "metrics": {}, "seconds": 1.0}]
        code = f"import json; [print(json.dumps(event)) for event in {events!r}]"
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )

    monkeypatch.setattr(attempt.children, "start", start)
    trainer = service.Trainer(world.ctx)
    record, revision = await trainer.table.get("job-1")
    lease = JobLease(trainer.table, record, revision, world.clock, 30.0, 0.0)
    done = await Attempt(world.ctx, lease, trainer.announcer)._compute(
        tmp_path, {"samples": 1, "excluded": {}}
    )
    assert (done["event"], world.alerts) == ("done", ["training_logprobs"])


async def test_a_stored_adapter_that_is_not_the_one_that_serves_is_not_trained_from(tmp_path: Path) -> None:
    made = tmp_path / "checkpoint"
    made.mkdir()
    (made / "adapter_config.json").write_text("{}")
    (made / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    manifest = checkpoints.write_manifest(made, job_id="j", epoch=1, base_digest="base")
    objects = Objects.open(tmp_path / "objects")
    prefix = await checkpoints.upload(objects, made, job_id="j", epoch=1)
    ctx: Any = SimpleNamespace(objects=objects, settings=config.load(environ={}))
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
