"""``agent.rl.model.deployed.v1`` documents, made from the record of a release and nothing else.

Every event has a deployment id of its own, derived from the release, so that sending it twice stores it once.

Invariants: a published ``nats sub … | grep -i`` looks for a word that only the event of a rolled-back release
may contain.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from onward.clock import utc_text
from onward.config import Settings
from onward.contracts import ModelDeployed, to_document, validate
from onward.errors import hide_login
from onward.ids import derived_id
from onward.release.plan import ramp_schedule
from onward.release.record import Model, ReleaseRecord

NOT_VALIDATED = {"benchmark_passed": False, "safety_checks_passed": False, "performance_regression": False}


def approval_status(record: ReleaseRecord) -> str:
    """Returns ``manual_approved`` if a person approved the release, else ``automated``."""
    return "manual_approved" if (record.approval or {}).get("by_person") else "automated"


def outbox_item(document: dict[str, Any]) -> dict[str, Any]:
    """Returns an outbox item with ``document``, checked against the contract."""
    return {"type": "event", "document": to_document(validate(document, ModelDeployed))}


def candidate_serves(
    record: ReleaseRecord, settings: Settings, endpoint: str, now: datetime
) -> dict[str, Any]:
    """Returns the event for a candidate that gets its first traffic."""
    plan = record.schedule
    share = plan.steps[record.step].share
    document = _deployment(record, "candidate", record.candidate, settings, endpoint, now)
    document["deployment_config"] |= {
        "rollout_strategy": plan.strategy,
        "traffic_percentage": round(share * 100, 6),
        "ramp_schedule": ramp_schedule(plan, now),
    }
    document["metadata"] |= {"previous_model": record.current.model_id, **_validation_notes(record)}
    if record.power is not None:
        document["metadata"]["power"] = record.power
    return document


def step_entered(record: ReleaseRecord, settings: Settings, endpoint: str, now: datetime) -> dict[str, Any]:
    """Returns the event for a step after the first: the candidate's new share of traffic."""
    plan = record.schedule
    document = _deployment(record, "ramp", record.candidate, settings, endpoint, now)
    document["deployment_id"] = derived_id("deployment", record.release_id, "ramp", str(record.step))
    document["deployment_config"] |= {
        "rollout_strategy": plan.strategy,
        "traffic_percentage": round(plan.steps[record.step].share * 100, 6),
    }
    document["metadata"] |= {
        "previous_model": record.current.model_id,
        "step": record.step + 1,
        "evidence": record.shown,
        **_counted(record),
    }
    return document


def promoted(record: ReleaseRecord, settings: Settings, endpoint: str, now: datetime) -> dict[str, Any]:
    """Returns the event for a finished release whose candidate gets all traffic."""
    document = _deployment(record, "promoted", record.candidate, settings, endpoint, now)
    document["deployment_config"] |= {"rollout_strategy": record.schedule.strategy, "traffic_percentage": 100}
    document["metadata"] |= {
        "previous_model": record.current.model_id,
        "evidence": record.shown,
        **_counted(record),
        **_validation_notes(record),
    }
    return document


def restored(
    record: ReleaseRecord,
    settings: Settings,
    endpoint: str,
    now: datetime,
    *,
    event: str,
    reason: str | None = None,
) -> dict[str, Any]:
    """Returns the event for a current model that gets all traffic again. ``event`` is the candidate's end."""
    document = _deployment(record, event, record.current, settings, endpoint, now)
    document["deployment_config"] |= {"rollout_strategy": "immediate", "traffic_percentage": 100}
    document["metadata"] |= {"previous_model": record.candidate.model_id}
    if reason is not None:
        document["metadata"]["reason"] = reason
    if record.kind == "rollback":
        document["metadata"] |= {
            "approval_status": "manual_approved",
            "requested_by": record.asked_by,
            "note": record.asked_why,
        }
    elif event == "rollback":
        document["metadata"] |= {"why": record.reason, "crossed_at": record.crossed_at, **_counted(record)}
    return document


def installed(record: ReleaseRecord, settings: Settings, endpoint: str, now: datetime) -> dict[str, Any]:
    """Returns the event for the first model, which is installed at once, with nothing to compare it with."""
    document = _deployment(record, "installed", record.candidate, settings, endpoint, now)
    # Every installation has the same id for its first release, so the time makes this one unique.
    document["deployment_id"] = derived_id("deployment", record.release_id, "installed", record.created_at)
    document["deployment_config"] |= {"rollout_strategy": "immediate", "traffic_percentage": 100}
    document["metadata"] |= {
        "validation_verdict": "not validated",
        "not_run": ["benchmark", "refusal", "format", "comparison"],
    }
    return document


def _deployment(
    record: ReleaseRecord, what: str, model: Model, settings: Settings, endpoint: str, now: datetime
) -> dict[str, Any]:
    info = {
        "base_model": settings.model.base,
        **{key: value for key, value in model.info.items() if value is not None},
        "model_id": model.model_id,
        "checkpoint_path": checkpoint_path(settings, model),
    }
    return {
        "deployment_id": derived_id("deployment", record.release_id, what),
        "training_job_id": model.training_job_id,
        "timestamp": utc_text(now),
        "model_info": info,
        "deployment_config": {
            "serving_platform": "tensorzero",
            "endpoint": endpoint,
            "model_name": model.model_id,
        },
        "validation_results": NOT_VALIDATED | model.validation,
        "metadata": {
            "deployed_by": "onward-releaser",
            "approval_status": approval_status(record),
            "event": what,
            "release_id": record.release_id,
            "engine": settings.model.engine,
            "model_version": model.model_id,
            "model_digest": model.model_digest,
        },
    }


def _counted(record: ReleaseRecord) -> dict[str, Any]:
    return {
        "e_values": record.e_values,
        "sessions": record.sessions,
        "rates": {arm: rates.model_dump() for arm, rates in record.rates.items()},
    }


def _validation_notes(record: ReleaseRecord) -> dict[str, Any]:
    """Returns the comparison without the candidate's answers, because model output may contain anything."""
    found = record.validation or {}
    summary = dict(found.get("summary", {}))
    if "checks" in summary:
        summary["checks"] = {
            kind: {name: value for name, value in fact.items() if name != "failing"}
            for kind, fact in summary["checks"].items()
        }
    if "suites" in summary:
        summary["suites"] = {
            name: {**facts, "failing": [one["item_id"] for one in facts.get("failing", ())]}
            for name, facts in summary["suites"].items()
        }
    return {
        "validation_verdict": found.get("verdict", "not validated"),
        "validation": summary,
        "not_run": found.get("not_run", []),
    }


def checkpoint_path(settings: Settings, model: Model) -> str:
    """Returns the URL of a model's files. The base model alone has no checkpoint: its name is returned."""
    if model.adapter_digest is None:
        return f"base:{settings.model.base}"
    outside = settings.objects.models_url
    root = hide_login(outside) if outside else (settings.data_dir / "objects").resolve().as_uri()
    return f"{root.rstrip('/')}/{model.object_prefix}"
