"""Real JetStream and warehouse around a rewarder, and short words for what agents and people do."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest_asyncio
from consumed import is_consumed
from nats.js.errors import NotFoundError

from onward.bus import Bus, Message
from onward.bus.headers import usable
from onward.clock import SystemClock, utc_text
from onward.config import load
from onward.context import Context
from onward.contracts import Feedback, Reward, Trajectory, decode, encode, subjects, validate
from onward.reward.role.rewarder import Rewarder
from onward.telemetry import Alerts, Metrics
from onward.warehouse import EmbeddedWarehouse, Objects, queries

TABLES = ("trajectories", "rewards", "unscored", "feedback")


@pytest_asyncio.fixture(name="embedded", scope="module", loop_scope="module")
async def reward_warehouse(tmp_path_factory):
    warehouse = EmbeddedWarehouse(tmp_path_factory.mktemp("wh"))
    client = await warehouse.start()
    yield client
    await warehouse.stop()


@pytest_asyncio.fixture(name="ctx", loop_scope="module")
async def reward_ctx(embedded, nats_server, tmp_path):
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


async def until(condition, seconds: float = 60.0) -> None:
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


async def messages(bus: Bus, stream: str = "RL_TRAJECTORIES") -> list[Message]:
    """Everything on a stream, as a consumer gets it."""
    last = (await bus.js.stream_info(stream)).state.last_seq
    found = []
    for sequence in range(1, last + 1):
        try:
            raw = await bus.js.get_msg(stream, seq=sequence)
        except NotFoundError:
            continue  # erased
        found.append(Message(raw.data, usable(raw.headers), raw.subject, sequence, 1, raw.time))
    return found


def said(name: str, **fields) -> Feedback:
    """A thumb down about ``trajectory_id``, or about ``session_id``."""
    document = {
        "feedback_id": name, "session_id": "s1", "kind": "explicit", "signal": "thumbs_down",
        "timestamp": utc_text(datetime.now(UTC)),
    }  # fmt: skip
    return validate(document | fields, Feedback)


async def say(bus: Bus, *items: Feedback) -> None:
    for item in items:
        await bus.publish(subjects.FEEDBACK, encode(item), msg_id=item.feedback_id)


async def history(ctx: Context, trajectory_id: str) -> list[Reward]:
    """The stored rewards of a trajectory, oldest first."""
    rows = await queries.reward_history(ctx.warehouse, trajectory_id)
    return [decode(row["payload"].encode(), Reward) for row in rows]


def rewards_of(ctx: Context, trajectory_id: str, count: int):
    async def check() -> bool:
        return len(await queries.reward_history(ctx.warehouse, trajectory_id)) >= count

    return check


def feedback_read(ctx: Context):
    """Whether the rewarder acknowledged all feedback."""

    return lambda: is_consumed(ctx.bus, "RL_FEEDBACK", "rewarder-feedback")


async def handled(active: Rewarder, batch: Sequence[Message]) -> None:
    """First rewards of ``batch``, published and stored."""
    await active.handle(list(batch))
    storing = asyncio.create_task(active.store_queue.run())
    await active.store_queue.wait_until_empty()
    storing.cancel()
    await asyncio.gather(storing, return_exceptions=True)
