"""The job child: ``python -m onward.training.worker DIR`` reads a job folder and trains.

It touches no bus, warehouse or bucket: ``spec.json``, ``dataset.jsonl`` and ``adapter/`` in,
JSON-line events on stdout and ``checkpoint/`` out. It may be killed at any time; a later attempt on
the same folder goes on from ``state/``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from onward.children import die_with_parent
from onward.errors import OnwardError, TrainingError
from onward.training import checkpoints, dataset
from onward.training.request import JobSpec

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

    from onward.lm.learner import STATE_FILE, Learner, LearnerConfig
    from onward.lm.policy import Policy

    spec = JobSpec.model_validate_json((folder / "spec.json").read_bytes())
    torch.set_num_threads(spec.threads or os.cpu_count() or 1)
    torch.manual_seed(spec.seed)
    started = time.monotonic()
    emit("stage", name="load")
    policy = Policy.load(Path(spec.model_folder))
    baseline: dict[str, Any] | None = None
    if (folder / "adapter").is_dir():
        baseline = checkpoints.verify(folder / "adapter").metrics.get("baseline")
        policy.add_adapter(ADAPTER, folder / "adapter")
    else:
        layers = policy.shape.layers
        first = int(spec.first_lora_layer * layers)
        policy.new_adapter(ADAPTER, spec.lora_rank, spec.lora_alpha, range(first, layers), spec.seed)
    rows, advantages, summary = prepare(dataset.read(folder / dataset.FILE), spec, baseline)
    emit("stage", name="train", rows=len(rows), trajectories=summary["trajectories"])
    learner = Learner(
        policy,
        ADAPTER,
        LearnerConfig(
            learning_rate=spec.learning_rate,
            epochs=spec.epochs,
            minibatch_rows=spec.batch_rows,
            clip_epsilon=spec.clip_epsilon,
            normaliser=spec.normaliser,
            kl_coef=spec.kl_coef,
            seed=spec.seed,
        ),
    )
    state = folder / "state"
    if (state / STATE_FILE).is_file():
        with contextlib.suppress(OnwardError):
            learner.restore(state)
            emit("stage", name="resumed")
    metrics: dict[str, Any] = {}
    saved = time.monotonic()
    skipped = total = 0
    for step in learner.update(rows, advantages):
        skipped += int(step.skipped)
        total = step.total_steps
        metrics = {
            "loss": _finite(step.loss),
            "reward_mean": summary["return_mean"],
            "reward_std": summary["return_std"],
            "policy_entropy": _finite(step.entropy),
            "kl_divergence": max(0.0, _finite(step.kl)),
            "learning_rate": spec.learning_rate,
            "clip_fraction": _finite(step.clip_fraction),
            "ratio_max": _finite(step.ratio_max),
            "grad_norm": _finite(step.grad_norm),
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
    if skipped and skipped >= total:
        raise TrainingError("CONVERGENCE", "No step was finite, so none was taken: lower the learning rate.")
    out = folder / "checkpoint"
    out.mkdir(exist_ok=True)
    policy.save_adapter(ADAPTER, out)
    manifest = checkpoints.write_manifest(
        out,
        job_id=spec.job_id,
        epoch=spec.epoch,
        base_digest=policy.base_digest,
        start_digest=spec.start_digest,
        metrics={**metrics, **summary, "skipped_steps": skipped},
    )
    emit(
        "done",
        adapter_digest=manifest.adapter_digest,
        seconds=time.monotonic() - started,
        peak_memory_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
        metrics=manifest.metrics,
    )


def prepare(
    lines: list[dict[str, Any]], spec: JobSpec, baseline: dict[str, Any] | None = None
) -> tuple[list[Any], list[float], dict[str, Any]]:
    """Token rows, one advantage per row, and a summary of the returns.

    Every row of a trajectory carries the trajectory's advantage. REINFORCE takes a running baseline
    per task type, which goes on from ``baseline`` (of the start policy) and is returned in the summary;
    RLOO takes the other attempts of the same group and refuses groups of one.
    """
    from onward.lm import advantages as estimators
    from onward.lm.tokens import Call, rows_from_calls

    returns = [line["raw_total"] if spec.return_from == "raw_total" else line["outcome"] for line in lines]
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
        values = _standardised(values)
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
            "return_mean": mean,
            "return_std": math.sqrt(sum((value - mean) ** 2 for value in returns) / len(returns)),
            "trajectories": len(lines),
            "outcome_mean": _mean([line["outcome"] for line in lines]),
            "raw_total_mean": _mean([line["raw_total"] for line in lines]),
            "success_rate": _mean([line["success"] for line in lines]),
            "baseline": running.state(),
            "sampled_tokens": sum(len(call["token_ids"]) for line in lines for call in line["calls"]),
        },
    )


def _standardised(values: list[float]) -> list[float]:
    """Scaled to mean square 1 over the whole job, so that the learning rate does not depend on luck."""
    scale = math.sqrt(sum(value * value for value in values) / len(values))
    return [value / (scale + 1e-6) for value in values]


def _mean(values: list[Any]) -> float:
    return float(sum(values) / len(values))


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else 0.0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
