"""The job child: ``python -m onward.training.worker DIR`` reads a job folder and trains.

It touches no bus, warehouse or bucket: ``spec.json``, ``dataset.jsonl`` and ``adapter/`` in,
JSON-line events on stdout and ``checkpoint/`` out. It may be killed at any time; a later attempt on
the same folder goes on from ``state/``.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.children import die_with_parent
from onward.errors import OnwardError, TrainingError
from onward.training import checkpoints, dataset
from onward.training.request import JobSpec

if TYPE_CHECKING:
    from onward.lm.learner import Learner
    from onward.lm.policy import Policy

ADAPTER = "policy"
SAVE_EVERY_SECONDS = 20.0


def emit(event: str, **facts: Any) -> None:
    """One JSON line to the trainer role."""
    sys.stdout.write(json.dumps({"event": event, **facts}, allow_nan=False) + "\n")
    sys.stdout.flush()


def main(folder: Path) -> int:
    die_with_parent()
    try:
        _train(folder)
    except TrainingError as error:
        emit("failed", code=error.code, message=str(error))
        return 1
    except MemoryError:
        emit("failed", code="OOM", message="The job ran out of memory: lower training.batch_size.")
        return 1
    except OnwardError as error:
        emit("failed", code="DATA", message=str(error))
        return 1
    return 0


def _train(folder: Path) -> None:
    import torch

    from onward.lm.learner import Learner, LearnerConfig

    spec = JobSpec.model_validate_json((folder / "spec.json").read_bytes())
    torch.set_num_threads(spec.threads or os.cpu_count() or 1)
    torch.manual_seed(spec.seed)
    started = time.monotonic()
    emit("stage", name="load")
    policy, baseline = _load(folder, spec)
    rows, advantages, summary = prepare(dataset.read(folder / dataset.FILE), spec, baseline)
    if spec.kl_coef == 0 and not any(advantages):
        raise TrainingError(
            "DATA", "All returns are equal, so there is nothing to learn: collect more trajectories."
        )
    emit("stage", name="train", rows=len(rows), trajectories=summary["trajectories"])
    config = LearnerConfig(
        learning_rate=spec.learning_rate,
        epochs=spec.epochs,
        minibatch_rows=spec.batch_rows,
        clip_epsilon=spec.clip_epsilon,
        normaliser=spec.normaliser,
        kl_coef=spec.kl_coef,
        seed=spec.seed,
    )
    learner = _resumed(Learner(policy, ADAPTER, config), folder / "state")
    metrics = {**_steps(learner, rows, advantages, spec, folder / "state", started), **summary}
    if learner.skipped_steps and metrics.get("steps", 0) <= learner.skipped_steps:
        raise TrainingError("CONVERGENCE", "No step was finite, so none was taken: lower the learning rate.")
    if not learner.finite:
        raise TrainingError(
            "CONVERGENCE", "The last step was not finite, so nothing is released: lower the learning rate."
        )
    metrics["skipped_steps"] = learner.skipped_steps
    out = folder / "checkpoint"
    out.mkdir(exist_ok=True)
    policy.save_adapter(ADAPTER, out)
    manifest = checkpoints.write_manifest(
        out,
        job_id=spec.job_id,
        epoch=spec.epoch,
        base_digest=policy.base_digest,
        start_digest=spec.start_digest,
        metrics=metrics,
    )
    emit(
        "done",
        adapter_digest=manifest.adapter_digest,
        seconds=time.monotonic() - started,
        peak_memory_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
        metrics=manifest.metrics,
    )


def _load(folder: Path, spec: JobSpec) -> tuple[Policy, dict[str, Any] | None]:
    """The policy with the start adapter (or a fresh one), and the baseline that the adapter came with."""
    from onward.lm.policy import Policy

    policy = Policy.load(Path(spec.model_folder))
    if (folder / "adapter").is_dir():
        manifest = checkpoints.verify(folder / "adapter")
        policy.add_adapter(ADAPTER, folder / "adapter")
        return policy, manifest.metrics.get("baseline")
    layers = policy.shape.layers
    first = int(spec.first_lora_layer * layers)
    policy.new_adapter(ADAPTER, spec.lora_rank, spec.lora_alpha, range(first, layers), spec.seed)
    return policy, None


def _resumed(learner: Learner, state: Path) -> Learner:
    """Go on from ``state`` where an earlier attempt left one that can be read; else start over."""
    from onward.lm.learner import STATE_FILE

    if (state / STATE_FILE).is_file():
        try:
            learner.restore(state)
        except (OnwardError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
            shutil.rmtree(state)
            emit("stage", name="state not readable, starting over", cause=type(error).__name__)
        else:
            emit("stage", name="resumed")
    return learner


def _steps(
    learner: Learner, rows: list[Any], advantages: list[float], spec: JobSpec, state: Path, started: float
) -> dict[str, Any]:
    """Every optimiser step, reported and now and then saved; the metrics of the last one."""
    metrics: dict[str, Any] = {}
    saved = time.monotonic()
    for step in learner.update(rows, advantages):
        metrics = {
            "loss": _finite(step.loss),
            "policy_entropy": _finite(step.entropy),
            "kl_divergence": max(0.0, _finite(step.kl)),
            "learning_rate": spec.learning_rate,
            "clip_fraction": _finite(step.clip_fraction),
            "ratio_max": _finite(step.ratio_max),
            "grad_norm": _finite(step.grad_norm),
            "steps": step.total_steps,
        }
        emit(
            "progress",
            step=step.step,
            total_steps=step.total_steps,
            total_epochs=spec.epochs,
            elapsed=time.monotonic() - started,
            metrics=metrics,
        )
        if time.monotonic() - saved > SAVE_EVERY_SECONDS:
            learner.save(state)
            saved = time.monotonic()
    return metrics


def prepare(
    lines: list[dict[str, Any]], spec: JobSpec, baseline: dict[str, Any] | None = None
) -> tuple[list[Any], list[float], dict[str, Any]]:
    """Token rows, one advantage per row, and a summary of the returns.

    An answer that no program could read costs ``unparsable_penalty`` on top: a release counts it as an
    error, and a return that calls it one more failure lets the policy drift out of its form.
    Every row of a trajectory carries the trajectory's advantage. REINFORCE takes a running baseline
    per task type, which goes on from ``baseline`` (of the start policy) and is returned in the summary;
    RLOO takes the other attempts of the same group and refuses groups of one.
    """
    from onward.lm import advantages as estimators
    from onward.lm.tokens import Call, rows_from_calls

    name = "raw_total" if spec.return_from == "raw_total" else "outcome"
    returns = [line[name] - spec.unparsable_penalty * line["unparsable"] for line in lines]
    running = estimators.RunningBaseline.from_state(baseline) if baseline else estimators.RunningBaseline()
    if spec.algorithm == "rloo":
        keys = [line["group_key"] for line in lines]
        if any(key is None for key in keys):
            raise TrainingError(
                "DATA",
                "RLOO compares attempts at the same task, and some trajectories carry no "
                "task_context.group_id: record one per task, or ask for 'reinforce'.",
            )
        values = estimators.rloo(returns, keys)
    else:
        values = running.advantages(returns, [line["task_type"] for line in lines])
    if spec.standardise:
        values = standardised(values)
    values = estimators.asymmetric(values, spec.negative_weight)
    rows: list[Any] = []
    per_row: list[float] = []
    for line, value in zip(lines, values, strict=True):
        made = rows_from_calls([Call(**call) for call in line["calls"]])
        rows.extend(made)
        per_row.extend([float(value)] * len(made))
    mean = _mean(returns)
    return (
        rows,
        per_row,
        {
            "reward_mean": mean,
            "reward_std": math.sqrt(sum((value - mean) ** 2 for value in returns) / len(returns)),
            "trajectories": len(lines),
            "outcome_mean": _mean([line["outcome"] for line in lines]),
            "raw_total_mean": _mean([line["raw_total"] for line in lines]),
            "unparsable_share": _mean([line["unparsable"] for line in lines]),
            "success_rate": _mean([line["success"] for line in lines]),
            "baseline": running.state(),
            "sampled_tokens": sum(len(call["token_ids"]) for line in lines for call in line["calls"]),
        },
    )


def standardised(values: list[float]) -> list[float]:
    """Scaled to mean square 1 over the whole job, so that the learning rate does not depend on luck."""
    scale = math.sqrt(sum(value * value for value in values) / len(values))
    return [value / (scale + 1e-6) for value in values]


def _mean(values: list[Any]) -> float:
    return float(sum(values) / len(values))


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else 0.0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
