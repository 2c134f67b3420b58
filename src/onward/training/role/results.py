"""The figures of a job for its status: metrics, and what was found on held-out tasks. Pure."""

from __future__ import annotations

from typing import Any

from onward.training.role.job_table import JobRecord


def status_metrics(record: JobRecord) -> dict[str, Any]:
    """Returns ``metrics`` of the status; empty before the first step.

    ``best`` names the step of the policy that was released, if the job judged several on held-out data. Its
    reward is the held-out one, and its checkpoint the job's final one.
    """
    current = record.progress.get("metrics")
    if not current:
        return {}
    chosen = current.get("handed_out")
    if not chosen:
        return {"current": current}
    best = {
        "step": chosen.get("step"),
        "reward_mean": evaluation_results(current).get("holdout_reward"),
        "checkpoint_path": (record.places or {}).get("final_checkpoint"),
    }
    return {"current": current, "best": {name: value for name, value in best.items() if value is not None}}


def evaluation_results(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns the status fields of held-out tasks; empty if there were none. Where no figure could be found,
    ``holdout`` has the reason."""
    held_out = metrics.get("held_out")
    if not held_out:
        return {}
    before, after = held_out.get("before") or {}, held_out.get("after") or held_out
    found: dict[str, Any] = {"holdout": {n: v for n, v in after.items() if n not in ("before", "after")}}
    if after.get("reward") is not None:
        found["holdout_reward"] = after["reward"]
        if before.get("reward") is not None:
            found["improvement_over_baseline"] = after["reward"] - before["reward"]
    return found
