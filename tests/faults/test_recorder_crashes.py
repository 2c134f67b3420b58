"""A producer killed between any two steps: what it was told is recorded arrives, and is stored once.

Faults 2 and 3 of the design's list. The checker compares sets: lost = recorded − on the stream.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from consumed import acknowledged

from onward import Recorder
from onward.bus import Bus, NatsServer
from onward.bus.outbox import Outbox
from onward.capture import claim_check
from onward.capture.collecting import collector
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.contracts import Trajectory, decode
from onward.telemetry import Alerts, Metrics
from onward.warehouse import EmbeddedWarehouse, Objects

STREAM = "RL_TRAJECTORIES"
AGENT = """
import os, signal, sys
from onward import Recorder
recorder = Recorder(sys.argv[1], nats_url=sys.argv[2] or None, nats_token=sys.argv[3], objects=sys.argv[4])
turns = int(sys.argv[5])
for i in range(4):
    with recorder.task("x", session_id=f"s{i}") as task:
        for _ in range(turns):
            task.turn(observation="word " * 10_000, action="a")
    print(task.trajectory_id, flush=True)
if sys.argv[2]:
    recorder.flush(20)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(server.url, token=server.token)
    await bus.ensure_streams(migrate=True)
    yield bus
    await bus.close()


async def agent(
    folder: Path, server: NatsServer, *, point: str = "", online: bool = True, turns: int = 1
) -> set[str]:
    """Run an agent until it dies; the ids of what it was told is recorded."""
    command = [
        sys.executable, "-c", AGENT, str(folder / "o.db"), server.url if online else "", server.token,
        str(folder / "objects"), str(turns),
    ]  # fmt: skip
    environment = {**os.environ, "ONWARD_CRASHPOINT": point}
    died = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=120
    )
    assert died.returncode in (137, -9), died.stderr
    return set(died.stdout.split())


async def restart(folder: Path, server: NatsServer) -> Recorder:
    recorder = Recorder(
        folder / "o.db", nats_url=server.url, nats_token=server.token, objects=folder / "objects"
    )
    assert await asyncio.to_thread(recorder.flush, 30.0)
    return recorder


async def on_stream(bus: Bus) -> list[str]:
    """Ids of all messages, in order."""
    info = await bus.js.stream_info(STREAM)
    found = []
    for sequence in range(1, info.state.last_seq + 1):
        found.append(
            decode((await bus.js.get_msg(STREAM, seq=sequence)).data or b"", Trajectory).trajectory_id
        )
    return found


def accepted(folder: Path) -> list[str]:
    return [receipt.msg_id for receipt in Outbox(folder / "o.db").receipts()]


async def test_killed_between_commit_and_publish_is_published_on_restart(bus, server, tmp_path):
    told = await agent(tmp_path, server, online=False)
    assert len(told) == 4 and await on_stream(bus) == []
    (await restart(tmp_path, server)).close()
    assert await on_stream(bus) == accepted(tmp_path) and set(accepted(tmp_path)) == told


STEPS = [
    *(
        (point, turns)
        for point in ("outbox.committed", "outbox.acked", "outbox.removed")
        for turns in (1, 40)
    ),
    ("claims.stored", 40),
]
"""Where it dies, and turns of a task: forty make a body that travels by claim check."""


@pytest.mark.parametrize("point,turns", STEPS)
async def test_killed_at_any_step_loses_and_doubles_nothing(bus, server, tmp_path, point, turns):
    told = await agent(tmp_path, server, point=point, turns=turns)
    (await restart(tmp_path, server)).close()
    arrived = await on_stream(bus)
    assert len(arrived) == len(set(arrived)), "the dedupe window takes repeats"
    assert arrived == accepted(tmp_path)
    assert told <= set(arrived), "nothing is lost"
    assert not Outbox(tmp_path / "o.db").pending()
    if turns == 40:
        objects = Objects.open(tmp_path / "objects")
        for sequence in range(1, len(arrived) + 1):
            raw = await bus.js.get_msg(STREAM, seq=sequence)
            claim = claim_check.parse((raw.headers or {})[claim_check.HEADER])
            assert decode(
                await claim_check.fetch(objects, claim), Trajectory, max_bytes=claim_check.BODY_BYTES
            ).turns[39]


async def test_killed_between_puback_and_delete_is_one_row_also_when_the_window_has_passed(
    bus, server, tmp_path
):
    info = await bus.js.stream_info(STREAM)
    await bus.js.update_stream(info.config.evolve(duplicate_window=0.1))
    told = await agent(tmp_path, server, point="outbox.acked")
    await asyncio.sleep(0.3)
    (await restart(tmp_path, server)).close()
    arrived = await on_stream(bus)
    assert len(arrived) == len(set(arrived)) + 1, "the server took one twice"
    warehouse = EmbeddedWarehouse(tmp_path / "warehouse")
    clock, metrics = SystemClock(), Metrics()
    try:
        ctx = Context(
            load(environ={}, overrides={"data_dir": str(tmp_path)}), clock, bus, await warehouse.start(),
            Objects.open(tmp_path / "objects"), metrics, Alerts(bus, clock, metrics),
        )  # fmt: skip
        task = asyncio.create_task(collector.run(ctx))
        async with asyncio.timeout(60):
            while (await acknowledged(bus, STREAM, collector.DURABLE)) < len(arrived):
                await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        rows = await ctx.warehouse.query("SELECT trajectory_id FROM trajectories_v")
    finally:
        await warehouse.stop()
    assert sorted(row["trajectory_id"] for row in rows) == sorted(set(arrived))
    assert told <= set(arrived)


async def test_killed_again_and_again_while_it_drains(bus, server, tmp_path):
    """Four tasks with each run, killed after its first PubAck; a last run finishes."""
    told: set[str] = set()
    for _ in range(4):
        told |= await agent(tmp_path, server, point="outbox.acked")
    (await restart(tmp_path, server)).close()
    arrived = await on_stream(bus)
    assert arrived == accepted(tmp_path) and told <= set(arrived)
    assert json.dumps(arrived).count("-") == 4 * len(arrived)
