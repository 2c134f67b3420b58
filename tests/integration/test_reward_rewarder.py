"""The rewarder on real JetStream and the real warehouse, beside the real collector."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from consumed import acknowledged
from reward_world import (
    handled,
    messages,
    publish,
    published,
    reward_ctx,  # noqa: F401 - the fixture ctx
    reward_warehouse,  # noqa: F401 - the fixture embedded
    rewarded,
    running,
    said,
    say,
    trajectory,
    until,
)

from onward.bus import Ack, Bus, Retry
from onward.capture.collecting import collector
from onward.contracts import Reward, decode, encode, subjects
from onward.contracts.buckets import RewarderState
from onward.errors import BusError
from onward.reward import State, reward_id
from onward.reward.role import rewarder
from onward.reward.role.feedback import MAX_DELIVERIES
from onward.reward.role.rewarder import Rewarder
from onward.warehouse import queries, reward_queries

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_every_stored_trajectory_gets_one_valid_reward(ctx):
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, *(trajectory(i) for i in range(60)))
        await until(rewarded(ctx, 60))
    rewards = {r.trajectory_id: r for r in (decode(d, Reward) for d in await published(ctx.bus))}
    assert len(rewards) == 60 and (await ctx.bus.js.stream_info("RL_REWARDS")).state.messages == 60
    first, last = rewards["t1"], rewards["t59"]
    assert first.reward_id == reward_id("t1")
    assert first.metadata.outcome.success and "efficiency" in first.metadata.model_dump()["not_applicable"]
    # Without efficiency and code quality: weights .40 and .25 of .65; scores 1 and the neutral .5.
    assert first.metadata.raw_total == pytest.approx((0.40 * 1.0 + 0.25 * 0.5) / 0.65)
    assert first.metadata.confidence == pytest.approx(0.40 / 0.65)
    # A failure earns no efficiency, with or without a baseline.
    assert rewards["t0"].metadata.raw_total == pytest.approx(0.25 * 0.5 / 0.85)
    assert set(last.reward_components) >= {"task_completion", "efficiency", "user_feedback"}
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
        stream = await messages(ctx.bus)
        await handled(half, stream[:cut])
        record = half.state.dump()
        await handled(half, stream[cut : cut + 20])  # lost: the record was not kept
        resumed = Rewarder(copy, rewarder.State.load(RewarderState.load(record), 40), None)
        for start in range(cut, 90, 13):
            await handled(resumed, stream[start : start + 13])
        assert again == whole
        assert resumed.state.dump() == entry.value


def _recording_bus(bus: Bus, into: dict[str, bytes]):
    async def publish(subject, data, **_):
        name = json.loads(data)["trajectory_id"]
        assert into.setdefault(name, data) == data, "other bytes for the same trajectory"

    return SimpleNamespace(publish=publish, js=bus.js, bucket=bus.bucket)


async def test_a_reward_that_is_stored_is_published_as_it_is_and_counts_as_it_did(ctx):
    """A rewarder died between storing and its record. Settings have changed since: not the bytes."""
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, *(trajectory(i) for i in range(50)))
        await until(rewarded(ctx, 50))
    whole = dict((json.loads(d)["trajectory_id"], d) for d in await published(ctx.bus))
    kept = (await ctx.bus.bucket("rl_rewarder").get("state")).value
    again: dict[str, bytes] = {}
    weights = {"task_completion": 0.25, "user_feedback": 0.40}
    reward = ctx.settings.reward.model_copy(update=weights)
    settings = ctx.settings.model_copy(update={"reward": reward})
    changed = {"bus": _recording_bus(ctx.bus, again), "settings": settings}
    resumed = Rewarder(SimpleNamespace(**{**vars(ctx), **changed}), State(40), None, stored_until=50)
    stream = await messages(ctx.bus)
    for start in range(0, 50, 11):
        await handled(resumed, stream[start : start + 11])
    assert again == whole
    assert resumed.state.dump() == kept


async def test_what_was_published_and_never_stored_is_stored_as_it_is_and_the_vote_since_is_not_lost(ctx):
    """The warehouse failed, or the process died, between the two. Then a person voted."""
    async with running(collector.run(ctx)):
        await publish(ctx.bus, trajectory(1))

        async def stored() -> bool:
            return "t1" in await queries.stored_identities(ctx.warehouse, ["t1"])

        await until(stored)
        dead = await Rewarder.load(ctx)
        await dead.start()
        await dead.handle(await messages(ctx.bus))  # nobody stores
        await dead.stop()
        (told,) = await published(ctx.bus)
        await say(ctx.bus, said("f1", trajectory_id="t1"))
        resumed = await Rewarder.load(ctx)
        await resumed.start()
        votes = await messages(ctx.bus, "RL_FEEDBACK")
        (early,) = await resumed.feedback.handle(votes)
        assert isinstance(early, Retry)
        (tired,) = await resumed.feedback.handle([replace(votes[0], num_delivered=MAX_DELIVERIES)])
        assert isinstance(tired, Ack)
        await handled(resumed, await messages(ctx.bus))
        (late,) = await resumed.feedback.handle(votes)
        assert isinstance(late, Ack)
        await resumed.stop()
    first, second = (row["payload"].encode() for row in await queries.reward_history(ctx.warehouse, "t1"))
    assert first == told and await published(ctx.bus) == [told, second]
    assert decode(second, Reward).reward_components["user_feedback"].score == 0.0
    assert len(resumed.state.windows["raw_total"]) == 1


async def test_a_rewarder_without_its_lease_writes_nothing(ctx):
    async with running(collector.run(ctx)):
        await publish(ctx.bus, trajectory(1))
        late = Rewarder(ctx, State(40), None, may_write=lambda: False)
        with pytest.raises(BusError, match="lease"):
            await late.handle(await messages(ctx.bus))
        assert late.lost.is_set() and (await late.handle(await messages(ctx.bus))) == [Retry(0.0)]
    assert await queries.reward_for(ctx.warehouse, ["t1"]) == {} and await published(ctx.bus) == []


async def test_too_much_silence_raises_an_alert_and_its_end_resolves_it(ctx):
    heard: list[dict] = []

    async def hear(message):
        heard.append(json.loads(message.data))

    await ctx.bus.nc.subscribe(subjects.ALERT, cb=hear)
    async with running(collector.run(ctx), rewarder.run(ctx)):
        for i in range(4):
            await ctx.bus.publish(
                subjects.TRAJECTORY, json.dumps({"trajectory_id": f"bad-{i}"}).encode(), msg_id=f"bad-{i}"
            )
        await publish(ctx.bus, *(trajectory(i) for i in range(16)))  # 4 of 20
        await until(lambda: _true(any(alert["kind"] == "unscored" for alert in heard)))
        assert ctx.metrics.registry.get_sample_value("onward_unscored_share") == pytest.approx(0.2)
        await publish(ctx.bus, *(trajectory(i) for i in range(16, 60)))
        await until(lambda: _true(any(alert["severity"] == "resolved" for alert in heard)))
        await until(rewarded(ctx, 60))
    first = next(alert for alert in heard if alert["kind"] == "unscored")
    assert first["facts"]["causes"] == {"not_stored": 4}
    assert await reward_queries.unscored_share(ctx.warehouse) == {"n": 64, "unscored": 4}


async def _true(value: bool) -> bool:
    return value


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
            return await acknowledged(ctx.bus, "RL_TRAJECTORIES", "rewarder") >= 2

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
