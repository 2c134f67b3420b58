"""A bad candidate behind three real gateways: from the crossing to verified zero on all of them."""

import asyncio
import contextlib
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from release_stream import context, publish
from release_world import FakeSuite
from serving_world import World

from onward.bus import Bus
from onward.clock import SystemClock, read_time
from onward.release import releaser
from onward.release.record import Releases
from onward.release.releaser import install_initial


async def test_three_gateways_serve_the_current_model_alone_after_a_crossing(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = SystemClock()
    ctx = context(bus, clock, tmp_path)
    async with AsyncExitStack() as stack:
        worlds = [await stack.enter_async_context(World(bus, tmp_path)) for _ in range(3)]
        old, new = await worlds[0].register("old", 1.0), await worlds[0].register("new", 2.0)
        entry = await bus.bucket("rl_models").get("new")
        assert entry is not None
        prefix = json.loads(entry.value)["object_prefix"]
        kept = await bus.bucket("rl_models").get("old")
        assert kept is not None
        suite = FakeSuite({new: 0.6}, {})
        monkeypatch.setattr("onward.release.validation.suite.EngineSuite", lambda ctx: suite)
        role = asyncio.create_task(releaser.run(ctx))
        try:
            async with asyncio.timeout(90):
                while not ctx.ready.get("releaser"):
                    await asyncio.sleep(0.01)
                await install_initial(ctx, old, json.loads(kept.value)["object_prefix"])
                commit = {
                    "epoch": 1, "manifest_sha256": None, "object_prefix": prefix, "adapter_digest": new
                }  # fmt: skip
                job = {"job_id": "job-1", "state": "completed", "commit": commit, "start_digest": old}
                await bus.bucket("rl_jobs").put("job.job-1", json.dumps(job).encode())
                releases, count = Releases(bus, clock), 0
                while True:
                    record = (await releases.all())[-1]
                    if record.job_id == "job-1" and record.settled:
                        break
                    if record.job_id == "job-1" and record.serving and record.verified_revision:
                        for arm in ("current", "current", "candidate"):
                            count += 1
                            bad = float(arm == "candidate")
                            await publish(bus, clock, count, record.release_id, arm, "error", bad)
                    assert not role.done()
                    await asyncio.sleep(0.05)
        finally:
            role.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await role
        assert record.decision == "rolled_back" and record.crossed_at and record.verified_zero_at
        for world in worlds:
            report = await bus.bucket("rl_gateways").get(world.gateway.gateway_id)
            assert report is not None
            assert [arm["adapter_digest"] for arm in json.loads(report.value)["arms"]] == [old]
    passed = read_time(record.verified_zero_at) - read_time(record.crossed_at)
    print(f"crossing to verified zero on three gateways: {passed.total_seconds():.2f} s")
