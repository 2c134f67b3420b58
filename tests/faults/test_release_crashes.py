"""Fault 20: the releaser dies before or after each of its writes, comes back, and ends in the same place."""

import json
from datetime import datetime

import pytest
from release_world import Crash, Policy, World

from onward.release.evidence.event import parse
from onward.release.evidence.evidence import Evidence, GateRules

QUICK = {
    "steps": [0.25, 0.5, 1.0], "step_minutes": [60, 60, 0], "min_sessions": [3, 12, 0], "time_scale": 0.0005,
    "error_maturity_seconds": 1, "reward_maturity_seconds": 1,
}  # fmt: skip


async def story(bad: bool, crash_at: int | None = None, crash_after: bool = False) -> tuple[World, bool]:
    """One release from job to end; whether the crash happened. Traffic does not depend on the crash."""
    world = World(seed=3, **QUICK)
    world.suite.success = {"d0": 0.5, "d1": 0.6}
    await world.install()
    await world.job("job-1", "d1")
    if bad:
        world.policies["candidate"] = Policy(error=1.0)
    world.writes.clear()
    world.crash_at, world.crash_after = crash_at, crash_after
    crashed = False
    for _ in range(400):
        await world.gateways_follow()
        world.begin_sessions(8, reward_after=0.5)
        world.deliver()
        try:
            await world.releaser.tick()
        except Crash:
            crashed, world.crash_at = True, None
            world.start()
        await world.clock.advance(1.0)
        if len(world.records) > 1 and world.record.settled:
            break
    return world, crashed


def outcome(world: World) -> dict:
    record = world.record
    return {
        "state": record.state,
        "decision": record.decision,
        "reason": record.reason_code,
        "name": record.candidate.model_id,
        "shares": world.shares,
        "models": world.model_states,
        "events": sorted(event["metadata"]["event"] for event in world.deployed),
        "ids": sorted(event["deployment_id"] for event in world.deployed),
    }


@pytest.mark.parametrize("bad", [False, True], ids=["promoted", "taken back"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_at_every_write_changes_nothing(bad: bool, after: bool):
    calm, _ = await story(bad)
    assert calm.record.decision == ("rolled_back" if bad else "promoted")
    points = len(calm.writes)
    assert points > 10
    for n in range(1, points + 1):
        world, crashed = await story(bad, n, after)
        assert crashed, f"write {n} was never reached"
        assert outcome(world) == outcome(calm), f"crash at write {n}: {calm.writes[n - 1]}"
        assert world.record.settled
        if bad:
            assert world.record.verified_zero_at is not None


async def test_evidence_after_a_crash_equals_a_replay_of_the_stream():
    """The stored state, taken at any crash, is what the stream gives up to its cursor, bit for bit."""
    calm, _ = await story(True)
    for n in range(6, len(calm.writes) + 1, 2):
        world, _ = await story(True, n, True)
        record = world.record
        stored = record.evidence
        assert stored is not None
        start = 0
        models = (record.current.model_id, record.candidate.model_id)
        replayed = Evidence(record.release_id, GateRules.from_settings(world.settings.release), start, models)
        for message in world.stream.messages:
            if message.sequence <= stored["cursor"]:
                replayed.apply(parse(message.sequence, message.data, message.stored_at))
        assert json.dumps(replayed.state(), sort_keys=True) == json.dumps(stored, sort_keys=True)


async def test_a_rollback_that_died_is_finished_within_a_minute_of_the_restart():
    calm, _ = await story(True)
    events = [n for n, what in enumerate(calm.writes) if what.startswith("publish/")]
    decided = events[-1] - 2  # the record; then the model entry and the routes; then the event
    assert calm.writes[decided - 1].startswith("rl_releases/release.")
    world, crashed = await story(True, decided, True)
    assert crashed
    crossed, verified = (
        datetime.fromisoformat(str(text).replace("Z", "+00:00"))
        for text in (world.record.crossed_at, world.record.verified_zero_at)
    )
    assert (verified - crossed).total_seconds() < 60
