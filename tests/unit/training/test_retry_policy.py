"""The retry policy: each kind of error has its remedy, and what changed is in record and status."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from job_world import MakeJob, write_lines
from trainer_world import World, world_with_a_job

from onward.contracts import TrainingRequest
from onward.errors import TrainingError
from onward.training.data import dataset
from onward.training.role import remedies
from onward.training.role import trainer as service
from onward.training.role.attempt import folder_of
from onward.training.role.endings import ChildError
from onward.training.role.job_table import JobRecord
from onward.training.role.remedies import Remedy
from onward.training.spec.request import JobSpec


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await world_with_a_job(tmp_path / "data")


def _spec(folder: Path) -> JobSpec:
    return JobSpec.model_validate_json((folder / "spec.json").read_bytes())


async def _run(world: World, make_job: MakeJob, code: str, seconds: float = 20.0, **numbers: Any) -> None:
    """Runs a job each of whose attempts writes its numbers, as a real one, and ends with ``code``."""
    wanted = _spec(make_job(**numbers))

    async def attempt(lease: Any) -> Any:
        folder = folder_of(world.ctx, "job-1")
        folder.mkdir(parents=True, exist_ok=True)
        remedies.write_spec(folder, remedies.adjusted(wanted, lease.record))
        raise ChildError(code, "It went wrong.")

    async with world.trainer(attempt):
        await world.clock.advance(seconds)


async def test_each_attempt_after_a_lack_of_memory_has_half_the_batch(
    world: World, make_job: MakeJob
) -> None:
    await _run(world, make_job, "OOM", batch_rows=16, micro_batch_tokens=2048)
    assert (world.job.state, world.job.attempt) == ("failed", 3)
    assert world.job.changes == [
        "Attempt 1 ended with OOM: the batch is 8 instead of 16, and micro-batches are halved.",
        "Attempt 2 ended with OOM: the batch is 4 instead of 8, and micro-batches are halved.",
    ]
    last = _spec(folder_of(world.ctx, "job-1"))
    assert (last.batch_rows, last.micro_batch_tokens, last.learning_rate) == (4, 512, 1e-2)
    said = [(one["status"], one["metadata"].get("changes")) for one in world.published.values()]
    assert said[-1] == ("failed", world.job.changes)
    assert ("queued", world.job.changes[:1]) in said


async def test_a_batch_of_one_cannot_be_halved_and_the_job_says_so(world: World, make_job: MakeJob) -> None:
    await _run(world, make_job, "OOM", batch_rows=1)
    assert (world.job.state, world.job.attempt, world.job.changes) == ("failed", 1, [])
    assert world.job.error is not None
    assert world.job.error.message == "It went wrong. The batch is 1 and cannot be halved."


async def test_each_attempt_after_a_divergence_has_half_the_learning_rate(
    world: World, make_job: MakeJob
) -> None:
    await _run(world, make_job, "CONVERGENCE", learning_rate=0.4)
    assert (world.job.state, world.job.attempt) == ("failed", 3)
    assert _spec(folder_of(world.ctx, "job-1")).learning_rate == pytest.approx(0.1)
    assert (
        world.job.changes[-1] == "Attempt 2 ended with CONVERGENCE: the learning rate is 0.1 instead of 0.2."
    )


async def test_a_timeout_is_queued_again_without_a_pause_and_continues_from_its_state(
    world: World, make_job: MakeJob
) -> None:
    state = folder_of(world.ctx, "job-1") / "state"
    state.mkdir(parents=True)
    await _run(world, make_job, "TIMEOUT", seconds=3.0)
    assert (world.job.state, world.job.attempt, world.job.interruptions) == ("failed", 3, 0)
    assert state.is_dir()


async def test_other_numbers_start_the_training_anew(world: World, make_job: MakeJob) -> None:
    """Steps of another batch or rate are other steps: a saved state would continue the wrong run."""
    folder = make_job(batch_rows=8)
    spec = _spec(folder)
    for name in ("state", "kept"):
        (folder / name).mkdir()
    remedies.write_spec(folder, spec.model_copy(update={"epoch": 2}))
    assert (folder / "state").is_dir() and (folder / "kept").is_dir()
    remedies.write_spec(folder, spec.model_copy(update={"epoch": 3, "batch_rows": 4}))
    assert not (folder / "state").exists() and not (folder / "kept").exists()


def _frozen(folder: Path, body: bytes) -> dict[str, Any]:
    (folder / dataset.FILE).write_bytes(body)
    made = {"dataset_sha256": hashlib.sha256(body).hexdigest(), "samples": 6, "excluded": {"greedy": 2}}
    (folder / "frozen.json").write_text(json.dumps(made))
    return made


@pytest.mark.parametrize("code", ["DATA", "UNKNOWN"])
async def test_bad_rows_are_dropped_and_counted(make_job: MakeJob, code: str) -> None:
    folder = make_job()
    (folder / "state").mkdir()
    write_lines(folder, [1.0, 0.0, 1.0, 0.0])
    good = (folder / dataset.FILE).read_bytes()
    first = json.loads(good.splitlines()[0])
    bad = [
        b"{", b"[]", json.dumps({**first, "outcome": float("nan")}).encode(),
        json.dumps({**first, "calls": [{**first["calls"][0], "token_ids": [-1]}]}).encode(),
        json.dumps({key: value for key, value in first.items() if key != "unparsable"}).encode(),
    ]  # fmt: skip
    _frozen(folder, good + b"\n".join(bad) + b"\n")
    record = JobRecord.model_construct(attempt=1)
    found = await remedies.find(code, record, folder)
    assert isinstance(found, Remedy)
    assert found.sentence == f"Attempt 1 ended with {code}: 5 of 9 rows were bad, and are left out."
    assert (folder / dataset.FILE).read_bytes() == good
    made = json.loads((folder / "frozen.json").read_text())
    assert made["excluded"] == {"greedy": 2, "bad_row": 5} and made["samples"] == 4
    assert made["dataset_sha256"] == found.fields["dataset_sha256"] == hashlib.sha256(good).hexdigest()
    assert not (folder / "state").exists()
    again = await remedies.find("DATA", record, folder)
    assert again == "All 4 rows were validated again, and none is bad."


async def test_rows_that_are_not_those_that_were_frozen_are_frozen_anew(make_job: MakeJob) -> None:
    folder = make_job()
    write_lines(folder, [1.0, 0.0])
    _frozen(folder, (folder / dataset.FILE).read_bytes())
    (folder / dataset.FILE).write_bytes(b"damaged")
    found = await remedies.find("DATA", JobRecord.model_construct(attempt=1), folder)
    assert isinstance(found, Remedy) and "frozen anew" in found.sentence
    assert not (folder / "frozen.json").exists()


async def test_a_job_whose_rows_are_good_or_that_has_none_fails_at_once_with_data(
    world: World, make_job: MakeJob
) -> None:
    await _run(world, make_job, "DATA")
    assert (world.job.state, world.job.attempt) == ("failed", 1)
    assert world.job.error is not None and world.job.error.code == "DATA"


async def test_a_job_that_plays_has_no_rows_and_is_said_to_have_none(make_job: MakeJob) -> None:
    folder = make_job()
    marker = {"start_digest": None, "dataset_sha256": None, "samples": None, "excluded": {}}
    (folder / "frozen.json").write_text(json.dumps(marker))
    record = JobRecord.model_construct(attempt=1)
    assert await remedies.find("DATA", record, folder) == "It has no frozen rows to validate again."
    assert await remedies.find("UNKNOWN", record, folder) == Remedy()


async def test_an_unknown_error_raises_an_alert_with_a_traceback_without_its_secrets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-proj-" + "aB3dE6gH9jK2mN5pQ8sT1vW4" * 2
    trace = f'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: key {secret} is wrong'

    async def fails(lease: Any) -> Any:
        raise ChildError("UNKNOWN", "The training process failed (ValueError).", trace)

    async with world.trainer(fails):
        for _ in range(400):
            await world.clock.advance(0.1)
            await asyncio.sleep(0.01)
            if world.job.state == "failed":
                break
    assert world.job.error is not None and world.job.error.traceback is not None
    assert 'File "x.py", line 1' in world.job.error.traceback
    assert world.alerts == ["training_unknown_error"] * 3
    everything = " ".join([*world.alert_texts, json.dumps(list(world.published.values()))])
    assert 'File "x.py", line 1' in everything.replace('\\"', '"')
    assert secret not in everything and secret not in world.job.error.traceback


async def test_a_defect_of_an_attempt_costs_the_job_its_attempts_and_not_the_role(world: World) -> None:
    async def breaks(lease: Any) -> Any:
        return {}["metrics"]

    async with world.trainer(breaks) as task:
        for _ in range(400):
            await world.clock.advance(0.1)
            await asyncio.sleep(0.01)
            if world.job.state == "failed":
                break
        assert not task.done()
    assert (world.job.state, world.job.attempt, world.job.killed) == ("failed", 3, 0)
    assert world.job.error is not None and world.job.error.code == "UNKNOWN"
    assert "The attempt failed (KeyError)." in world.job.error.message
    assert world.job.error.traceback is not None and "in breaks" in world.job.error.traceback
    assert world.alerts == ["training_unknown_error"] * 3


async def test_three_failed_jobs_in_a_row_raise_one_alert_and_a_success_ends_the_row(world: World) -> None:
    trainer = service.Trainer(world.ctx)
    document = json.loads(world.request.data)

    async def ends(lease: Any) -> Any:
        if lease.record.job_id == "job-3":
            await trainer.table.cancel("job-3", "ops")  # a cancelled job says nothing about the others
        raise TrainingError("DATA", "Nothing to train on.")

    async with world.trainer(ends):
        for number in range(2, 9):
            if number == 6:
                await _complete(trainer, document)
            request = {**document, "training_job_id": f"job-{number}"}
            await trainer.table.register(TrainingRequest.model_validate(request))
            await world.clock.advance(3.0)
            found = world.alerts.count("training_keeps_failing")
            assert found == (0 if number < 4 else 2 if number == 8 else 1), number
    assert "The last 3 training jobs failed (DATA, DATA, DATA)" in "".join(world.alert_texts)


async def _complete(trainer: service.Trainer, document: dict[str, Any]) -> None:
    request = TrainingRequest.model_validate({**document, "training_job_id": "good", "priority": "low"})
    await trainer.table.register(request)
    claimed = await trainer.table.claim(*await trainer.table.get("good"), trainer.owner)
    await trainer.table.move(*claimed, "completed", announced=True)
