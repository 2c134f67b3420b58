"""Jobs that really run out of memory: the next attempt has half the batch, and the job completes."""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job_world import MakeJob, write_lines
from trainer_world import World, world_with_a_job

from onward.memory import KillWatch
from onward.training.role import attempt, endings, remedies
from onward.training.role import trainer as service
from onward.training.role.attempt import Attempt
from onward.training.role.job_lease import JobLease
from onward.training.role.job_table import JobRecord
from onward.training.spec.request import JobSpec

LIMIT = 150 << 20
"""Bytes of memory in which no job can load torch."""
GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await world_with_a_job(tmp_path / "data")


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A memory control group of this test alone. Skips where none can be made, as in most containers."""
    old = (GROUPS / "memory").is_dir()
    group = (GROUPS / "memory" if old else GROUPS) / f"onward-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(LIMIT))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory control group can be made here: {error}")
    if not KillWatch(os.getpid()).can_count:
        group.rmdir()
        pytest.skip("this kernel does not count its kills")
    yield group
    group.rmdir()


def _prepared_by(make_job: MakeJob, change: Callable[[JobRecord], dict[str, Any]]) -> Any:
    """Returns a ``_prepare`` that puts rows and numbers of a small job into the folder."""
    source = make_job()

    async def prepare(self: Attempt, asked: Any, folder: Path) -> dict[str, Any]:
        record = self._lease.record
        write_lines(folder, [1.0, 0.0, 1.0, 0.0])
        spec = JobSpec.model_validate_json((source / "spec.json").read_bytes())
        spec = spec.model_copy(update={"job_id": record.job_id, "epoch": record.attempt})
        spec = remedies.adjusted(spec, record)
        remedies.write_spec(folder, spec.model_copy(update=change(record)))
        return {"samples": 4, "excluded": {}}

    return prepare


async def _until_it_ended(world: World) -> None:
    working = asyncio.create_task(service.Trainer(world.ctx).run_jobs())
    try:
        async with asyncio.timeout(100):
            while world.job.state not in service.TERMINAL:
                await world.clock.advance(0.1)
                await asyncio.sleep(0.02)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _check_half_the_batch(world: World) -> None:
    job = world.job
    assert (job.state, job.attempt, job.error) == ("completed", 2, None)
    assert job.changes == [
        "Attempt 1 ended with OOM: the batch is 2 instead of 4, and micro-batches are halved."
    ]
    spec = json.loads((world.settings.data_dir / "jobs" / "job-1" / "spec.json").read_text())
    assert spec["batch_rows"] == 2
    queued = [s for s in world.published.values() if s["status"] == "queued"]
    assert queued[-1]["error"]["code"] == "OOM" and queued[-1]["metadata"]["changes"] == job.changes


@pytest.mark.long
async def test_torch_without_memory_halves_the_batch_and_the_job_completes(
    world: World, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real child asks torch for an adapter of 128 TB in its first attempt."""

    def absurd(record: JobRecord) -> dict[str, Any]:
        return {"lora_rank": 10**12} if record.attempt == 1 else {}

    monkeypatch.setattr(attempt.request, "check", lambda *_: None)
    monkeypatch.setattr(Attempt, "_prepare", _prepared_by(make_job, absurd))
    await _until_it_ended(world)
    _check_half_the_batch(world)


async def test_a_child_that_the_kernel_kills_for_memory_has_half_the_batch_next(
    world: World, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, memory_group: Path
) -> None:
    start, children = attempt.children.start, []

    async def start_in_group(*arguments: Any, **options: Any) -> Any:
        child = await start(*arguments, **options)
        if not children:
            (memory_group / "cgroup.procs").write_text(str(child.pid))
        children.append(child)
        return child

    monkeypatch.setattr(attempt.children, "start", start_in_group)
    monkeypatch.setattr(attempt.request, "check", lambda *_: None)
    monkeypatch.setattr(Attempt, "_prepare", _prepared_by(make_job, lambda _: {}))
    await _until_it_ended(world)
    assert [child.returncode for child in children] == [-9, 0]
    _check_half_the_batch(world)


async def test_a_kill_without_a_lack_of_memory_is_no_oom(
    world: World, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator, or a machine that goes down, kills the child: the job is not to blame."""
    start = attempt.children.start

    async def start_and_kill(*arguments: Any, **options: Any) -> Any:
        child = await start(*arguments, **options)
        child.kill()
        return child

    monkeypatch.setattr(attempt.children, "start", start_and_kill)
    trainer = service.Trainer(world.ctx)
    claimed = await trainer.table.claim(*await trainer.table.get("job-1"), trainer.owner)
    lease = JobLease(trainer.table, *claimed, world.clock, 30.0, 0.0)
    with pytest.raises(endings.ChildKilledError, match="code -9") as ended:
        await Attempt(world.ctx, lease, trainer.announcer)._compute(
            make_job(), {"samples": 4, "excluded": {}}
        )
    assert ended.value.code == "INFRA"
