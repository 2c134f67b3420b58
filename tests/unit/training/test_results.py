"""The figures of a job in its status."""

from __future__ import annotations

from typing import Any

from onward.contracts.training import TrainingMetrics
from onward.training.role.job_table import JobRecord
from onward.training.role.results import status_metrics


def record(metrics: dict[str, Any] | None, **artifacts: str) -> JobRecord:
    progress = {} if metrics is None else {"metrics": metrics}
    return JobRecord.model_construct(progress=progress, artifacts=artifacts, commit=None)


def test_the_best_names_the_released_policy_with_its_held_out_reward_and_its_checkpoint():
    metrics = {
        "loss": 0.25,
        "handed_out": {"step": 4, "of": 8, "by": "held-out success", "figure": 0.75},
        "held_out": {"before": {"reward": 0.5}, "after": {"reward": 0.7}},
    }
    found = status_metrics(record(metrics, final_checkpoint="s3://m/job/1"))
    assert found == {
        "current": metrics,
        "best": {"step": 4, "reward_mean": 0.7, "checkpoint_path": "s3://m/job/1"},
    }
    assert TrainingMetrics.model_validate(found).best.step == 4


def test_a_job_that_judged_nothing_has_no_best_and_one_without_a_step_no_metrics():
    assert status_metrics(record({"loss": 0.25})) == {"current": {"loss": 0.25}}
    assert status_metrics(record(None)) == {}
