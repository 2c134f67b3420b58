"""The current state in one document, which ``onward status`` prints and ``/status`` serves.

Everything is read from the three places where state lives; nothing is cached here.
"""

from __future__ import annotations

from typing import Any

import nats.errors
import nats.js.errors

from onward.bus import Bus, read_all, read_document
from onward.bus.documents import is_learning_paused
from onward.bus.streams import STREAMS
from onward.capture.collecting import quarantine
from onward.clock import Clock
from onward.config import Settings
from onward.contracts import to_document
from onward.contracts.buckets import (
    DesiredRoutes,
    Document,
    GatewayReport,
    OptOutCount,
    Pin,
    RescoreProgress,
    RoleFailure,
    SetAside,
)
from onward.coordinator.coordinator import rewarded_since_snapshot
from onward.release.record import ReleaseRecord, Releases
from onward.release.wording import what_happened
from onward.training.role.job_table import JobRecord, JobTable
from onward.warehouse import Objects, Warehouse, queries, reward_queries

NEWEST = 5


async def collect(bus: Bus, warehouse: Warehouse, settings: Settings, clock: Clock) -> dict[str, Any]:
    """Reads streams with lag, counts, the current model, jobs, releases, gateways, switches. Raises BusError
    or WarehouseError if one of them does not answer."""
    jobs = await JobTable(bus.bucket("rl_jobs"), clock).all()
    releases = await Releases(bus.bucket("rl_releases"), bus.bucket("rl_models"), clock).all()
    serving = await read_document(bus, DesiredRoutes)
    paused = await is_learning_paused(bus)
    rescore = await read_document(bus, RescoreProgress)
    next_job = {
        "rewarded": await rewarded_since_snapshot(bus, warehouse),
        "threshold": settings.training.threshold,
    }
    return {
        "sentences": {
            "serving": serving_sentence(serving),
            "next": next_sentence(next_job, [job for job, _ in jobs], paused),
            "last_release": release_sentence(releases),
        },
        "streams": [await _stream(bus, name) for name in STREAMS],
        "counts": await queries.counts(warehouse),
        "unscored": await queries.unscored_count(warehouse),
        "unscored_share": await reward_queries.unscored_share(warehouse),
        "rescore": None if rescore is None else to_document(rescore),
        "held": await quarantine.count_held(Objects.open(settings.objects_at)),
        "opted_out": (await read_document(bus, OptOutCount) or OptOutCount()).count,
        "next_job": next_job,
        "serving": None if serving is None else to_document(serving),
        "gateways": await _documents(bus, GatewayReport),
        "failing_roles": await _documents(bus, RoleFailure),
        "set_aside": len(await bus.bucket(SetAside.BUCKET).keys()),
        "jobs": [
            {
                "job_id": job.job_id,
                "state": job.state,
                "attempt": job.attempt,
                "samples": job.samples,
                "percent": job.progress.get("percent_complete"),
                "error": job.error.message if job.error else None,
            }
            for job, _ in jobs[-NEWEST:]
        ],
        "releases": [
            {
                "release_id": release.release_id,
                "model_id": release.candidate.model_id,
                "state": str(release.state),
                "sessions": release.sessions,
                "e_values": release.e_values,
                "rates": {arm: rates.model_dump() for arm, rates in release.rates.items()},
                "reason": release.reason,
                "reason_code": release.reason_code,
            }
            for release in releases[-NEWEST:]
        ],
        "learning_paused": paused,
        "pinned": (await read_document(bus, Pin) or Pin()).model_id,
        "not_active": settings.inactive(),
    }


def serving_sentence(desired: DesiredRoutes | None) -> str:
    """Names the serving model, or two of them with their shares of new sessions."""
    if desired is None or not desired.arms:
        return "No model was released yet: the base model serves."
    arms = desired.arms
    if len(arms) == 1:
        return f"{arms[0].model_id} serves."
    first, second = (f"{arm.model_id} ({arm.arm})" for arm in arms)
    shares = [f"{arm.weight:.0%}" for arm in arms]
    return f"{first} serves {shares[0]} of new sessions, {second} serves {shares[1]}."


def next_sentence(next_job: dict[str, Any], jobs: list[JobRecord], paused: bool) -> str:
    """Describes the next step of the loop: the running job, or the progress towards the next one."""
    running = next((job for job in reversed(jobs) if job.state in ("queued", "running")), None)
    if running is not None:
        percent = running.progress.get("percent_complete")
        done = "" if percent is None else f", {percent:.0f} % done"
        return f"Training job {running.job_id} is {running.state}{done}."
    counted = f"{next_job['rewarded']:,} of {next_job['threshold']:,} rewarded trajectories"
    if paused:
        return f"No next training job: learning is paused ('onward resume'); there are {counted}."
    return f"Next training job: {counted} of this policy."


def release_sentence(releases: list[ReleaseRecord]) -> str:
    """Describes the newest release."""
    return f"Last release: {what_happened(releases[-1])}" if releases else "Last release: none yet."


async def _stream(bus: Bus, name: str) -> dict[str, Any]:
    """Returns messages, bytes, and per durable consumer the number that waits or is unacknowledged."""
    try:
        info = await bus.js.stream_info(name)
        consumers = await bus.js.consumers_info(name)
    except nats.js.errors.NotFoundError:
        return {"name": name, "missing": True}
    return {
        "name": name,
        "messages": info.state.messages,
        "bytes": info.state.bytes,
        "lag": {
            consumer.config.durable_name: (consumer.num_pending or 0) + (consumer.num_ack_pending or 0)
            for consumer in consumers
            if consumer.config.durable_name  # a gateway's or a release's view is no backlog
        },
    }


async def _documents(bus: Bus, kind: type[Document]) -> list[dict[str, Any]]:
    """Returns the documents of a bucket that can be read."""
    stored = await read_all(bus.bucket(kind.BUCKET), kind)
    return [to_document(entry.document) for entry in stored if entry.document is not None]
