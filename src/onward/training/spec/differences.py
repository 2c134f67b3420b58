"""The parts of a request besides algorithm and data: compute, checkpointing, evaluation. Pure.

Invariants: no requested part is ignored silently. A part either has its effect in the job's spec, or a
sentence in ``differences``, which is in every status (``metadata.not_as_asked``) and in the manifest. None of
it fails a job: publishers of the published schema send all of it with every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from onward.config import Settings
from onward.contracts import TrainingRequest
from onward.contracts.training import Checkpointing, Compute, EvaluationSpec

MOST_HELD_OUT = 100
"""Limit of held-out tasks from a share: they are tried twice, and more would add little information."""
_IN_ENVIRONMENT = frozenset({"reward", "task_completion", "loss", "kl_divergence"})
_METRICS: dict[str, frozenset[str]] = {"dpo": frozenset({"reward", "task_completion", "loss"})}
"""Metrics of a request that a job measures; an algorithm not listed measures those of ``_IN_ENVIRONMENT``."""


@dataclass(frozen=True)
class RequestedParts:
    """The parts of a request that have an effect; None if not requested."""

    save_steps: int | None = None
    held_out: int | None = None
    """Held-out tasks of an environment job."""
    differences: list[str] = field(default_factory=list)
    """Differences from the request, one sentence each."""


def read(request: TrainingRequest, settings: Settings) -> RequestedParts:
    """Reports where a job departs from ``request``, and why, and returns the parts that have an effect."""
    config = request.training_config
    differences: list[str] = []
    compute, saving = config.compute or Compute(), config.checkpointing or Checkpointing()
    evaluation = request.evaluation or EvaluationSpec()
    _check_compute(compute, differences)
    if saving.storage_path and not _is_in(saving.storage_path, settings.objects_at):
        differences.append(
            "checkpointing.storage_path is not where the checkpoint goes: it goes to this service's object "
            "store (objects.models_url)."
        )
    held_out = _held_out(request, evaluation, differences)
    _check_evaluation(request, evaluation, differences)
    return RequestedParts(saving.save_interval, held_out, differences)


def _check_compute(compute: Compute, differences: list[str]) -> None:
    if compute.gpu_count:
        kind = f" ({compute.gpu_type})" if compute.gpu_type else ""
        differences.append(
            f"compute.gpu_count asks for {compute.gpu_count}{kind}: jobs of this service run on CPUs."
        )
    elif compute.gpu_type not in (None, "any"):
        differences.append(f"compute.gpu_type asks for {compute.gpu_type}: jobs of this service run on CPUs.")
    if compute.distributed:
        differences.append("compute.distributed asks for several machines: jobs of this service run on one.")
    if compute.mixed_precision in ("bf16", "fp16"):
        differences.append(
            f"compute.mixed_precision asks for {compute.mixed_precision}: jobs of this service run on CPUs, "
            f"which compute fp32 several times as fast, so it is fp32."
        )


def _held_out(request: TrainingRequest, evaluation: EvaluationSpec, differences: list[str]) -> int | None:
    """Returns the number of tasks to hold out in an environment: 0 if evaluation is off, else its share of
    all episodes; None for logged work, without a request for it, or if ``dataset.environment`` sets it, which
    takes precedence.
    """
    dataset = request.training_config.dataset
    off, share = evaluation.enabled is False, evaluation.holdout_size
    if dataset.environment is None or dataset.source != "local":
        if not off and (share or (share is None and evaluation.enabled)):
            differences.append(
                "evaluation holds nothing out of logged work, whose rewards are those of the policy that did "
                "it: the release compares the new policy with the one that serves."
            )
        return None
    if not off and share is None:
        return None
    if "held_out" in dataset.environment:
        differences.append(
            "evaluation gives way to dataset.environment.held_out, which says how many tasks to hold out."
        )
        return None
    count = 0 if off else round(float(share or 0.0) * dataset.sample_size)
    if count > MOST_HELD_OUT:
        differences.append(
            f"evaluation.holdout_size comes to {count} held-out tasks: {MOST_HELD_OUT} are tried."
        )
    return min(count, MOST_HELD_OUT)


def _check_evaluation(request: TrainingRequest, evaluation: EvaluationSpec, differences: list[str]) -> None:
    if evaluation.enabled is False:
        return
    config = request.training_config
    measured = _METRICS.get(config.algorithm, _IN_ENVIRONMENT)
    missing = [name for name in evaluation.metrics or () if name not in measured]
    if missing:
        differences.append(
            f"evaluation.metrics: {', '.join(missing)} is not measured in a job of {config.algorithm}."
        )
    if evaluation.benchmark_tasks:
        differences.append(
            "evaluation.benchmark_tasks are not run by a job: its release tries a suite of its own before "
            "any traffic."
        )


def _is_in(path: str, store: str) -> bool:
    place = store.rstrip("/")
    return path.rstrip("/") == place or path.startswith(place + "/")


def stored_differences(request: Mapping[str, Any], settings: Settings) -> list[str]:
    """Returns the differences of a request as stored in its job's record; empty if it cannot be read."""
    try:
        return read(TrainingRequest.model_validate(request), settings).differences
    except ValidationError:
        return []
