"""Nothing that a request asks for is passed over in silence: it has its effect, or a sentence says why."""

import json
from pathlib import Path
from typing import Any

import pytest
from job_world import Events, MakeJob, write_lines
from trainer_world import World

from onward import config
from onward.contracts import TrainingRequest
from onward.contracts.training import RequestMetadata
from onward.errors import TrainingError
from onward.lm import devices
from onward.training import checkpoints
from onward.training.job import steps, worker
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
    assert (spec.device, spec.dtype, spec.save_steps, spec.not_as_asked) == ("auto", "auto", None, [])
    everything = _asked(
        MAZE,
        {"enabled": True, "metrics": ["reward", "task_completion", "loss", "kl_divergence"]},
        compute={"gpu_count": 0, "gpu_type": "any", "distributed": False, "mixed_precision": "fp32"},
        checkpointing={"save_interval": 5, "max_checkpoints": 1},
    )
    assert _spec(everything).not_as_asked == []


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 0)


@pytest.mark.parametrize("named", ["bf16", "fp16"])
def test_a_habit_of_publishers_does_not_make_a_job_on_cpus_slower(named: str) -> None:
    """Many CPUs compute bfloat16 at a sixth of float32's speed: the job measures its own."""
    spec = _spec(_asked(compute={"mixed_precision": named}))
    assert spec.dtype == "auto"
    assert spec.not_as_asked == [
        f"compute.mixed_precision asks for {named}: on CPUs a job computes in bf16 if a short measurement "
        f"finds it faster, and else in fp32."
    ]


@pytest.mark.parametrize(
    ("named", "setting", "dtype", "told"),
    [
        ("bf16", "bfloat16", "bfloat16", 0),
        ("bf16", "float32", "float32", 1),
        ("fp32", "bfloat16", "float32", 0),
        (None, "bfloat16", "bfloat16", 0),
    ],
)
def test_the_number_format_of_the_settings_counts_on_a_cpu(
    named: str | None, setting: str, dtype: str, told: int
) -> None:
    spec = _spec(_asked(compute={"mixed_precision": named} if named else {}), model={"dtype": setting})
    assert (spec.dtype, len(spec.not_as_asked)) == (dtype, told)


@pytest.mark.parametrize(("named", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_a_gpu_computes_in_the_precision_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, named: str, dtype: str
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 1)
    spec = _spec(_asked(compute={"gpu_count": 1, "gpu_type": "any", "mixed_precision": named}))
    assert (spec.device, spec.dtype, spec.not_as_asked) == ("auto", dtype, [])


def test_one_gpu_of_this_machine_runs_a_job_and_none_if_none_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 2)
    assert _spec(_asked(compute={"gpu_count": 0}), model={"device": "cuda:1"}).device == "cpu"
    two = _spec(_asked(compute={"gpu_count": 2, "gpu_type": "a100"}), model={"device": "cuda:1"})
    assert two.device == "cuda:1"
    assert two.not_as_asked == [
        "compute.gpu_count asks for 2: a job of this service runs on one GPU.",
        "compute.gpu_type asks for a100: a job runs on the GPU of this machine, whatever its type.",
    ]
    here = _spec(_asked(compute={"gpu_count": 1}), model={"device": "cpu"})
    assert here.not_as_asked == ["compute.gpu_count asks for 1: jobs of this service run on CPUs."]


def test_machines_that_are_not_there_are_told(tmp_path: Path) -> None:
    compute = {"gpu_count": 2, "gpu_type": "a100", "distributed": True}
    assert _spec(_asked(compute=compute)).not_as_asked == [
        "compute.distributed asks for several machines: jobs of this service run on one.",
        "compute.gpu_count asks for 2 (a100): jobs of this service run on CPUs.",
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
    assert [sentence.split()[0] for sentence in told] == ["evaluation.metrics:", "evaluation.benchmark_tasks"]
    assert "efficiency is not measured in a job of reinforce" in told[0]
    (told_dpo,) = _spec(
        _asked(evaluation={"metrics": ["loss", "kl_divergence"]}, algorithm="dpo")
    ).not_as_asked
    assert "kl_divergence is not measured in a job of dpo" in told_dpo
    assert _spec(_asked(evaluation={**evaluation, "enabled": False})).not_as_asked == []


def test_logged_work_holds_out_the_share_of_its_tasks_that_was_asked_for() -> None:
    def holdout(evaluation: Any, **dataset: Any) -> tuple[float, bool, list[str]]:
        spec = _spec(_asked({**LOGGED, **dataset}, evaluation))
        return spec.holdout, spec.replay is not None, spec.not_as_asked

    assert holdout(None) == (0.0, False, [])
    assert holdout({"enabled": True}) == (0.1, False, [])
    assert holdout({"holdout_size": 0.25}) == (0.25, False, [])
    assert holdout({"enabled": False, "holdout_size": 0.25}) == (0.0, False, [])
    share, _, told = holdout({"holdout_size": 0.9})
    assert share == 0.5 and told[0].startswith("evaluation.holdout_size asks for 0.9 of the tasks: 0.5 are")
    assert holdout({"holdout_size": 0.2}, environment={"name": "maze"}) == (0.2, True, [])
    _, replays, told = holdout(None, environment={"name": "maze"})
    assert not replays and told[0].startswith("dataset.environment is not played")
    with pytest.raises(TrainingError, match="not one that a request may name"):
        request.check(
            _asked({**LOGGED, "environment": {"name": "my.own:thing"}}, {"enabled": True}),
            config.load(environ={}, overrides={"model": {"base": "tiny"}}),
        )


def test_published_numbers_and_filters_that_do_nothing_are_told() -> None:
    (told,) = _spec(_asked(hyperparameters={"gamma": 0.99, "gae_lambda": 0.9, "epochs": 1})).not_as_asked
    assert told == "hyperparameters: gamma, gae_lambda do nothing in reinforce."
    filtered = {**LOGGED, "filter": {"min_reward": 0.5}}
    (told,) = _spec(_asked(filtered, algorithm="ppo")).not_as_asked
    assert told.startswith("dataset.filter.min_reward selects nothing in ppo")
    assert _spec(_asked(filtered, algorithm="rloo")).not_as_asked == []
    (told,) = _spec(_asked({**MAZE, "filter": {"max_trajectory_length": 5}})).not_as_asked
    assert told.startswith("dataset.filter does nothing in an environment")


def test_a_strict_request_fails_where_another_is_told() -> None:
    settings = config.load(environ={}, overrides={"model": {"base": "tiny"}})
    asked = _asked(compute={"gpu_count": 2}, hyperparameters={"wings": 2})
    request.check(asked, settings)
    strict = asked.model_copy(update={"metadata": RequestMetadata(strict=True)})
    with pytest.raises(
        TrainingError, match=r"strict and cannot be done as asked: compute.gpu_count asks for 2.* And 1 more"
    ):
        request.check(strict, settings)
    everywhere = config.load(environ={}, overrides={"model": {"base": "tiny"}, "training": {"strict": True}})
    with pytest.raises(TrainingError, match="strict"):
        request.check(asked, everywhere)
    lenient = asked.model_copy(update={"metadata": RequestMetadata(strict=False)})
    request.check(lenient, everywhere)
    request.check(_asked(), everywhere)


async def test_every_status_of_a_job_says_what_is_not_as_asked(tmp_path: Path) -> None:
    world = World(tmp_path)
    trainer = service.Trainer(world.ctx)
    for name, compute in (("job-1", {"gpu_count": 8}), ("job-2", {"gpu_count": 0})):
        asked = _asked(compute=compute).model_copy(update={"training_job_id": name})
        record, _ = await trainer.table.register(asked)
        await trainer.announcer.announce(record)
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
    kept = {step: checkpoints.verify(at).adapter_digest for step, at in steps.found(folder)}
    assert list(kept) == saved_at[-3:]
    if kept.get(4):  # the last step's is the result, and others are other policies
        assert kept[4] == checkpoints.verify(folder / "checkpoint").adapter_digest != kept[3]
