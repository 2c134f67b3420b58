"""Tools that show the loop: its state, and what happened, newest first."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from onward.clock import SystemClock
from onward.coordinator import reports
from onward.errors import ContractError
from onward.release import wording
from onward.release.record import ReleaseRecord, Releases
from onward.tools.arguments import Report, Status
from onward.tools.results import NOTE, cleaned
from onward.tools.toolbox import Toolbox
from onward.training.role.job_table import JobRecord, JobTable

_SUMMARY = ("sentences", "no_answer", "counts", "unscored_share", "next_job", "learning_paused", "pinned")


async def status(box: Toolbox, arguments: Status) -> dict[str, Any]:
    """Reports the state of the loop, or the figures of one model."""
    if arguments.model_id is not None:
        name = check_model(arguments.model_id)
        return await box.service.gateway().call("GET", f"/admin/models/{name}/metrics")
    training = box.service.training()
    if arguments.part == "models":
        found = await training.call("GET", "/models")
        return {"total": found["total"], "items": found["models"][arguments.offset :]}
    found = await training.call("GET", "/status")
    if arguments.part == "summary":
        shown = {name: found.get(name) for name in _SUMMARY}
        waiting = {part: why for part, why in (found.get("ready") or {}).items() if why is not True}
        serving = found.get("serving") or {}
        return {
            **shown,
            "serving": [
                {name: arm.get(name) for name in ("arm", "model_id", "weight")}
                for arm in serving.get("arms", [])
            ],
            "not_ready": waiting,
            "warnings": found.get("warnings"),
            "failing_roles": found.get("failing_roles"),
            "scopes": sorted(box.scopes),
        }
    part = found.get(arguments.part)
    if isinstance(part, list):
        items = part if arguments.part in ("streams", "gateways") else part[::-1]
        return {"note": NOTE, "items": await asyncio.to_thread(_cleaned, box, items[arguments.offset :])}
    return {arguments.part: part}


def _cleaned(box: Toolbox, items: list[Any]) -> list[Any]:
    return [cleaned(one, box.redactor, 1500) for one in items]


async def report(box: Toolbox, arguments: Report) -> dict[str, Any]:
    """Lists the sentences that are reported to the superior agent, newest first.

    They are made of the records of jobs and releases, so that none is missing after a restart. The live ones
    are messages of ``agent.rl.report.v1``, which may be lost.
    """
    async with box.service.bus() as bus:
        clock = SystemClock()
        jobs = [record for record, _ in await JobTable(bus.bucket("rl_jobs"), clock).all()]
        releases = await Releases(bus, clock).all()
    events = [event for job in jobs for event in of_job(job)]
    events += [event for release in releases for event in of_release(release)]
    events.sort(key=lambda event: event["at"], reverse=True)
    shown = events[arguments.offset : arguments.offset + arguments.limit]
    more = arguments.offset + len(shown) < len(events)
    next_offset = {"next_offset": arguments.offset + len(shown)} if more else {}
    return {"total": len(events), "note": NOTE, **next_offset, "items": shown}


def of_job(job: JobRecord) -> list[dict[str, Any]]:
    """Returns the sentences of one job: its start, and its end."""
    config = job.request.get("training_config")
    dataset = config.get("dataset") if isinstance(config, dict) else None
    size = dataset.get("sample_size") if isinstance(dataset, dict) else None
    about = {"job_id": job.job_id}
    name = f"#{job.number}" if job.number else job.job_id
    if isinstance(size, int):
        begins = reports.job_begins(job.number or None, job.job_id, size)
    else:
        begins = f"Initiating control training job {name}"
    events: list[dict[str, Any]] = [{"at": job.created_at, "message": begins, **about}]
    if job.state == "completed":
        used = f" with {reports.count(job.samples)} samples" if job.samples else ""
        events.append({"at": job.updated_at, "message": f"Training job {name} completed{used}", **about})
    elif job.state == "failed":
        code = job.error.code if job.error else "UNKNOWN"
        reason = job.error.message if job.error else "no reason was stored"
        words = f"Training job {name} failed with {code}: {reason}"
        events.append({"at": job.updated_at, "message": words, "urgent": True, **about})
    elif job.state == "cancelled":
        events.append({"at": job.updated_at, "message": f"Training job {name} was cancelled", **about})
    return events


def of_release(release: ReleaseRecord) -> list[dict[str, Any]]:
    """Returns the sentences of one release: its first traffic, and what became of it."""
    about = {"release_id": release.release_id, "model_id": release.candidate.model_id}
    events: list[dict[str, Any]] = []
    if release.started_at and release.plan is not None:
        events.append({"at": release.started_at, "message": wording.deployed(release), **about})
    urgent = {"urgent": True} if release.decision in ("rolled_back", "rejected") else {}
    at = release.closed_at or release.updated_at
    return [*events, {"at": at, "message": wording.what_happened(release), **urgent, **about}]


def check_model(name: str) -> str:
    """Returns a model id that can stand in a path. Raises ContractError."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", name) is None:
        raise ContractError(
            "bad_id",
            f"Model id {name[:40]!r} is not usable: give 1 to 128 letters, digits, '.', '_' and '-'.",
        )
    return name
