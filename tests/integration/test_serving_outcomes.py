import asyncio
import json
from datetime import timedelta

import pytest
from serving_world import World, eventually, outcome_id

from onward.clock import ManualClock, utc_text
from onward.serving.routing.arms import choose

OFF = {"gateway": False}


@pytest.fixture
async def world(bus, tmp_path):
    """Agents that record themselves: the gateway leaves it to them."""
    async with World(bus, tmp_path, clock=ManualClock(), capture=OFF) as world:
        yield world


async def _kinds(world):
    return [(outcome.session_id, outcome.kind, outcome.value) for outcome in await world.outcomes()]


async def test_the_first_reward_of_a_session_is_its_outcome(world):
    await world.open_release()
    answer = await world.ask("s1")
    await world.reward("s1", success=True, release_id="r1")
    await world.reward("s1", success=False, release_id="r1")
    await world.reward("never-seen", success=False, release_id="r1")
    await world.rewards_read()
    (outcome,) = await world.outcomes()
    release = answer["onward"]["release"]
    assert (outcome.session_id, outcome.kind, outcome.value) == ("s1", "reward", 1.0)
    assert (outcome.arm, outcome.weight, outcome.release_id) == (release["arm"], 0.5, "r1")
    assert outcome.model_id == answer["model"]
    assert outcome.outcome_id == outcome_id("s1", "r1", "reward")


async def test_a_reward_that_supersedes_another_is_no_second_outcome(world):
    """Late feedback and 'onward rescore' judge work again that gates have counted, or that is too old."""
    await world.open_release()
    await world.ask("s1")
    await world.ask("s2")
    await world.reward("s1", success=True, release_id="r1", supersedes="earlier", cause={"kind": "rescore"})
    await world.reward("s2", success=False, release_id="r1", cause={"kind": "feedback", "id": "f1"})
    await world.reward("s1", success=False, release_id="r1")
    await world.rewards_read()
    assert await _kinds(world) == [("s1", "reward", 0.0)]


async def test_redelivery_and_a_second_gateway_cannot_count_twice(world, tmp_path):
    await world.open_release()
    await world.ask("s1")
    reward = await world.reward("s1", release_id="r1")
    await world.rewards_read()
    world.gateway.outcomes._seen.clear()  # as after a restart, before the stream was read again
    from onward.bus import Message
    from onward.contracts import encode

    message = Message(encode(reward), {}, "agent.rl.reward.v1", 1, 2, world.clock.now())
    await world.gateway.outcomes.on_rewards([message, message])
    assert await _kinds(world) == [("s1", "reward", 1.0)]


async def test_an_unreadable_answer_is_an_error_and_a_failed_task(world):
    await world.open_release()
    await world.ask("s1")
    await world.reward("s1", success=False, outcome={"unparsable": True}, release_id="r1")
    await world.rewards_read()
    assert await _kinds(world) == [("s1", "error", 1.0), ("s1", "reward", 0.0)]


async def test_a_failed_task_is_no_error(world):
    await world.open_release()
    await world.ask("s1")
    await world.reward("s1", success=False, release_id="r1")
    await world.rewards_read()
    assert await _kinds(world) == [("s1", "reward", 0.0)]


async def test_the_raw_total_comes_with_the_outcome_if_it_is_in_its_range(world):
    """0 and 1 are in it. A number that another evaluator put outside of it is unknown."""
    await world.open_release()
    given = {"s1": 0.0, "s2": 0.625, "s3": 1.0, "s4": 1.5, "s5": -0.25, "s6": None}
    for session, raw_total in given.items():
        await world.ask(session)
        await world.reward(session, release_id="r1", raw_total=raw_total)
    await world.rewards_read()
    found = {outcome.session_id: outcome.raw_total for outcome in await world.outcomes()}
    assert found == {**given, "s4": None, "s5": None}


async def test_a_false_claim_is_counted_and_the_own_record_decides(world):
    await world.open_release()
    arm = (await world.ask("s1"))["onward"]["release"]["arm"]
    other = "current" if arm == "candidate" else "candidate"
    await world.reward("s1", release_id="r1", arm=other)
    await world.ask("s2")
    await world.reward("s2", release_id="another")
    await world.rewards_read()
    assert [(o.session_id, o.arm) for o in await world.outcomes()] == [
        ("s1", arm),
        ("s2", choose("r1", "s2", 0.5)),
    ]
    assert world.gateway._metrics.mismatches._value.get() == 2


async def test_rewards_from_before_the_assignment_or_an_earlier_release_do_not_count(world):
    one, two = await world.open_release()
    await world.ask("s1")
    await world.served(await world.desire(("agent-zero-rl-v1", one), ("agent-zero-rl-v2.0", two), 0.5, "r2"))
    await world.clock.advance(1)
    await world.ask("s1")
    await world.reward("s1", release_id="r1")  # late, of the earlier release
    early = utc_text(world.clock.now() - timedelta(seconds=5))
    reward = await world.reward("s2", release_id="r2")
    await world.rewards_read()
    await world.ask("s2")
    await world.bus.publish(
        "agent.rl.reward.v1",
        json.dumps(json.loads(reward.model_dump_json(exclude_none=True)) | {"timestamp": early}).encode(),
        msg_id="again",
    )
    await world.rewards_read()
    assert await _kinds(world) == []
    assert world.gateway._metrics.mismatches._value.get() == 0


async def test_nothing_is_counted_outside_a_release(world):
    await world.ask("s1")
    await world.reward("s1")
    await world.rewards_read()
    assert await _kinds(world) == []
    assert await world.bus.bucket("rl_sessions").keys() == []


async def test_a_session_without_any_outcome_is_lost_on_its_arm(world):
    await world.open_release()
    arms = {name: (await world.ask(name))["onward"]["release"]["arm"] for name in ("s1", "s2", "s3")}
    await world.reward("s1", release_id="r1")
    await world.rewards_read()
    await world.clock.advance(599)
    assert await world.gateway.outcomes.sweep() == 0
    await world.clock.advance(2)

    async def lost():
        await world.gateway.outcomes.sweep()
        return len(await world.outcomes()) == 3

    await eventually(lost)
    found = {(o.session_id, o.kind, o.value, o.arm) for o in await world.outcomes()}
    assert found == {
        ("s1", "reward", 1.0, arms["s1"]),
        ("s2", "lost", 1.0, arms["s2"]),
        ("s3", "lost", 1.0, arms["s3"]),
    }
    await world.clock.advance(2000)
    await asyncio.sleep(0.1)
    assert await world.gateway.outcomes.sweep() == 0


@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_a_jump_of_the_wall_clock_loses_no_session(world, seconds):
    """Fault 19: a reward is counted whether it was stamped before or after the clock was set, and its session
    has its true age for the gates."""
    await world.open_release()
    for name in ("s1", "s2", "s3"):
        await world.ask(name)
    await world.clock.advance(10)
    early = utc_text(world.clock.now())
    world.clock.jump(seconds)
    assert await world.gateway.outcomes.sweep() == 0
    await world.clock.advance(10)
    await world.reward("s1", release_id="r1")
    reward = await world.reward("none", release_id="r1")
    document = json.loads(reward.model_dump_json(exclude_none=True))
    document |= {"session_id": "s2", "timestamp": early, "reward_id": "early"}
    await world.bus.publish("agent.rl.reward.v1", json.dumps(document).encode(), msg_id="early")
    await world.rewards_read()
    assert sorted(await _kinds(world)) == [("s1", "reward", 1.0), ("s2", "reward", 1.0)]
    for outcome in await world.outcomes():
        assert outcome.timestamp - outcome.assigned_at == timedelta(seconds=20)
    await world.clock.advance(575)
    await asyncio.sleep(0.1)
    assert await world.gateway.outcomes.sweep() == 0

    async def lost():
        await world.clock.advance(1)
        await world.gateway.outcomes.sweep()
        return len(await world.outcomes()) == 3

    await eventually(lost)
    assert ("s3", "lost", 1.0) in await _kinds(world)


async def test_after_a_rollback_nobody_is_lost(world):
    one, _ = await world.open_release()
    await world.ask("s1")
    await world.served(await world.desire(("agent-zero-rl-v1", one), None, release_id="r1"))
    await world.clock.advance(2000)
    assert await world.gateway.outcomes.sweep() == 0
    assert await world.outcomes() == []


async def test_a_restart_knows_who_owes_an_outcome_and_who_does_not(bus, tmp_path):
    clock = ManualClock()
    async with World(bus, tmp_path, clock=clock, capture=OFF) as world:
        await world.open_release()
        for name in ("s1", "s2"):
            await world.ask(name)
        await world.reward("s1", release_id="r1")
        await world.rewards_read()
    clock.jump(3600)  # a host that wakes up; the gateway was down for a moment only
    async with World(bus, tmp_path, clock=clock, capture=OFF) as world:
        await world.gateway.outcomes.load_sessions()
        await clock.advance(599)
        await asyncio.sleep(0.1)
        assert await world.gateway.outcomes.sweep() == 0

        async def lost():
            await clock.advance(1)
            await world.gateway.outcomes.sweep()
            return len(await world.outcomes()) == 2

        await eventually(lost)
        assert sorted(await _kinds(world)) == [("s1", "reward", 1.0), ("s2", "lost", 1.0)]


async def test_what_the_gateway_recorded_is_lost_only_where_agents_tell_outcomes(bus, tmp_path):
    """With nobody's word a session that was answered is no error; where a key's others are told, it is."""
    clock = ManualClock()
    async with World(bus, tmp_path, clock=clock) as world:
        await world.open_release()

        async def recorded(count):
            """The clock moves as slowly as the recording may be, or sessions would be lost meanwhile."""
            counter = world.gateway._metrics.captured.labels(closed="answer")

            async def reached():
                await clock.advance(1)
                return counter._value.get() >= count

            await eventually(reached)

        await world.ask("quiet")
        await recorded(1)
        await world.ask("told")
        closed = await world.client.post("/sessions/told/close", json={"status": "completed_successfully"})
        assert closed.status_code == 200
        await world.reward("told", release_id="r1")
        await world.rewards_read()
        await world.ask("gone")
        await recorded(2)
        await clock.advance(601)

        async def lost():
            await world.gateway.outcomes.sweep()
            return len(await world.outcomes()) == 2

        await eventually(lost)
        found = {(outcome.session_id, outcome.kind) for outcome in await world.outcomes()}
        assert found == {("told", "reward"), ("gone", "lost")}
