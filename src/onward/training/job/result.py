"""The result of a run: which policy is handed out, its files, and the metrics beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.errors import TrainingError
from onward.lm import probe
from onward.training import checkpoints
from onward.training.spec.request import JobSpec

if TYPE_CHECKING:
    from onward.lm.model import LanguageModel
    from onward.training.job.evaluation import Judge
    from onward.training.job.kept import KeptPolicy
    from onward.training.job.methods import Method

Describe = Callable[[Path, dict[str, Any]], None]
LAST = "last"
"""Folder of the policy after the last step, if another one is handed out."""
HELD_OUT_SUCCESS = "held-out success"


def write(
    folder: Path,
    policy: LanguageModel,
    method: Method,
    spec: JobSpec,
    kept: KeptPolicy,
    run: dict[str, Any],
    last_step: dict[str, Any],
    judge: Judge | None,
    *,
    describe: Describe,
) -> dict[str, Any]:
    """Writes the result and returns its facts: facts of the run, and metrics of the policy that is handed
    out. ``describe`` writes a model card into a folder. Raises TrainingError (CONVERGENCE) after a last step
    that was not finite."""
    last = int(last_step.get("steps", 0))
    _refuse_not_finite(method, last)
    run = {**run, "steps": last, "skipped_steps": method.skipped_steps, "algorithm": spec.algorithm}
    run |= {"path": policy.path, "path_reason": policy.reason}
    run |= {"device": spec.device, "dtype": spec.dtype}
    if spec.ignored:
        run["ignored_hyperparameters"] = spec.ignored
    if spec.not_as_asked:
        run["not_as_asked"] = spec.not_as_asked
    metrics = {**last_step, **run}
    shutil.rmtree(folder / LAST, ignore_errors=True)  # of an end before the run was extended
    if kept.step is not None and kept.step != last:
        write_policy(policy, method, spec, folder / LAST, metrics, describe)
        kept.put_back()
        if spec.full:
            policy.drop_copies()
        metrics = _metrics_of_kept(kept, run, last_step)
    if kept.step is not None:
        higher = judge is None or judge.higher_is_better
        metrics["handed_out"] = {
            "step": kept.step,
            "of": last,
            "by": HELD_OUT_SUCCESS if judge is None else judge.by,
            "figure": kept.figures[0] if higher else -kept.figures[0],
            "evaluations": kept.evaluations,
        }
    out = folder / ("model" if spec.full else "checkpoint")
    return write_policy(policy, method, spec, out, metrics, describe)


def _refuse_not_finite(method: Method, last: int) -> None:
    if method.skipped_steps and last <= method.skipped_steps:
        raise TrainingError("CONVERGENCE", "No step was finite, so none was taken: lower the learning rate.")
    if not method.finite:
        raise TrainingError(
            "CONVERGENCE", "The last step was not finite, so nothing is released: lower the learning rate."
        )


def write_policy(
    policy: LanguageModel,
    method: Method,
    spec: JobSpec,
    out: Path,
    metrics: dict[str, Any],
    describe: Describe,
) -> dict[str, Any]:
    """Writes the present policy to ``out``; returns its facts for the last event."""
    if spec.full:
        policy.save(out)
        told: dict[str, Any] = {"metrics": metrics}
        (out / "training.json").write_text(json.dumps(told, indent=1, sort_keys=True))
        return {**told, "model": out.name}
    out.mkdir(exist_ok=True)
    assert method.adapter is not None
    policy.save_adapter(method.adapter, out)
    method.save_beside(out)
    describe(out, metrics)
    probe.make(policy, method.adapter).write(out)
    manifest = checkpoints.write_manifest(
        out,
        job_id=spec.job_id,
        epoch=spec.epoch,
        base_digest=policy.base_digest,
        start_digest=spec.start_digest,
        metrics=metrics,
    )
    return {"adapter_digest": manifest.adapter_digest, "metrics": manifest.metrics}


def _metrics_of_kept(kept: KeptPolicy, run: dict[str, Any], last_step: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics of the best policy, if it is not the last one, whose own are under ``last``."""
    found = {**kept.metrics, **run}
    last = {name: value for name, value in last_step.items() if name != "steps"}
    if "held_out" in kept.metrics:
        last["held_out"] = run["held_out"]["after"]
        found["held_out"] = {**run["held_out"], "after": kept.metrics["held_out"]}
    return {**found, "last": last}
