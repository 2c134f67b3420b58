"""The parts of a request besides algorithm and data: compute, checkpointing, evaluation.

Invariants: no requested part is ignored silently. A part either has its effect in the job's spec, or a
sentence in ``differences``, which is in every status (``metadata.not_as_asked``) and in the manifest. None of
it fails a job, unless it is ``strict``: publishers of the published schema send all of it with every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from onward.config import Settings
from onward.contracts import TrainingRequest
from onward.contracts.training import Checkpointing, Compute, EvaluationSpec, Hyperparameters
from onward.lm import devices
from onward.lm.devices import Dtype
from onward.training.spec import places
from onward.training.spec.algorithms import ALGORITHMS

MOST_HELD_OUT = 100
"""Limit of held-out tasks from a share: they are tried twice, and more would add little information."""
DEFAULT_SHARE, MOST_SHARE = 0.1, 0.5
"""Share of the tasks held out of logged work if none is given, and its limit."""
_IN_ENVIRONMENT = frozenset({"reward", "task_completion", "loss", "kl_divergence"})
_DTYPES: dict[str, Dtype] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_METRICS: dict[str, frozenset[str]] = {"dpo": frozenset({"reward", "task_completion", "loss"})}
"""Metrics of a request that a job measures; an algorithm not listed measures those of ``_IN_ENVIRONMENT``."""


@dataclass(frozen=True)
class RequestedParts:
    """The parts of a request that have an effect; None if not requested."""

    save_steps: int | None = None
    held_out: int | None = None
    """Held-out tasks of an environment job."""
    holdout: float = 0.0
    """Share of the tasks that a job on logged work holds out."""
    device: str = "auto"
    dtype: Dtype = "auto"
    """Those of the request where it can have them, else those of the settings."""
    differences: list[str] = field(default_factory=list)
    """Differences from the request, one sentence each."""


def read(request: TrainingRequest, settings: Settings) -> RequestedParts:
    """Reports where a job departs from ``request``, and why, and returns the parts that have an effect."""
    config = request.training_config
    differences: list[str] = []
    compute, saving = config.compute or Compute(), config.checkpointing or Checkpointing()
    evaluation = request.evaluation or EvaluationSpec()
    device = _device(compute, settings.model.device, differences)
    dtype = _dtype(compute, device, settings.model.dtype, differences)
    if saving.storage_path and not places.is_below(saving.storage_path, settings.objects_at):
        differences.append(
            "checkpointing.storage_path is not where the checkpoint goes: it goes to this service's object "
            "store (objects.models_url)."
        )
    plays = config.dataset.source == "local" and config.dataset.environment is not None
    held_out = _held_out(request, evaluation, differences) if plays else None
    holdout = 0.0 if plays else _holdout(evaluation, differences)
    _check_evaluation(request, evaluation, differences)
    _check_idle(request, plays, holdout, differences)
    return RequestedParts(saving.save_interval, held_out, holdout, device, dtype, differences)


def _device(compute: Compute, device: str, differences: list[str]) -> str:
    """Returns the device of a job: ``device`` of the settings, or the CPU for a request of no GPU."""
    if compute.distributed:
        differences.append("compute.distributed asks for several machines: jobs of this service run on one.")
    if compute.gpu_count == 0:
        return "cpu"
    if not devices.is_gpu(device):
        where = "jobs of this service run on CPUs"
        if compute.gpu_count:
            kind = f" ({compute.gpu_type})" if compute.gpu_type else ""
            differences.append(f"compute.gpu_count asks for {compute.gpu_count}{kind}: {where}.")
        elif compute.gpu_type not in (None, "any"):
            differences.append(f"compute.gpu_type asks for {compute.gpu_type}: {where}.")
        return device
    if compute.gpu_count and compute.gpu_count > 1:
        differences.append(
            f"compute.gpu_count asks for {compute.gpu_count}: a job of this service runs on one GPU."
        )
    if compute.gpu_type not in (None, "any"):
        differences.append(
            f"compute.gpu_type asks for {compute.gpu_type}: a job runs on the GPU of this machine, whatever "
            f"its type."
        )
    return device


def _dtype(compute: Compute, device: str, dtype: Dtype, differences: list[str]) -> Dtype:
    """Returns the number format of a job. Which one is fast on a CPU depends on the machine: the job measures
    it when it starts, unless the settings have one."""
    asked = compute.mixed_precision
    if asked is None or _DTYPES[asked] == dtype:
        return dtype
    if asked == "fp32" or devices.is_gpu(device):
        return _DTYPES[asked]
    how = f"the setting model.dtype has {dtype}"
    if dtype == "auto":
        how = "a job computes in bf16 if a short measurement finds it faster, and else in fp32"
    differences.append(f"compute.mixed_precision asks for {asked}: on CPUs {how}.")
    return dtype


def _held_out(request: TrainingRequest, evaluation: EvaluationSpec, differences: list[str]) -> int | None:
    """Returns the number of tasks to hold out in an environment: 0 if evaluation is off, else its share of
    all episodes; None without a request for it, or if ``dataset.environment`` sets it, which takes
    precedence.
    """
    dataset = request.training_config.dataset
    off, share = evaluation.enabled is False, evaluation.holdout_size
    if not off and share is None:
        return None
    if "held_out" in (dataset.environment or {}):
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


def _holdout(evaluation: EvaluationSpec, differences: list[str]) -> float:
    """Returns the share of the tasks that a job on logged work holds out: 0 unless evaluation is requested,
    a tenth if no share is."""
    share = evaluation.holdout_size
    if evaluation.enabled is False or (share is None and not evaluation.enabled):
        return 0.0
    if share is not None and share > MOST_SHARE:
        differences.append(
            f"evaluation.holdout_size asks for {share:g} of the tasks: {MOST_SHARE:g} are held out, so that "
            f"enough is left to learn from."
        )
    return DEFAULT_SHARE if share is None else min(share, MOST_SHARE)


def _check_idle(request: TrainingRequest, plays: bool, holdout: float, differences: list[str]) -> None:
    """Reports the published parts that do nothing in a job of this kind."""
    config = request.training_config
    kind, dataset = ALGORITHMS[config.algorithm], config.dataset
    asked = config.hyperparameters.model_dump(exclude_none=True)
    known = {**kind.model_fields, "batch_size": None}
    idle = [name for name in Hyperparameters.model_fields if name in asked and name not in known]
    if idle:
        differences.append(
            f"hyperparameters: {', '.join(idle)} {'does' if len(idle) == 1 else 'do'} nothing in "
            f"{config.algorithm}."
        )
    if dataset.filter is not None and plays and dataset.filter.model_dump(exclude_none=True):
        differences.append("dataset.filter does nothing in an environment, whose attempts are all made new.")
    least = None if dataset.filter is None or plays else dataset.filter.min_reward
    if least is not None and "min_reward" not in kind.model_fields:
        differences.append(
            f"dataset.filter.min_reward selects nothing in {config.algorithm}, which learns from failures as "
            f"well: without them there would be no gradient (it selects groups in rloo and grpo, and better "
            f"sides in dpo)."
        )
    if dataset.environment is not None and not plays and not holdout:
        differences.append(
            "dataset.environment is not played: the data is logged work, and no task is held out of it "
            "(evaluation.holdout_size)."
        )


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


def stored_differences(request: Mapping[str, Any], settings: Settings) -> list[str]:
    """Returns the differences of a request as stored in its job's record; empty if it cannot be read."""
    try:
        return read(TrainingRequest.model_validate(request), settings).differences
    except ValidationError:
        return []
