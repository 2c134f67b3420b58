"""kill -9 of the rewarder between its commits: nothing is lost, nothing counts twice, bytes are the same."""

import asyncio
import json
import subprocess
import sys

import pytest
from reward_world import (
    feedback_read,
    history,
    messages,
    published,
    running,
    said,
    say,
    trajectory,
    until,
)

from onward.bus import Bus
from onward.capture.collecting import collector
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.contracts import encode, subjects
from onward.reward.role import rescoring
from onward.telemetry import Alerts, Metrics
from onward.warehouse import EmbeddedWarehouse, Objects, queries

PROGRAM = """
import asyncio, json, sys
from onward.bus import Bus
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.reward.role import rewarder
from onward.reward.role import rescoring
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


FEEDBACK_POINTS = ("feedback.stored", "superseding.stored", "superseding.published")
SECRET_POINTS = ("feedback.republished", "feedback.erased")


@pytest.fixture
async def killable(own_server, tmp_path, monkeypatch):
    """A context beside a rewarder in a process of its own, and what starts one that dies at a crash point."""
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

    yield ctx, start
    await bus.close()
    await embedded.stop()


@pytest.mark.long
async def test_a_rewarder_killed_between_the_commits_of_late_rewards(killable):
    ctx, start = killable
    bus, warehouse, clock = ctx.bus, ctx.warehouse, ctx.clock

    async def dies_at(crashpoint: str) -> None:
        process = start(crashpoint)
        try:
            assert await asyncio.wait_for(asyncio.to_thread(process.wait), 60) == 137, crashpoint
        finally:
            process.kill()

    secret = "sk-" + "a1B2" * 12
    async with running(collector.run(ctx)):
        await say(bus, said("early", trajectory_id="t0"))
        await dies_at("feedback.stored")
        for i in range(10):
            await bus.publish(subjects.TRAJECTORY, encode(trajectory(i)), msg_id=f"t{i}")
        await dies_at("rewarder.stored")
        await dies_at("rewarder.published")
        for i, point in enumerate(FEEDBACK_POINTS, start=1):
            await say(bus, said(f"f{i}", trajectory_id=f"t{i}"))
            await dies_at(point)
        for i, point in enumerate(SECRET_POINTS, start=4):
            await say(bus, said(f"f{i}", trajectory_id=f"t{i}", comment=secret))
            await dies_at(point)
        request, _ = await rescoring.request_run(bus, clock, component="user_feedback")
        await dies_at("rescore.kept")
        process = start("")
        try:

            async def all_done() -> bool:
                found = await rescoring.read_progress(bus, request.run_id)
                entry = await bus.bucket("rl_rewarder").get("state")
                kept = entry is not None and json.loads(entry.value)["stream_seq"] == 10
                return kept and found is not None and found.finished and await feedback_read(ctx)()

            await until(all_done, 60)
        finally:
            process.kill()
            process.wait()

    sent: dict[str, bytes] = {}
    for data in await published(bus):
        name = json.loads(data)["reward_id"]
        assert sent.setdefault(name, data) == data, "other bytes under the same id"
    rows = await warehouse.query("SELECT reward_id, payload FROM reward_history_v")
    assert {row["reward_id"]: row["payload"].encode() for row in rows} == sent
    for i in range(1, 6):
        # Whoever came first took it in: the reader of feedback, or scoring again, which takes what is stored.
        first, second = await _extras(ctx, f"t{i}")
        assert "cause" not in first, "feedback was lost or counted twice"
        assert second["feedback_ids"] == [f"f{i}"], "feedback was lost or counted twice"
    (first,) = await history(ctx, "t0")
    assert first.reward_components["user_feedback"].score == 0.0
    stored = await warehouse.query("SELECT count() AS n, uniqExact(feedback_id) AS ids FROM feedback_v")
    assert stored == [{"n": 6, "ids": 6}]
    left = await messages(bus, "RL_FEEDBACK")
    assert len(left) == 6 and not any(secret in message.data.decode() for message in left)
    state = json.loads((await bus.bucket("rl_rewarder").get("state")).value)
    assert len(state["windows"]["raw_total"]) == 10 and state["stream_seq"] == 10


async def _extras(ctx: Context, trajectory_id: str) -> list[dict]:
    return [reward.metadata.model_extra or {} for reward in await history(ctx, trajectory_id)]


@pytest.mark.long
async def test_a_rewarder_killed_between_its_commits(killable):
    ctx, start = killable
    bus, warehouse = ctx.bus, ctx.warehouse

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
