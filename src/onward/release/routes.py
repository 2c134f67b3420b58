"""Desired state and what the gateways make of it: ``desired`` in ``rl_releases`` against ``rl_gateways.*``.

Know before changing: a route counts as changed when every live gateway says so, not when it was written.
A gateway is given up as dead only after it has been silent for its whole lease, by which time it serves
the current model by itself (it fails closed).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from onward.bus import Bucket
from onward.clock import Clock
from onward.context import Context
from onward.contracts import canonical_json
from onward.release.plan import State
from onward.release.record import Model, ReleaseRecord
from onward.telemetry.crashpoints import crashpoint

DESIRED = "desired"
LEASE_SECONDS = 15.0
"""A gateway that has not written for this long is dead or has failed closed."""


def endpoint_of(ctx: Context) -> str:
    """URL of the gateway: as bound, else as configured."""
    http = ctx.settings.http
    base = ctx.endpoints.get("gateway_url") or f"http://{http.host}:{http.gateway_port}"
    return f"{base.rstrip('/')}/v1"


def arm(name: str, model: Model, weight: float) -> dict[str, Any]:
    return {
        "arm": name,
        "model_id": model.model_id,
        "adapter_digest": model.adapter_digest,
        "model_digest": model.model_digest,
        "weight": round(weight, 9),
    }


def alone(model: Model, previous: Model | None) -> dict[str, Any]:
    """All traffic on one model, no release under way."""
    return {
        "release_id": None,
        "step": 0,
        "arms": [arm("current", model, 1.0)],
        "previous": _previous(previous),
    }


def routes_for(record: ReleaseRecord) -> dict[str, Any] | None:
    """The desired state that a release asks for, without its revision; None when it asks for nothing."""
    if record.serving:
        share = record.schedule.steps[record.step].share
        return {
            "release_id": record.release_id,
            "step": record.step,
            "arms": [arm("current", record.current, 1.0 - share), arm("candidate", record.candidate, share)],
            "previous": _previous(record.current),
        }
    if record.state is State.PROMOTED:
        return alone(record.candidate, record.current)
    if record.closed and record.started_at is not None:
        return alone(record.current, None)
    return None


def _previous(model: Model | None) -> dict[str, Any] | None:
    return None if model is None else {"model_id": model.model_id, "adapter_digest": model.adapter_digest}


class Desired:
    """The one writer of ``desired``. ``revision`` in it rises with every change and never repeats."""

    def __init__(self, releases: Bucket) -> None:
        self._bucket = releases

    async def read(self) -> dict[str, Any] | None:
        entry = await self._bucket.get(DESIRED)
        return None if entry is None else json.loads(entry.value)

    async def set(self, wanted: dict[str, Any]) -> int:
        """Make ``wanted`` the desired state; returns its revision. Nothing is written when it is already."""
        entry = await self._bucket.get(DESIRED)
        if entry is None:
            crashpoint("release.desired.before")
            await self._bucket.create(DESIRED, canonical_json({**wanted, "revision": 1}))
            crashpoint("release.desired.after")
            return 1
        now = json.loads(entry.value)
        revision = int(now.pop("revision"))
        if now == wanted:
            return revision
        crashpoint("release.desired.before")
        await self._bucket.update(
            DESIRED, canonical_json({**wanted, "revision": revision + 1}), entry.revision
        )
        crashpoint("release.desired.after")
        return revision + 1


@dataclass(frozen=True)
class Followed:
    """Who serves a revision: ``done``, ``late`` (alive, still something else), ``dead``."""

    done: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    """Gateway → why it does not serve the candidate's adapter."""

    @property
    def verified(self) -> bool:
        """At least one gateway lives, and all that live serve the revision."""
        return bool(self.done) and not self.late


class Gateways:
    """Reads ``rl_gateways``; tells the living from the dead by whether their record still moves."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock
        self._moved: dict[str, tuple[int, float]] = {}

    async def check(self, wanted_revision: int, digests: set[str]) -> Followed:
        """Compare every gateway with ``wanted_revision`` and the adapters it must have loaded."""
        found = Followed()
        now = self._clock.monotonic()
        for key in await self._bucket.keys():
            entry = await self._bucket.get(key)
            if entry is None:
                continue
            report = json.loads(entry.value)
            seen = self._moved.get(key)
            if seen is None:
                # First sight: an entry left by a gateway that ended long ago is dead at once.
                self._moved[key] = (entry.revision, now - self._age(report))
            elif seen[0] != entry.revision:
                self._moved[key] = (entry.revision, now)
            if int(report.get("revision", -1)) >= wanted_revision and digests <= set(
                report.get("served", ())
            ):
                found.done.add(key)
            elif now - self._moved[key][1] > LEASE_SECONDS:
                found.dead.add(key)
            else:
                found.late.add(key)
                if report.get("error"):
                    found.refused[key] = str(report["error"])
        return found

    def _age(self, report: dict[str, Any]) -> float:
        """Seconds since the gateway wrote, by its own word; at most what makes it dead for sure."""
        limit = 10 * LEASE_SECONDS
        try:
            written = datetime.fromisoformat(str(report.get("updated_at")).replace("Z", "+00:00"))
            return max(0.0, min((self._clock.now() - written).total_seconds(), limit))
        except (ValueError, TypeError):
            return limit
