"""A coordinator on a real bus: context, routes, jobs and releases that it reads, what it publishes."""

from __future__ import annotations

import json
from typing import Any

from onward.bus import Bus
from onward.clock import Clock, ManualClock
from onward.config import Settings
from onward.context import Context
from onward.contracts import subjects
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics


def context(bus: Bus, warehouse: Any, clock: Clock | None = None, **training: Any) -> Context:
    """Returns a context with a threshold of 100 and further settings of ``training``."""
    metrics = Metrics()
    clock = clock or ManualClock()
    settings = Settings.model_validate({"training": {"threshold": 100, **training}})
    alerts = Alerts(bus, clock, metrics)
    return Context(settings, clock, bus, warehouse, None, metrics, alerts)  # type: ignore[arg-type]


async def serve(bus: Bus, digest: str | None, release: str | None = None) -> None:
    arms = [{"arm": "current", "model_id": "m", "adapter_digest": digest, "weight": 1.0}]
    body = {"revision": 1, "release_id": release, "step": 0, "arms": arms, "previous": None}
    await bus.bucket("rl_releases").put("desired", json.dumps(body).encode())


async def requests(bus: Bus) -> list[dict[str, Any]]:
    info = await bus.js.stream_info("RL_TRAINING")
    found = []
    for sequence in range(1, info.state.last_seq + 1):
        message = await bus.js.get_msg("RL_TRAINING", seq=sequence)
        if message.subject == subjects.TRAINING_REQUEST:
            found.append(json.loads(message.data or b""))
    return found


async def set_job(bus: Bus, job_id: str, state: str, **fields: Any) -> None:
    body = json.dumps({"job_id": job_id, "state": state, **fields}).encode()
    await bus.bucket("rl_jobs").put(f"job.{job_id}", body)


async def set_release(bus: Bus, release_id: str, job_id: str, state: str, **fields: Any) -> None:
    body = {"release_id": release_id, "job_id": job_id, "state": state, **fields}
    await bus.bucket("rl_releases").put(f"release.{release_id}", json.dumps(body).encode())
