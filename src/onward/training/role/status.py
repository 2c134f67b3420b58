"""The status of a job as an answer: ``agent.rl.training.status.v1``, made from its record. Pure."""

from __future__ import annotations

from typing import Any

from onward.config import Settings
from onward.contracts import TrainingStatus, decode_document, encode
from onward.contracts.codec import canonical_json
from onward.errors import BusError, ContractError
from onward.training.role.job_table import JobRecord, JobTable
from onward.training.role.results import evaluation_results, status_metrics
from onward.training.spec import differences

_SHOWN = (
    "attempt", "created_at", "number", "changes", "not_before", "samples", "cancel_requested", "cancelled_by",
)  # fmt: skip
"""Fields of a record that its status shows in ``metadata``, where they say something."""


def status_of(record: JobRecord, settings: Settings, position: int | None = None) -> TrainingStatus:
    """Returns the status of a job. ``position``: its place in the queue, 1 for the next one."""
    progress = {name: value for name, value in record.progress.items() if name != "metrics"}
    shown: dict[str, Any] = {
        "training_job_id": record.job_id,
        "timestamp": record.updated_at,
        "status": record.state,
        "progress": progress or None,
        "metrics": status_metrics(record) or None,
        "error": record.error.model_dump(exclude_none=True) if record.error is not None else None,
        "evaluation_results": evaluation_results(record.progress.get("metrics") or {}) or None,
        "metadata": _metadata(record, settings, position),
    }
    if record.state == "completed":
        shown["artifacts"] = record.places
        shown["resource_usage"] = record.resource_usage or None
    return TrainingStatus.model_validate({name: value for name, value in shown.items() if value is not None})


def _metadata(record: JobRecord, settings: Settings, position: int | None) -> dict[str, Any]:
    asked = record.request
    shown = {name: value for name in _SHOWN if (value := getattr(record, name, None))}
    shown |= {
        "training_platform": "onward",
        "requester": asked.get("requester"),
        "trigger_reason": asked.get("trigger_reason"),
        "priority": record.priority,
        "algorithm": (asked.get("training_config") or asked).get("algorithm"),
    }
    if position is not None:
        shown["position"] = position
    told = differences.stored_differences(asked, settings)
    return {**shown, "not_as_asked": told} if told else shown


async def answer(table: JobTable, settings: Settings, data: bytes) -> bytes:
    """Returns the answer to ``{"job_id": "…"}``: the job's status, or an error in one sentence."""
    try:
        asked = decode_document(data)
        name = asked.get("job_id", asked.get("training_job_id")) if isinstance(asked, dict) else None
        if not isinstance(name, str):
            return _refusal("bad_request", 'Send {"job_id": "…"} with the id of a job.')
        record, _ = await table.get(name)
        positions = await table.positions() if record.state == "queued" else {}
    except ContractError as error:
        return _refusal(error.reason, str(error))
    except BusError as error:
        return _refusal("unavailable", str(error))
    return encode(status_of(record, settings, positions.get(record.job_id)))


def _refusal(code: str, message: str) -> bytes:
    return canonical_json({"error": {"type": code, "message": message}})
