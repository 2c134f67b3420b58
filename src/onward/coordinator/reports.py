"""Sentences and reports of the coordinator to the superior agent. Pure: they are made from numbers.

What is not known is left as "not known", and nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def count(number: int) -> str:
    """Formats a number of samples: ``10K``, ``2.5K``, ``640``."""
    if number < 1000 or number % 100:
        return f"{number:,}"
    return f"{number / 1000:,g}K"


def job_begins(number: int | None, job_id: str, samples: int) -> str:
    """Reports a job that the trainer has accepted."""
    name = f"#{number}" if number is not None else job_id
    return f"Initiating RL training job {name} with {count(samples)} samples"


@dataclass(frozen=True)
class Day:
    """Figures of a daily summary, of the 24 hours before it."""

    trajectories: int
    mean: float | None
    """Mean raw total of the rewards; None without any."""
    deviation: float | None
    completed: int
    failed: int
    model: str | None
    """Model that serves; None if none does."""
    deployed: str | None
    """Time at which it became current, as text; None if that is not known."""
    model_mean: float | None
    baseline: float | None
    """Frozen baseline of the model that serves."""
    issues: Sequence[str]
    recommendations: Sequence[str]


def daily_summary(day: Day) -> str:
    """Formats the daily training summary, a line for each figure."""
    reward = "not known" if day.mean is None else f"{day.mean:.2f} ± {day.deviation or 0.0:.2f}"
    deployed = f" (deployed {day.deployed})" if day.deployed else ""
    return "\n".join(
        (
            "Daily training summary",
            f"- Trajectories collected: {day.trajectories:,} (last 24h)",
            f"- Average reward: {reward}",
            f"- Training jobs: {day.completed} completed / {day.failed} failed",
            f"- Current model: {day.model or 'none'}{deployed}",
            f"- Model performance: {_performance(day)}",
            f"- Issues: {'; '.join(day.issues) or 'none'}",
            f"- Recommendations: {' '.join(day.recommendations) or 'none'}",
        )
    )


def _performance(day: Day) -> str:
    if day.model_mean is None:
        return "no reward in the last 24h"
    if day.baseline is None:
        return f"{day.model_mean:.2f} (no baseline yet)"
    return f"{day.model_mean:.2f} ({day.model_mean - day.baseline:+.2f} vs baseline)"


@dataclass(frozen=True)
class Job:
    """Figures of the report on a completed job."""

    job_id: str
    seconds: float | None
    samples: int | None
    reward: float | None
    """Mean reward at its end, of the trajectories or on held-out tasks."""
    improvement: float | None
    """Change of the mean outcome in the validation, as a share of the current model's."""
    validation: str | None
    """Verdict; None if there was none."""
    deployment: str
    cost: float | None


def job_report(job: Job) -> str:
    """Formats the report on a completed training job, a line for each figure."""
    return "\n".join(
        (
            "Training job report",
            f"- Training job ID: {job.job_id}",
            f"- Duration: {_or_unknown(job.seconds and job.seconds / 3600, '{:.2f}h')}",
            f"- Samples used: {_or_unknown(job.samples, '{:,}')}",
            f"- Final reward: {_or_unknown(job.reward, '{:.3f}')}",
            f"- Improvement: {_or_unknown(job.improvement, '{:+.1%}')}",
            f"- Validation: {job.validation or 'none'}",
            f"- Deployment: {job.deployment}",
            f"- Cost: {_or_unknown(job.cost, '${:,.2f}')}",
        )
    )


def _or_unknown(value: float | None, form: str) -> str:
    return "not known" if value is None else form.format(value)
