"""Metrics of a release on ``/metrics``, always set from its record and evidence, also after a restart.

The mean raw total of a model (``agent_rl_model_reward_mean``) is not here, because the rewarder sets it. The
outcome, which the gates judge beside it, has a gauge of its own.
"""

from __future__ import annotations

from onward.release.evidence.evidence import Evidence
from onward.release.record import ReleaseRecord
from onward.telemetry.metrics import Metrics


def show_scores(metrics: Metrics, record: ReleaseRecord) -> None:
    """Sets the validation success by kind of task, of both models."""
    by_kind = ((record.validation or {}).get("summary") or {}).get("by_kind") or {}
    for arm, model in (("candidate", record.candidate), ("current", record.current)):
        for kind, rates in by_kind.items():
            metrics.model_benchmark_score.labels(model_version=model.model_id, task_type=kind).set(rates[arm])


def show_evidence(metrics: Metrics, record: ReleaseRecord, evidence: Evidence) -> None:
    """Sets error rate and mean outcome of both arms. An arm without judged sessions sets nothing."""
    arms = evidence.summary()["arms"]
    for arm, model in (("candidate", record.candidate), ("current", record.current)):
        if arms[arm]["error_rate"] is not None:
            metrics.model_error_rate.labels(model_version=model.model_id).set(arms[arm]["error_rate"])
        if arms[arm]["mean_outcome"] is not None:
            metrics.release_outcome.labels(model_version=model.model_id).set(arms[arm]["mean_outcome"])
