"""Tools on training jobs: start one, train a control policy, follow and cancel."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from onward.clock import SystemClock, utc_text
from onward.contracts import subjects
from onward.errors import NotFoundError
from onward.ids import check_id
from onward.tools.arguments import CancelJob, ControlTrain, JobStatus, StartTraining
from onward.tools.messages import request_training
from onward.tools.toolbox import Toolbox

_SHOWN = ("number", "position", "algorithm", "requester", "trigger_reason", "priority", "samples", "changes")
_JOBS = 50


async def start_training(box: Toolbox, arguments: StartTraining) -> dict[str, Any]:
    """Sends ``POST /training/start`` and returns the job."""
    document = training_request(box, arguments)
    found = await box.service.training().call("POST", "/training/start", document)
    job_id = found["training_job_id"]
    return {**in_short(found), "next": f"call job_status with job_id {job_id}"}


def training_request(box: Toolbox, arguments: StartTraining) -> dict[str, Any]:
    """Returns the body of the request. The service adds its model and its algorithm where none is named."""
    training, now = box.settings.training, SystemClock().now()
    chosen: dict[str, Any] = {
        "min_reward": arguments.min_reward,
        "task_domains": arguments.domains,
        "date_range": arguments.days and {"start": utc_text(now - timedelta(days=arguments.days))},
    }
    numbers = {name: getattr(arguments, name) for name in ("learning_rate", "batch_size", "epochs")}
    named = {"algorithm": arguments.algorithm, "base_model": arguments.base_model}
    config = {
        **_given(named),
        "dataset": {
            "source": "clickhouse",
            "sample_size": arguments.sample_size or training.sample_size,
            "filter": _given(chosen),
        },
        "hyperparameters": _given(numbers),
    }
    document: dict[str, Any] = {
        "trigger_reason": "manual",
        "priority": arguments.priority,
        "training_config": config,
    }
    if arguments.training_job_id is not None:
        document["training_job_id"] = check_id(arguments.training_job_id, "training_job_id")
    if arguments.reason:
        clean = box.redactor.document({"reason": arguments.reason}).document["reason"]
        document["metadata"] = {"notes": clean}
    return document


async def control_train(box: Toolbox, arguments: ControlTrain) -> dict[str, Any]:
    """Sends a request for a control job over the bus."""
    return await request_training(
        box, subjects.TRAINING_CONTROL, arguments.model_dump(exclude_none=True, mode="json")
    )


async def job_status(box: Toolbox, arguments: JobStatus) -> dict[str, Any]:
    """Reports one job, or the newest ones."""
    if arguments.job_id is not None:
        local = box.background.find(arguments.job_id)
        if local is not None:
            return local
        job_id = check_id(arguments.job_id, "Job id")
        return in_short(await _of_job(box, "GET", job_id, "status"), whole=True)
    query = {"limit": str(arguments.offset + _JOBS)} | (
        {"status": arguments.state} if arguments.state else {}
    )
    found = await box.service.training().call("GET", "/jobs", query=query)
    items = [in_short(one) for one in found["jobs"][arguments.offset :]]
    return {"total": found["total"], "items": items}


async def cancel_job(box: Toolbox, arguments: CancelJob) -> dict[str, Any]:
    """Cancels a training job, or background work of these tools."""
    if await box.background.cancel(arguments.job_id):
        return box.background.find(arguments.job_id) or {}
    job_id = check_id(arguments.job_id, "Job id")
    found = await _of_job(box, "POST", job_id, "cancel")
    if found.get("status") == "running":
        return {**in_short(found), "note": "It ends within seconds."}
    return in_short(found)


async def _of_job(box: Toolbox, method: str, job_id: str, what: str) -> dict[str, Any]:
    """Calls the training service for one job. Raises NotFoundError with the step that an agent can take."""
    try:
        return await box.service.training().call(method, f"/training/{job_id}/{what}")
    except NotFoundError:
        raise NotFoundError(f"There is no job {job_id}: job_status without a job_id lists them.") from None


def in_short(status: dict[str, Any], *, whole: bool = False) -> dict[str, Any]:
    """Returns the fields of a training status that decide what to do next. ``whole``: with its progress,
    metrics, results and places. Raises NotFoundError for an answer without a job."""
    job_id = status.get("training_job_id")
    if job_id is None:
        raise NotFoundError("The training service answered without a job: look at status.")
    about = status.get("metadata") or {}
    progress = status.get("progress") or {}
    shown: dict[str, Any] = {
        "job_id": job_id,
        "state": status.get("status"),
        "updated_at": status.get("timestamp"),
        "percent": progress.get("percent_complete"),
        "eta_seconds": progress.get("eta_seconds"),
        **{name: about.get(name) for name in _SHOWN},
        "error": status.get("error"),
    }
    if whole:
        names = ("metrics", "evaluation_results", "artifacts", "resource_usage")
        shown |= {name: status.get(name) for name in names}
    return _given(shown)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [], {})}
