"""What a release shows on ``/metrics``, always from its record and evidence: a restart shows the same.

The mean raw total of a model (``agent_rl_model_reward_mean``) is the rewarder's to set and is not here:
the gates judge by the outcome, which is another number and has a gauge of its own.
"""

from __future__ import annotations

from onward.release.evidence.evidence import Evidence
from onward.release.record import ReleaseRecord
from onward.telemetry.metrics import Metrics


def show_scores(metrics: Metrics, record: ReleaseRecord) -> None:
    """Validation success by kind of task, of both models."""
    by_kind = ((record.validation or {}).get("summary") or {}).get("by_kind") or {}
    for arm, model in (("candidate", record.candidate), ("current", record.current)):
        for kind, rates in by_kind.items():
            metrics.model_benchmark_score.labels(model_version=model.model_id, task_type=kind).set(rates[arm])


def show_evidence(metrics: Metrics, record: ReleaseRecord, evidence: Evidence) -> None:
    """Error rate and mean outcome of both arms; an arm without judged sessions shows nothing."""
    arms = evidence.summary()["arms"]
    for arm, model in (("candidate", record.candidate), ("current", record.current)):
        if arms[arm]["error_rate"] is not None:
            metrics.model_error_rate.labels(model_version=model.model_id).set(arms[arm]["error_rate"])
        if arms[arm]["mean_outcome"] is not None:
            metrics.release_outcome.labels(model_version=model.model_id).set(arms[arm]["mean_outcome"])
