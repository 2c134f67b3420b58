"""The rewarder on real JetStream and the real warehouse, beside the real collector."""

import asyncio
import contextlib
import json
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import pytest_asyncio

from onward.bus import Bus
from onward.capture import collector
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.contracts import Reward, Trajectory, decode, encode, subjects, validate
from onward.reward import reward_id, rewarder
from onward.reward.rewarder import Rewarder
from onward.telemetry import Alerts, Metrics
from onward.warehouse import EmbeddedWarehouse, Objects, queries

pytestmark = pytest.mark.asyncio(loop_scope="module")
TABLES = ("trajectories", "rewards", "unscored")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedded(tmp_path_factory):
    warehouse = EmbeddedWarehouse(tmp_path_factory.mktemp("wh"))
    client = await warehouse.start()
    yield client
    await warehouse.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def ctx(embedded, nats_server, tmp_path):
    bus = await Bus.connect(nats_server.url, token=nats_server.token, name="test")
    for info in await bus.js.streams_info():
        await bus.js.delete_stream(str(info.config.name))
    await bus.ensure_streams(migrate=True)
    for table in TABLES:
        await embedded.command(f"TRUNCATE TABLE {table}")
    clock, metrics = SystemClock(), Metrics()
    yield Context(
        settings=load(environ={}, overrides={"reward": {"window": 40}, "data_dir": tmp_path}),
        clock=clock, bus=bus, warehouse=embedded, metrics=metrics, objects=Objects.open(tmp_path / "objects"),
        alerts=Alerts(bus, clock, metrics),
    )  # fmt: skip
    await bus.close()


def trajectory(i: int, **changes) -> Trajectory:
    start = datetime.now(UTC) - timedelta(minutes=5)
    good = i % 3 != 0
    document = {
        "trajectory_id": f"t{i}",
        "session_id": f"s{i}",
        "agent_id": "agent",
        "start_timestamp": "2026-01-01T00:00:00Z",
        "end_timestamp": "2026-01-01T00:00:09Z",
        "turns": [
            {
                "turn_id": n + 1,
                "timestamp": "2026-01-01T00:00:00Z",
                "observation": {"type": "user_message", "content": "do it"},
                "action": {"type": "response", "raw_response": "done"},
                "result": {"success": good, "output": "ok", "error": None},
            }
            for n in range(1 + i % 4)
        ],
        "task_context": {
            "task_id": f"k{i}", "instructions": "do it", "domain": "general", "task_type": "sum",
        },
        "metadata": {
            "model": "v1", "total_tokens": 100 + 7 * (i % 5),
            "outcome": {"status": "completed_successfully" if good else "failed"},
        },
    }  # fmt: skip
    document["start_timestamp"] = start.isoformat()
    document["end_timestamp"] = (start + timedelta(seconds=1 + i % 6)).isoformat()
    return validate(document | changes, Trajectory)


async def publish(bus: Bus, *items: Trajectory) -> None:
    await asyncio.gather(
        *(bus.publish(subjects.TRAJECTORY, encode(t), msg_id=t.trajectory_id) for t in items)
    )


@contextlib.asynccontextmanager
async def running(*coroutines):
    tasks = [asyncio.ensure_future(c) for c in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [r for r in results if isinstance(r, Exception)], results


async def until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "took too long"
        await asyncio.sleep(0.02)


async def published(bus: Bus) -> list[bytes]:
    state = (await bus.js.stream_info("RL_REWARDS")).state
    found = []
    for sequence in range(1, state.last_seq + 1):
        found.append((await bus.js.get_msg("RL_REWARDS", seq=sequence)).data)
    return found


def rewarded(ctx, count: int):
    async def check() -> bool:
        return (await queries.counts(ctx.warehouse))["rewarded"] >= count

    return check


async def test_every_stored_trajectory_gets_one_valid_reward(ctx):
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, *(trajectory(i) for i in range(60)))
        await until(rewarded(ctx, 60))
    rewards = {r.trajectory_id: r for r in (decode(d, Reward) for d in await published(ctx.bus))}
    assert len(rewards) == 60 and (await ctx.bus.js.stream_info("RL_REWARDS")).state.messages == 60
    first, last = rewards["t1"], rewards["t59"]
    assert first.reward_id == reward_id("t1")
    assert first.metadata.outcome.success and first.metadata.model_dump()["not_applicable"].keys() == {
        "efficiency"
    }
    # Without efficiency and code quality: weights .40 and .25 of .65; scores 1 and the neutral .5.
    assert first.metadata.raw_total == pytest.approx((0.40 * 1.0 + 0.25 * 0.5) / 0.65)
    assert first.metadata.confidence == pytest.approx(0.40 / 0.65)
    # A failure earns no efficiency, with or without a baseline.
    assert rewards["t0"].metadata.raw_total == pytest.approx(0.25 * 0.5 / 0.85)
    assert set(last.reward_components) == {"task_completion", "efficiency", "user_feedback"}
    row = (await queries.reward_for(ctx.warehouse, ["t59"]))["t59"]
    assert row["raw_total"] == last.metadata.raw_total and row["stream_seq"] == 60
    assert row["payload"].encode() in await published(ctx.bus)


async def test_a_restart_from_any_point_gives_the_same_bytes(ctx):
    items = [trajectory(i) for i in range(90)]
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, *items)
        await until(rewarded(ctx, 90))
    whole = dict((json.loads(d)["trajectory_id"], d) for d in await published(ctx.bus))
    entry = await ctx.bus.bucket("rl_rewarder").get("state")
    assert json.loads(entry.value)["stream_seq"] == 90

    # A rewarder that dies after publishing, before its record is kept: the same bytes come again.
    for cut in (1, 37, 60):
        again: dict[str, bytes] = {}
        recorder = _recording_bus(ctx.bus, again)
        copy = SimpleNamespace(**{**vars(ctx), "bus": recorder})
        half = Rewarder(copy, rewarder.State(40), None)
        messages = await _messages(ctx.bus)
        await half.handle(messages[:cut])
        record = half.state.dump()
        await half.handle(messages[cut : cut + 20])  # lost: the record was not kept
        resumed = Rewarder(copy, rewarder.State.load(record, 40), None)
        for start in range(cut, 90, 13):
            await resumed.handle(messages[start : start + 13])
        assert again == whole
        assert resumed.state.dump() == entry.value


def _recording_bus(bus: Bus, into: dict[str, bytes]):
    async def publish(subject, data, **_):
        name = json.loads(data)["trajectory_id"]
        assert into.setdefault(name, data) == data, "other bytes for the same trajectory"

    return SimpleNamespace(publish=publish, js=bus.js, bucket=bus.bucket)


async def _messages(bus: Bus):
    from onward.bus import Message

    last = (await bus.js.stream_info("RL_TRAJECTORIES")).state.last_seq
    found = []
    for sequence in range(1, last + 1):
        raw = await bus.js.get_msg("RL_TRAJECTORIES", seq=sequence)
        found.append(Message(raw.data, {}, raw.subject, sequence, 1, raw.time))
    return found


async def test_duplicates_and_garbage_change_nothing(ctx):
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, trajectory(1), trajectory(2))
        await ctx.bus.publish(subjects.TRAJECTORY, encode(trajectory(1)), msg_id="again")
        await ctx.bus.publish(subjects.TRAJECTORY, b"{not json", msg_id="garbage")
        await ctx.bus.publish(subjects.TRAJECTORY, b'{"trajectory_id":"bad-1"}', msg_id="schema")
        await publish(ctx.bus, trajectory(3))
        await until(rewarded(ctx, 3))
    assert (await ctx.bus.js.stream_info("RL_REWARDS")).state.messages == 3
    assert await queries.unscored_count(ctx.warehouse) == {"not_stored": 1}
    assert ctx.metrics.registry.get_sample_value("onward_unscored_total", {"reason": "not_stored"}) == 1.0


async def test_a_trajectory_that_was_redacted_later_is_scored_once_in_its_redacted_form(ctx):
    secret = "sk-" + "a1B2" * 12
    item = trajectory(1)
    item.turns[0].result.output = f"key {secret}"
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, item)
        await until(rewarded(ctx, 1))

        async def both_read() -> bool:
            info = await ctx.bus.js.consumer_info("RL_TRAJECTORIES", "rewarder")
            return info.ack_floor.stream_seq >= 2

        await until(both_read)
    state = (await ctx.bus.js.stream_info("RL_TRAJECTORIES")).state
    assert (state.messages, state.last_seq) == (1, 2), "the raw message was not replaced"
    assert len(await published(ctx.bus)) == 1


async def test_rewards_wait_for_the_collector(ctx):
    async with running(rewarder.run(ctx)):
        await publish(ctx.bus, trajectory(1))
        await asyncio.sleep(1.0)
        assert await published(ctx.bus) == []
        async with running(collector.run(ctx)):
            await until(rewarded(ctx, 1))


async def test_two_rewarders_one_works_and_the_other_takes_over(ctx):
    async with running(collector.run(ctx), rewarder.run(ctx)) as tasks:
        await publish(ctx.bus, *(trajectory(i) for i in range(5)))
        await until(rewarded(ctx, 5))
        async with running(rewarder.run(ctx)):
            await publish(ctx.bus, *(trajectory(i) for i in range(5, 10)))
            await until(rewarded(ctx, 10))
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
            await publish(ctx.bus, *(trajectory(i) for i in range(10, 15)))
            await until(rewarded(ctx, 15))
    assert (await ctx.bus.js.stream_info("RL_REWARDS")).state.messages == 15
    state = json.loads((await ctx.bus.bucket("rl_rewarder").get("state")).value)
    assert state["stream_seq"] == 15 and len(state["windows"]["raw_total"]) == 15


async def test_a_component_that_breaks_leaves_the_trajectory_unscored(ctx, monkeypatch):
    from onward.reward.components import UserFeedback

    def broken(self, trajectory, context):
        if trajectory.trajectory_id == "t2":
            raise ZeroDivisionError
        return original(self, trajectory, context)

    original = UserFeedback.score
    monkeypatch.setattr(UserFeedback, "score", broken)
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, *(trajectory(i) for i in range(1, 4)))
        await until(rewarded(ctx, 2))
    assert await queries.unscored_count(ctx.warehouse) == {"component_error": 1}
    assert "t2" not in await queries.reward_for(ctx.warehouse, ["t1", "t2", "t3"])
