"""Fault 21: a network that parts one of two gateways from NATS while a candidate is rolled back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from partition import partition
from release_stream import context, publish
from release_world import FakeSuite
from serving_world import World, eventually

from onward.bus import Bus, NatsServer
from onward.clock import SystemClock
from onward.contracts.buckets import GATEWAY_LEASE_SECONDS
from onward.release import releaser
from onward.release.record import Releases
from onward.release.releaser import install_initial

LEASE = 3.0


async def test_a_gateway_that_is_cut_off_during_a_rollback_serves_current_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is cut: connections stay open and nothing passes. The lease is shorter than the real one."""
    assert GATEWAY_LEASE_SECONDS == 15.0
    for module in ("onward.serving.routing.route_switcher", "onward.release.routes"):
        monkeypatch.setattr(f"{module}.GATEWAY_LEASE_SECONDS", LEASE)
    suite = FakeSuite({}, {})
    monkeypatch.setattr("onward.release.validation.suite.EngineSuite", lambda ctx: suite)
    clock, server = SystemClock(), NatsServer(tmp_path / "nats")
    await server.start()
    try:
        async with partition(server.url) as cut:
            bus = await Bus.connect(server.url, token=server.token)
            far = await Bus.connect(cut.url, token=server.token)
            await bus.ensure_streams()
            try:
                async with World(bus, tmp_path) as near, World(far, tmp_path) as away, asyncio.timeout(90):
                    await _rolled_back(bus, clock, tmp_path, near, away, cut, suite)
            finally:
                cut.heal()
                await far.close()
                await bus.close()
    finally:
        await server.stop()


async def _rolled_back(
    bus: Bus, clock: SystemClock, folder: Path, near: World, away: World, cut: Any, suite: FakeSuite
) -> None:
    ctx = context(bus, clock, folder)
    releases = Releases(bus, clock)
    old, new = await near.register("old", 1.0), await near.register("new", 2.0)
    suite.success = {old: 0.5, new: 0.6}
    prefixes = {}
    for name in ("old", "new"):
        entry = await bus.bucket("rl_models").get(name)
        assert entry is not None
        prefixes[name] = json.loads(entry.value)["object_prefix"]
    role = asyncio.create_task(releaser.run(ctx))
    try:
        await eventually(lambda: _is(ctx.ready.get("releaser")))
        await install_initial(ctx, old, prefixes["old"])
        commit = {
            "epoch": 1, "manifest_sha256": None, "object_prefix": prefixes["new"], "adapter_digest": new
        }  # fmt: skip
        job = {"job_id": "job-1", "state": "completed", "commit": commit, "start_digest": old}
        await bus.bucket("rl_jobs").put("job.job-1", json.dumps(job).encode())

        async def newest() -> Any:
            return (await releases.all())[-1]

        async def serves_both() -> bool:
            record = await newest()
            return record.job_id == "job-1" and record.serving and record.verified_revision is not None

        await eventually(serves_both)
        session = await _session_of_candidate(away)
        cut.cut()
        record, count = await newest(), 0
        while not (await newest()).closed:
            for arm in ("current", "current", "candidate"):
                count += 1
                bad = float(arm == "candidate")
                await publish(bus, clock, count, record.release_id, arm, "error", bad)
            await asyncio.sleep(0.05)

        async def settled() -> bool:
            return (await newest()).settled

        await eventually(settled)
        record = await newest()
        assert record.decision == "rolled_back" and record.verified_zero_at
        assert near.gateway.gateway_id != away.gateway.gateway_id
        ((_, told, _, facts),) = [one for one in ctx.alerts.raised if one[0] == "gateway_dead"]  # type: ignore[attr-defined]
        assert facts["gateway"] == away.gateway.gateway_id in told
        # Verified zero came after the lease of the gateway that is cut off, so it serves current alone too.
        for name in (session, *(f"after-{number}" for number in range(20))):
            answer = await away.ask(name)
            assert answer["onward"]["sampling"]["model_digest"] == old
            assert answer["onward"]["release"] is None
    finally:
        role.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await role


async def _is(value: Any) -> bool:
    return bool(value)


async def _session_of_candidate(world: World) -> str:
    """Asks with new sessions until one is the candidate's; returns its name. At 10 %, the chance that none of
    500 is below 1e-22."""
    for number in range(500):
        name = f"before-{number}"
        release = (await world.ask(name))["onward"]["release"] or {}
        if release.get("arm") == "candidate":
            return name
    raise AssertionError("no session was given to the candidate")
