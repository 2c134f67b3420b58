"""The estimate from logged work that a candidate's job made, as part of the release's validation.

The job estimates on tasks that it held out; the release only shows it. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.bus import Bucket, read_stored
from onward.contracts.buckets import JobEntry
from onward.lm.off_policy import FEWEST

NOT_HELD_OUT = "the job held out no logged work, or judged the policy in another way"


def estimate_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``{value, low, high, effective}`` from a job's metrics, with ``doubly_robust`` (value, low,
    high) if there is that too; or ``{reason}`` if they have none."""
    effective, value = metrics.get("holdout_effective_tasks"), metrics.get("holdout_reward")
    if effective is None:
        return {"reason": NOT_HELD_OUT}
    if value is None:
        return {
            "effective": effective,
            "reason": f"the policy is too far from the one that did the work, or too little was held out: "
            f"the held-out tasks weigh as much as {effective:.1f}, and an estimate needs {FEWEST}",
        }
    low, high = metrics.get("holdout_low"), metrics.get("holdout_high")
    found = {"value": value, "low": low, "high": high, "effective": effective}
    ends = {"value": "", "low": "_low", "high": "_high"}
    robust = {name: metrics.get(f"holdout_doubly_robust{end}") for name, end in ends.items()}
    return found if None in robust.values() else {**found, "doubly_robust": robust}


async def with_estimate(found: dict[str, Any], jobs: Bucket, job_id: str) -> dict[str, Any]:
    """Returns a validation with ``off_policy``: the estimate of the candidate's job, or why there is none."""
    job = (await read_stored(jobs, JobEntry, job_id)).document
    metrics = (job.progress.get("metrics") or {}) if job is not None else {}
    return {**found, "off_policy": estimate_of(metrics)}
