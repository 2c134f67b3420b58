"""kill -9 of the rewarder between its commits: nothing is lost, nothing counts twice, bytes are the same."""

import asyncio
import json
import subprocess
import sys

import pytest
from reward_world import published, running, trajectory, until

from onward.bus import Bus
from onward.capture import collector
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.contracts import encode, subjects
from onward.telemetry import Alerts, Metrics
from onward.warehouse import EmbeddedWarehouse, Objects, queries

PROGRAM = """
import asyncio, json, sys
from onward.bus import Bus
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.reward import rewarder
from onward.telemetry import Alerts, Metrics
from onward.warehouse import Objects, connect

async def main(data_dir, url, token):
    settings, clock, metrics = load(environ={}, overrides={"data_dir": data_dir}), SystemClock(), Metrics()
    bus = await Bus.connect(url, token=token, clock=clock)
    await rewarder.run(Context(
        settings=settings, clock=clock, bus=bus, warehouse=await connect(settings), metrics=metrics,
        objects=Objects.open(settings.objects_at), alerts=Alerts(bus, clock, metrics)))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.long
async def test_a_rewarder_killed_between_its_commits(own_server, tmp_path, monkeypatch):
    embedded = EmbeddedWarehouse(tmp_path)
    warehouse = await embedded.start()
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams()
    clock, metrics = SystemClock(), Metrics()
    settings = load(environ={}, overrides={"data_dir": tmp_path})
    ctx = Context(
        settings=settings, clock=clock, bus=bus, warehouse=warehouse, metrics=metrics,
        objects=Objects.open(settings.objects_at), alerts=Alerts(bus, clock, metrics),
    )  # fmt: skip

    def start(crashpoint: str) -> subprocess.Popen:
        monkeypatch.setenv("ONWARD_CRASHPOINT", crashpoint)
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), own_server.url, own_server.token]
        )

    async def ended(process: subprocess.Popen) -> int:
        return await asyncio.wait_for(asyncio.to_thread(process.wait), 60)

    async with running(collector.run(ctx)):
        for i in range(20):
            await bus.publish(subjects.TRAJECTORY, encode(trajectory(i)), msg_id=f"t{i}")
        assert await ended(start("rewarder.published")) == 137
        early = await published(bus)
        assert early
        assert await ended(start("rewarder.stored")) == 137
        for i in range(20, 30):
            await bus.publish(subjects.TRAJECTORY, encode(trajectory(i)), msg_id=f"t{i}")
        process = start("")
        try:

            async def record_is_kept() -> bool:
                entry = await bus.bucket("rl_rewarder").get("state")
                return entry is not None and json.loads(entry.value)["stream_seq"] == 30

            await until(record_is_kept, 60)
        finally:
            process.kill()
            process.wait()

    rewards = await published(bus)
    assert sorted(json.loads(d)["trajectory_id"] for d in rewards) == sorted(f"t{i}" for i in range(30))
    rows = await queries.reward_for(warehouse, [f"t{i}" for i in range(30)])
    assert {row["payload"].encode() for row in rows.values()} == set(rewards)
    state = json.loads((await bus.bucket("rl_rewarder").get("state")).value)
    assert len(state["windows"]["raw_total"]) == 30
    await bus.close()
    await embedded.stop()
