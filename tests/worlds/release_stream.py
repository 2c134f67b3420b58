"""A releaser on a real bus: its context, its outcomes, and a gateway that serves what is desired."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from release_world import FakeAlerts

from onward.bus import Bus
from onward.capture import provenance
from onward.clock import utc_text
from onward.config import load
from onward.context import Context
from onward.contracts import SessionOutcome, encode, subjects
from onward.telemetry.metrics import Metrics

SIGNING_KEY = bytes(range(32))
"""Key of every gateway here; ``context`` writes it where the releaser's role reads it."""
RELEASE = {
    "time_scale": 1e-5, "min_sessions": [3, 3, 3, 0], "strategy": "canary", "max_bake": 0,
    "error_maturity_seconds": 0, "reward_maturity_seconds": 0,
}  # fmt: skip


class NoRows:
    """A warehouse without trajectories: the traffic is not known."""

    async def query(self, sql: str, **params: Any) -> list[dict[str, Any]]:
        return []


def outcome(clock, n: int, release: str, arm: str, kind: str, value: float, weight=0.1) -> SessionOutcome:
    """An outcome without a signature."""
    now = clock.now()
    return SessionOutcome.model_validate(
        {
            "outcome_id": f"o-{n}-{kind}", "session_id": f"s{n}", "release_id": release, "arm": arm,
            "weight": weight, "assigned_at": now, "timestamp": now, "kind": kind, "value": value,
        }
    )  # fmt: skip


async def publish(
    bus: Bus, clock, n: int, release: str, arm: str, kind: str, value: float, weight=0.1, key=SIGNING_KEY,
    raw_total: float | None = None,
) -> None:  # fmt: skip
    made = outcome(clock, n, release, arm, kind, value, weight).model_copy(update={"raw_total": raw_total})
    signed = provenance.sign_outcome(made, key)
    await bus.publish(subjects.OUTCOME, encode(signed), msg_id=signed.outcome_id)


async def publish_good_outcomes(
    bus: Bus, clock, count: int, run_dir: Path, raw_total: float | None = None
) -> int:
    """Publishes a full reward for each arm if two arms serve, signed with the gateway's key in ``run_dir``;
    returns the number of the last session."""
    key = provenance.load_key(run_dir)
    entry = await bus.bucket("rl_releases").get("desired")
    desired = json.loads(entry.value) if entry else {"arms": []}
    if len(desired["arms"]) == 2:
        for arm in ("candidate", "current"):
            count += 1
            weight = desired["arms"][1]["weight"]
            await publish(
                bus, clock, count, desired["release_id"], arm, "reward", 1.0, weight, key, raw_total
            )
    return count


def context(bus: Bus, clock, folder: Path) -> Context:
    settings = load(environ={}, overrides={"release": RELEASE, "data_dir": folder})
    key_file = settings.run_dir / provenance.KEY_FILE
    key_file.parent.mkdir(parents=True, exist_ok=True)
    key_file.write_text(SIGNING_KEY.hex())
    fakes = bus, NoRows(), None, Metrics(), FakeAlerts()
    return Context(settings, clock, *fakes)  # type: ignore[arg-type]


async def gateway_follows(bus: Bus, clock) -> dict | None:
    entry = await bus.bucket("rl_releases").get("desired")
    if entry is None:
        return None
    desired = json.loads(entry.value)
    served = [arm["adapter_digest"] for arm in desired["arms"]]
    report = {
        "revision": desired["revision"],
        "arms": desired["arms"],
        "served": served,
        "updated_at": utc_text(clock.now()),
        "error": None,
    }
    await bus.bucket("rl_gateways").put("gw-1", json.dumps(report).encode())
    return desired
