"""What is going on, in one document: what ``onward status`` prints and ``/status`` serves.

Everything is read from the three places where state lives; nothing is remembered here.
"""

from __future__ import annotations

import json
from typing import Any

import nats.errors
import nats.js.errors

from onward.bus import Bus
from onward.bus.streams import STREAMS
from onward.capture import quarantine
from onward.clock import Clock
from onward.config import Settings
from onward.coordinator.coordinator import rewarded_since_snapshot
from onward.release.record import Releases
from onward.training.jobs import JobTable
from onward.warehouse import Objects, Warehouse, queries, reward_queries

NEWEST = 5


async def collect(bus: Bus, warehouse: Warehouse, settings: Settings, clock: Clock) -> dict[str, Any]:
    """Streams with lag, counts, the current model, jobs, releases, gateways, switches.

    Raises BusError or WarehouseError when one of them does not answer.
    """
    jobs = await JobTable(bus.bucket("rl_jobs"), clock).all()
    releases = await Releases(bus.bucket("rl_releases"), bus.bucket("rl_models"), clock).all()
    return {
        "streams": [await _stream(bus, name) for name in STREAMS],
        "counts": await queries.counts(warehouse),
        "unscored": await queries.unscored_count(warehouse),
        "unscored_share": await reward_queries.unscored_share(warehouse),
        "rescore": await _json(bus, "rl_rewarder", "rescore"),
        "held": await quarantine.count(Objects.open(settings.objects_at)),
        "opted_out": (await _json(bus, "rl_capture", "opted_out") or {}).get("count", 0),
        "next_job": {
            "rewarded": await rewarded_since_snapshot(bus, warehouse),
            "threshold": settings.training.threshold,
        },
        "serving": await _json(bus, "rl_releases", "desired"),
        "gateways": [await _json(bus, "rl_gateways", key) for key in await bus.bucket("rl_gateways").keys()],
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
                "reason": release.reason,
            }
            for release in releases[-NEWEST:]
        ],
        "learning_paused": bool((await _json(bus, "rl_control", "learning") or {}).get("paused")),
        "pinned": (await _json(bus, "rl_control", "pin") or {}).get("model_id"),
        "not_active": settings.inactive(),
    }


async def _stream(bus: Bus, name: str) -> dict[str, Any]:
    """Messages, bytes, and per durable consumer how many wait and how many are unacknowledged."""
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
            if consumer.config.durable_name  # a gateway's or a release's own view of a stream is no work
        },
    }


async def _json(bus: Bus, bucket: str, key: str) -> Any:
    entry = await bus.bucket(bucket).get(key)
    return None if entry is None else json.loads(entry.value)
