"""A server whose streams were made by the seed's own lines: kept, warned about, moved over without loss."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from nats.js import api
from nats.js.errors import APIError

from onward.bus import Ack, Bus, consume
from onward.bus.buckets import BUCKETS
from onward.bus.streams import DAY, STREAMS, Difference, apply, ensure_streams, plan, sized
from onward.contracts import subjects
from onward.errors import StreamDriftError

SEED = {
    "RL_TRAJECTORIES": ("agent.rl.trajectory.v1", 1_000_000, 30 * DAY),
    "RL_REWARDS": ("agent.rl.reward.v1", 500_000, 30 * DAY),
    "RL_TRAINING": ("agent.rl.training.>", 10_000, 7 * DAY),
}


@pytest.fixture
async def seed_bus(bare_bus: Bus) -> Bus:
    for name, (subject, most, age) in SEED.items():
        await bare_bus.js.add_stream(
            name=name,
            subjects=[subject],
            retention=api.RetentionPolicy.LIMITS,
            max_age=age,
            max_msgs=most,
            storage=api.StorageType.FILE,
        )
    return bare_bus


def fields(found: list[Difference], stream: str) -> dict[str, tuple[bool, str]]:
    return {d.field: (d.loses_data, d.migration) for d in found if d.stream == stream}


async def test_a_fresh_server_gets_everything_and_then_differs_in_nothing(bare_bus):
    found = await plan(bare_bus)
    assert {d.migration for d in found} == {"create"} and len(found) == len(STREAMS) + len(BUCKETS)
    assert await ensure_streams(bare_bus) == []
    assert await plan(bare_bus) == []


async def test_the_plan_names_what_the_seeds_streams_would_lose(seed_bus):
    found = await plan(seed_bus)
    common = {
        "discard": (True, "update"),
        "max_msgs": (True, "update"),
        "max_bytes": (False, "update"),
        "duplicate_window": (False, "update"),
    }
    assert fields(found, "RL_TRAJECTORIES") == common
    assert fields(found, "RL_REWARDS") == common
    assert fields(found, "RL_TRAINING") == {
        **common,
        "subjects": (False, "update"),
        "max_age": (True, "update"),
    }
    assert "swallows agent.rl.training.status.request" in "".join(map(str, found))
    assert fields(found, "RL_DEPLOY") == {"stream": (True, "create")}


async def test_a_start_keeps_the_seeds_streams_and_works_against_them(seed_bus):
    before = (await seed_bus.js.stream_info("RL_TRAINING")).config
    rest = await ensure_streams(seed_bus, specs=sized(100.0))
    assert {d.stream for d in rest} == set(SEED)
    assert (await seed_bus.js.stream_info("RL_TRAINING")).config == before
    seen: list[bytes] = []

    async def handler(messages):
        seen.extend(m.data for m in messages)
        return [Ack()] * len(messages)

    task = asyncio.create_task(
        consume(
            seed_bus,
            stream="RL_TRAINING",
            durable="trainer",
            subject=subjects.TRAINING_REQUEST,
            handler=handler,
        )
    )
    await seed_bus.publish(subjects.TRAINING_STATUS, b"not this", msg_id="s")
    await seed_bus.publish(subjects.TRAINING_REQUEST, b"this", msg_id="r")
    while not seen:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert seen == [b"this"]


async def test_the_streams_own_answer_to_a_request_is_not_taken_for_the_roles(seed_bus):
    async def answer(data: bytes) -> bytes:
        return b'{"status": "running"}'

    await seed_bus.serve(subjects.TRAINING_STATUS_REQUEST, answer)
    assert await seed_bus.request(subjects.TRAINING_STATUS_REQUEST, b"j1") == b'{"status": "running"}'


async def test_apply_moves_the_seeds_streams_over_byte_for_byte(seed_bus):
    sent: dict[str, list[tuple[str, bytes]]] = {name: [] for name in SEED}
    for i in range(30):
        for name, subject in (
            ("RL_TRAJECTORIES", subjects.TRAJECTORY),
            ("RL_REWARDS", subjects.REWARD),
            ("RL_TRAINING", subjects.TRAINING_REQUEST),
            ("RL_TRAINING", "agent.rl.training.something.else"),
        ):
            data = f"{name} {i} \x00é".encode()
            await seed_bus.js.publish(subject, data, headers={"Nats-Msg-Id": f"{subject}{i}", "X": str(i)})
            sent[name].append((subject, data))
    await seed_bus.js.add_consumer("RL_TRAJECTORIES", durable_name="mine", ack_policy="explicit")
    await apply(seed_bus, await plan(seed_bus))
    assert await plan(seed_bus) == []
    for name, messages in sent.items():
        for sequence, (subject, data) in enumerate(messages, 1):
            raw = await seed_bus.js.get_msg(name, seq=sequence)
            assert (raw.subject, raw.data) == (subject, data)
            assert (
                raw.headers is not None and raw.headers["X"] == str((sequence - 1) % 30)
            ) or name == "RL_TRAINING"
    assert (await seed_bus.js.consumer_info("RL_TRAJECTORIES", "mine")).num_pending == 30
    duplicate = await seed_bus.publish(subjects.TRAJECTORY, b"x", msg_id=f"{subjects.TRAJECTORY}3")
    assert duplicate.duplicate is True
    assert (await seed_bus.publish(subjects.TRAJECTORY, b"new", msg_id="new")).seq == 31


async def test_apply_never_sets_a_byte_limit_below_what_is_stored(bare_bus, monkeypatch):
    spec = STREAMS["RL_DEPLOY"]
    await bare_bus.js.add_stream(spec.config().evolve(max_bytes=-1))
    for i in range(20):
        await bare_bus.publish(subjects.MODEL_DEPLOYED, b"x" * 1000, msg_id=f"m{i}")
    monkeypatch.setitem(STREAMS, "RL_DEPLOY", replace(spec, max_bytes=4096))
    await apply(bare_bus, [d for d in await plan(bare_bus) if d.stream == "RL_DEPLOY"])
    info = await bare_bus.js.stream_info("RL_DEPLOY")
    assert info.state.messages == 20 and info.config.max_bytes >= info.state.bytes
    await bare_bus.publish(subjects.MODEL_DEPLOYED, b"x", msg_id="more")


async def test_a_start_raises_byte_limits_with_the_expected_volume_and_never_lowers_them(bus):
    async def limit() -> int:
        return int((await bus.js.stream_info("RL_TRAJECTORIES")).config.max_bytes or 0)

    await bus.publish(subjects.TRAJECTORY, b"stored", msg_id="stored")
    assert await limit() == 4 << 30
    more = sized(100.0)
    found = await plan(bus, more)
    assert {d.stream for d in found} == {
        "RL_TRAJECTORIES",
        "RL_REWARDS",
        "RL_FEEDBACK",
        "RL_OUTCOMES",
        "RL_DLQ",
    }
    assert {(d.field, d.migration, d.loses_data) for d in found} == {("max_bytes", "update", False)}
    assert await ensure_streams(bus, specs=more) == []
    assert await limit() == more["RL_TRAJECTORIES"].max_bytes > 125e9
    assert (await bus.js.get_msg("RL_TRAJECTORIES", seq=1)).data == b"stored"
    assert {d.migration for d in await plan(bus)} == {"keep"}, "the server keeps more than is expected now"
    assert await ensure_streams(bus) == []
    assert await limit() == more["RL_TRAJECTORIES"].max_bytes


async def test_what_cannot_be_changed_in_place_is_refused_before_anything_is_touched(bare_bus):
    await bare_bus.js.add_stream(
        name="RL_REWARDS", subjects=["agent.rl.reward.v1"], storage=api.StorageType.MEMORY, max_msgs=5
    )
    before = (await bare_bus.js.stream_info("RL_REWARDS")).config
    with pytest.raises(StreamDriftError, match=r"RL_REWARDS\.storage"):
        await ensure_streams(bare_bus, migrate=True)
    assert (await bare_bus.js.stream_info("RL_REWARDS")).config == before


async def test_a_subject_that_another_stream_owns_is_one_sentence(bare_bus):
    await bare_bus.js.add_stream(name="MINE", subjects=["agent.rl.>"])
    with pytest.raises(StreamDriftError, match="two streams cannot share a subject"):
        await ensure_streams(bare_bus)


async def test_the_audit_log_refuses_deletion(bus):
    await bus.publish(subjects.AUDIT, b"x", msg_id="a")
    with pytest.raises(APIError):
        await bus.js.delete_msg("RL_AUDIT", 1)
    with pytest.raises(APIError):
        await bus.js.purge_stream("RL_AUDIT")


async def test_trajectories_can_be_erased(bus):
    ack = await bus.publish(subjects.TRAJECTORY, b"secret", msg_id="a")
    assert await bus.js.delete_msg("RL_TRAJECTORIES", ack.seq)


async def test_what_the_server_gave_up_on_is_stored(bus):
    await bus.publish(subjects.TRAJECTORY, b"x", msg_id="a")
    await bus.js.add_consumer(
        "RL_TRAJECTORIES", durable_name="others", ack_policy="explicit", ack_wait=0.2, max_deliver=1
    )
    subscription = await bus.js.pull_subscribe_bind("others", "RL_TRAJECTORIES")
    await subscription.fetch(1, timeout=2)
    async with asyncio.timeout(10):
        while not (await bus.js.stream_info("RL_ADVISORY")).state.messages:
            await subscription._nc.publish(
                "$JS.API.CONSUMER.MSG.NEXT.RL_TRAJECTORIES.others", b"1", reply="x"
            )
            await asyncio.sleep(0.1)
