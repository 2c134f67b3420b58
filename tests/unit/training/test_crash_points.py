"""A job killed at any of its crash points goes on, and ends in the weights of one that was not."""

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from job_world import Events, MakeJob, write_lines
from trainer_world import World, world_with_a_job

import onward.training
from onward import saved_state
from onward.training import checkpoints
from onward.training.job import worker
from onward.training.role import attempt, conclusions, remedies
from onward.training.role import trainer as service
from onward.training.role.attempt import Attempt
from onward.training.spec.request import JobSpec

SOURCES = Path(onward.training.__file__).parent
POINTS = sorted(
    point
    for path in SOURCES.rglob("*.py")
    for point in re.findall(r'crashpoint\("(training\.\w+)"\)', path.read_text())
)
"""Every crash point in the code of training."""
QUICK = ("training.before_commit", "training.after_commit", "training.state_saved")
"""Points where a write is half done; the others are tested by `make test-long`."""
ENDS_AT = 3
"""Time that a point is reached at which the process dies, for points that each step of a job passes."""
OFTEN = ("training.state_written", "training.state_saved")
AFTER_COMMIT = ("training.after_commit", "training.finished")


class Crash(BaseException):
    """The process died here."""


@pytest.fixture
def job(make_job: MakeJob) -> Path:
    """A folder with the numbers of a job of 16 steps, the state of each of which is saved."""
    return make_job(batch_rows=2, epochs=4, save_steps=1, learning_rate=1e-3)


def _prepare(job: Path) -> Any:
    async def prepare(self: Attempt, asked: Any, folder: Path) -> dict[str, Any]:
        write_lines(folder, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
        spec = JobSpec.model_validate_json((job / "spec.json").read_bytes())
        remedies.write_spec(folder, spec.model_copy(update={"epoch": self._lease.record.attempt}))
        return {"samples": 8, "excluded": {}}

    return prepare


@pytest.fixture
def prepared(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt.request, "check", lambda *_: None)
    monkeypatch.setattr(Attempt, "_prepare", _prepare(job))


@pytest.fixture
def in_this_process(prepared: None, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's program runs in this process: a crash point ends both."""

    async def compute(self: Attempt, folder: Path, made: Any) -> dict[str, Any]:
        assert worker.main(folder) == 0, events[-1]
        return {**events[-1], "samples": 8, "excluded": {}}

    monkeypatch.setattr(Attempt, "_compute", compute)


_WHOLE: dict[bytes, bytes] = {}


def _weights(job: Path, folder: Path) -> bytes:
    """Returns the weights of the same job without any interruption and without a trainer."""
    spec = (job / "spec.json").read_bytes()
    if spec not in _WHOLE:
        folder.mkdir()
        write_lines(folder, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
        (folder / "spec.json").write_bytes(spec)
        assert worker.main(folder) == 0
        _WHOLE[spec] = (folder / "checkpoint" / "adapter_model.safetensors").read_bytes()
    return _WHOLE[spec]


def _crash_at(monkeypatch: pytest.MonkeyPatch, point: str | None) -> None:
    times = 0

    def crashpoint(name: str) -> None:
        nonlocal times
        times += name == point
        if name == point and times == (ENDS_AT if point in OFTEN else 1):
            raise Crash

    for module in (service, attempt, conclusions, saved_state):
        monkeypatch.setattr(module, "crashpoint", crashpoint)


async def _run_to_its_end(world: World) -> None:
    trainer = service.Trainer(world.ctx)
    await trainer.reannounce()
    await trainer.handle_requests([world.request])  # it was never acknowledged
    working = asyncio.create_task(trainer.run_jobs())
    try:
        async with asyncio.timeout(100):
            while world.job.state not in service.TERMINAL and not working.done():
                await world.clock.advance(0.1)
                await asyncio.sleep(0.005)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


@pytest.mark.parametrize(
    "point", [point if point in QUICK else pytest.param(point, marks=pytest.mark.long) for point in POINTS]
)
async def test_a_job_killed_at_a_crash_point_ends_in_the_weights_of_one_that_was_not(
    tmp_path: Path, job: Path, in_this_process: None, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    whole = _weights(job, tmp_path / "whole")
    world = await world_with_a_job(tmp_path / "data")
    _crash_at(monkeypatch, point)
    first = service.Trainer(world.ctx)
    with pytest.raises(Crash):
        if point == "training.intake":
            await first.handle_requests([world.request])
        await first.run_jobs()
    _crash_at(monkeypatch, None)
    await _run_to_its_end(world)
    commit = await checkpoints.read_commit(world.ctx.objects, "job-1")
    assert world.job.state == "completed" and world.job.commit == commit is not None
    assert commit.epoch == (1 if point in (*AFTER_COMMIT, "training.intake") else 2)
    made = tmp_path / "made"
    await checkpoints.fetch(world.ctx.objects, commit.object_prefix, made)
    assert (made / "adapter_model.safetensors").read_bytes() == whole
    done = [one for one in world.published.values() if one["status"] == "completed"]
    assert [one["artifacts"]["final_checkpoint"] for one in done] == [commit.object_prefix]


async def test_a_child_killed_in_the_middle_of_its_steps_ends_in_the_same_weights(
    tmp_path: Path, job: Path, prepared: None, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 16, with a real process and a real SIGKILL."""
    whole = _weights(job, tmp_path / "whole")
    world = await world_with_a_job(tmp_path / "data")
    read, steps = attempt.children.events, []

    async def events_until_killed(child: Any) -> Any:
        async for event in read(child):
            if event["event"] == "progress":
                steps.append(event["step"])
                if steps == [1, 2, 3]:
                    child.send_signal(signal.SIGKILL)
            yield event

    monkeypatch.setattr(attempt.children, "events", events_until_killed)
    await _run_to_its_end(world)
    assert (world.job.state, world.job.attempt, world.job.killed) == ("completed", 2, 1)
    assert steps[-1] == 16 and len(steps) < 2 * 16, "the second attempt continued"
    assert world.job.commit is not None
    await checkpoints.fetch(world.ctx.objects, world.job.commit.object_prefix, tmp_path / "made")
    assert (tmp_path / "made" / "adapter_model.safetensors").read_bytes() == whole
