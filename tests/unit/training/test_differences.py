"""Nothing that a request asks for is passed over in silence: it has its effect, or a sentence says why."""

import json
from pathlib import Path
from typing import Any

import pytest
from job_world import Events, MakeJob, write_lines
from trainer_world import World

from onward import config
from onward.contracts import TrainingRequest
from onward.training import checkpoints
from onward.training.job import worker
from onward.training.role import trainer as service
from onward.training.role.job_table import JobRecord
from onward.training.spec import differences, recipes, request

LOGGED: dict[str, Any] = {"source": "clickhouse", "sample_size": 100}
MAZE: dict[str, Any] = {"source": "local", "sample_size": 320, "environment": {"name": "maze"}}


def _asked(dataset: dict[str, Any] = LOGGED, evaluation: Any = None, **training: Any) -> TrainingRequest:
    settings = {
        "algorithm": "reinforce", "base_model": "tiny", "dataset": dataset, "hyperparameters": {}, **training,
    }  # fmt: skip
    return TrainingRequest.model_validate(
        {
            "training_job_id": "job-1", "timestamp": "2026-01-01T00:00:00Z", "requester": "tests",
            "trigger_reason": "manual", "training_config": settings,
            **({"evaluation": evaluation} if evaluation is not None else {}),
        }
    )  # fmt: skip


def _spec(asked: TrainingRequest, **settings: Any) -> request.JobSpec:
    return request.resolve(
        asked, config.load(environ={}, overrides=settings), recipes.for_model("tiny"),
        model_folder="/m", start_digest=None, epoch=1,
    )  # fmt: skip


def test_a_request_that_asks_for_nothing_else_is_told_nothing() -> None:
    spec = _spec(_asked())
    assert (spec.dtype, spec.save_steps, spec.not_as_asked) == ("float32", None, [])
    everything = _asked(
        MAZE,
        {"enabled": True, "metrics": ["reward", "task_completion", "loss", "kl_divergence"]},
        compute={"gpu_count": 0, "gpu_type": "any", "distributed": False, "mixed_precision": "fp32"},
        checkpointing={"save_interval": 5, "max_checkpoints": 1},
    )
    assert _spec(everything).not_as_asked == []


@pytest.mark.parametrize("named", ["bf16", "fp16"])
def test_a_habit_of_publishers_does_not_make_a_job_on_cpus_slower(named: str) -> None:
    """CPUs compute bfloat16 at a sixth of float32's speed."""
    spec = _spec(_asked(compute={"mixed_precision": named}))
    assert spec.dtype == "float32"
    assert spec.not_as_asked == [
        f"compute.mixed_precision asks for {named}: jobs of this service run on CPUs, which compute fp32 "
        f"several times as fast, so it is fp32."
    ]


def test_machines_that_are_not_there_are_told(tmp_path: Path) -> None:
    compute = {"gpu_count": 2, "gpu_type": "a100", "distributed": True}
    assert _spec(_asked(compute=compute)).not_as_asked == [
        "compute.gpu_count asks for 2 (a100): jobs of this service run on CPUs.",
        "compute.distributed asks for several machines: jobs of this service run on one.",
    ]
    assert "asks for t4" in _spec(_asked(compute={"gpu_type": "t4"})).not_as_asked[0]


def test_the_store_of_checkpoints_is_the_services_own() -> None:
    saving = {"storage_path": "s3://models/rl-checkpoints/"}
    (told,) = _spec(_asked(checkpointing=saving)).not_as_asked
    assert told.startswith("checkpointing.storage_path is not where the checkpoint goes")
    for url in ("s3://models", "s3://models/", "s3://models/rl-checkpoints"):
        assert _spec(_asked(checkpointing=saving), objects={"models_url": url}).not_as_asked == []
    assert _spec(_asked(checkpointing=saving), objects={"models_url": "s3://model"}).not_as_asked != []


def test_evaluation_says_how_many_tasks_an_environment_holds_out() -> None:
    def held_out(evaluation: Any, **environment: Any) -> tuple[int, list[str]]:
        spec = _spec(_asked({**MAZE, "environment": {"name": "maze", **environment}}, evaluation))
        assert spec.environment is not None
        return spec.environment.held_out_count, spec.not_as_asked

    assert held_out({"enabled": True}) == (50, []), "the default"
    assert held_out({"enabled": False, "holdout_size": 0.5}) == (0, [])
    assert held_out({"holdout_size": 0.1}) == (32, [])
    count, told = held_out({"holdout_size": 0.5})
    assert count == 100 and told == ["evaluation.holdout_size comes to 160 held-out tasks: 100 are tried."]
    count, told = held_out({"holdout_size": 0.1}, held_out=7)
    assert count == 7 and "gives way to dataset.environment.held_out" in told[0]


def test_what_is_not_evaluated_on_logged_work_is_told() -> None:
    evaluation = {"enabled": True, "holdout_size": 0.1, "metrics": ["reward", "efficiency"],
                  "benchmark_tasks": ["humaneval"]}  # fmt: skip
    told = _spec(_asked(evaluation=evaluation)).not_as_asked
    assert [sentence.split()[0] for sentence in told] == [
        "evaluation", "evaluation.metrics:", "evaluation.benchmark_tasks",
    ]  # fmt: skip
    assert "efficiency is not measured in a job of reinforce" in told[1]
    (told_dpo,) = _spec(
        _asked(evaluation={"metrics": ["loss", "kl_divergence"]}, algorithm="dpo")
    ).not_as_asked
    assert "kl_divergence is not measured in a job of dpo" in told_dpo
    assert _spec(_asked(evaluation={**evaluation, "enabled": False})).not_as_asked == []


async def test_every_status_of_a_job_says_what_is_not_as_asked(tmp_path: Path) -> None:
    world = World(tmp_path)
    trainer = service.Trainer(world.ctx)
    for name, compute in (("job-1", {"gpu_count": 8}), ("job-2", {"gpu_count": 0})):
        asked = _asked(compute=compute).model_copy(update={"training_job_id": name})
        record, _ = await trainer.table.register(asked)
        await trainer.announce(record)
    told = [status["metadata"].get("not_as_asked") for status in world.published.values()]
    assert told == [["compute.gpu_count asks for 8: jobs of this service run on CPUs."], None]


async def test_a_request_of_before_that_can_no_longer_be_read_still_has_a_status(tmp_path: Path) -> None:
    """The record of a job outlives the version that took it in; a status must never fail on it."""
    record = JobRecord(
        job_id="j", state="failed", request={}, request_sha256="", created_at="", updated_at=""
    )
    assert differences.stored_differences(record.request, config.load(environ={})) == []


def test_the_manifest_says_what_was_not_as_asked(make_job: MakeJob, events: Events) -> None:
    folder = make_job(not_as_asked=["compute.gpu_count asks for 8: jobs of this service run on CPUs."])
    write_lines(folder, [1.0, 0.0])
    assert worker.main(folder) == 0, events[-1]
    manifest = checkpoints.verify(folder / "checkpoint")
    assert manifest.metrics["not_as_asked"] == [
        "compute.gpu_count asks for 8: jobs of this service run on CPUs."
    ]


@pytest.mark.parametrize(("every", "saved_at"), [(None, []), (1, [1, 2, 3, 4]), (3, [3]), (50, [])])
def test_a_save_interval_saves_after_so_many_steps(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch, every: int | None, saved_at: list[int]
) -> None:
    """Four steps, far from the twenty seconds after which a state is saved anyway."""
    folder = make_job(epochs=4, batch_rows=4, save_steps=every, save_seconds=1e9)
    write_lines(folder, [1.0, 0.0, 1.0, 0.0])
    seen: list[int] = []
    real = worker.StateFolder.save

    def save(self: Any, write: Any, facts: dict[str, Any]) -> bool:
        seen.append(facts["step"])
        return real(self, write, facts)

    monkeypatch.setattr(worker.StateFolder, "save", save)
    assert worker.main(folder) == 0, events[-1]
    assert seen == saved_at
    if saved_at:
        current = worker.StateFolder(folder / "state").facts()
        assert json.loads(json.dumps(current))["step"] == saved_at[-1]
