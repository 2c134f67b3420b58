"""Releases of which little or nothing is known: they hold, whatever happens to the releaser meanwhile."""

import json

import pytest
from release_world import Crash, Policy, World

from onward.errors import BusError
from onward.release.evidence.rates import rates_of
from onward.release.plan import State
from onward.release.wording import what_happened

NOTHING_KNOWN = ("silence", "lost")
"""Either: nothing known for so long, or a step's sessions all lost. It depends on which is seen first."""
SETTINGS = {"time_scale": 0.01, "min_sessions": [10, 20, 40, 0], "lost_after_seconds": 60}


async def ramping(**settings) -> World:
    world = World(**{**SETTINGS, **settings})
    await world.install()
    await world.job("job-1", "d1")
    world.suite.success = {"d0": 0.5, "d1": 0.6}
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    return world


def lose(world: World, share: float, *arms: str) -> None:
    for arm in arms or ("current", "candidate"):
        world.policies[arm] = Policy(lost=share)


@pytest.mark.parametrize("least", [[10, 20, 40, 0], [0, 0, 0, 0]])
async def test_a_release_of_which_every_session_is_lost_holds_at_once_with_its_numbers(least):
    world = await ramping(min_sessions=least)
    lose(world, 1.0)
    await world.until(lambda: world.record.state is State.HELD)
    await world.run(200, seconds=10, sessions=10)
    record = world.record
    assert (record.state, record.step) == (State.HELD, 0) and record.held_why in NOTHING_KNOWN
    assert record.sessions["candidate"] > 20 and record.rates["candidate"].outcomes == 0
    assert f"since {record.held_since[:10]}" in what_happened(record)
    assert "candidate 0 known and " in (record.why_held or "") in what_happened(record)
    assert world.alerts.kinds.count("release_held") == 1
    assert "candidate 0 known and " in world.alerts.raised[-1][1]


async def test_a_release_of_which_every_session_is_lost_is_promoted_by_hand_alone():
    world = await ramping()
    lose(world, 1.0)
    await world.until(lambda: world.record.state is State.HELD)
    for _ in world.record.schedule.steps:
        await world.control("release", command="promote")
        await world.run(60, seconds=10, sessions=10)
    assert world.record.decision == "promoted"
    assert (world.record.reason or "").startswith("an operator asked for it; ")


async def test_a_candidate_that_loses_its_sessions_alone_is_taken_back_and_not_held():
    world = await ramping()
    lose(world, 1.0, "candidate")
    await world.until(lambda: world.record.closed)
    assert (world.record.decision, world.record.reason_code) == ("rolled_back", "high_error_rate")
    assert "release_held" not in world.alerts.kinds


async def test_when_most_sessions_of_both_arms_are_lost_the_few_known_ones_decide_nothing():
    world = await ramping()
    lose(world, 0.9)
    await world.until(lambda: world.record.state is State.HELD, seconds=5)
    await world.run(200, seconds=10, sessions=10)
    record = world.record
    assert (record.state, record.held_why, record.step) == (State.HELD, "lost", 0)
    assert record.rates["candidate"].outcomes > 10
    assert "more sessions were lost than have a known outcome" in what_happened(record)
    lose(world, 0.1)
    await world.until(lambda: world.record.decision == "promoted")


async def test_outcomes_that_stop_in_the_last_step_hold_the_release():
    world = await ramping(bake_minutes=600)
    await world.until(lambda: world.record.state is State.BAKING)
    await world.run(10, seconds=1, sessions=10)
    lose(world, 1.0)
    await world.run(400, seconds=5, sessions=10)
    assert world.record.state is State.HELD and world.record.held_why in NOTHING_KNOWN


async def test_rewards_of_current_alone_promote_nothing():
    """Sessions of the candidate are neither lost nor judged, as with agents that never tell how it ended."""
    world = await ramping(step_deadline_minutes=60)
    world.policies["candidate"] = Policy(mute=True)
    await world.until(lambda: world.record.state is State.HELD, seconds=60, sessions=5)
    assert (world.record.held_why, world.record.step) == ("deadline", 0)


# A hold and the releaser's own life.


@pytest.mark.parametrize("share", [1.0, 0.9])
@pytest.mark.parametrize("again", ["restart", "lease"])
async def test_a_hold_stands_with_its_reason_and_time_over_restarts_and_lost_leases(share, again):
    world = await ramping()
    lose(world, share)
    await world.until(lambda: world.record.state is State.HELD)
    held = world.record
    for _ in range(20):
        if again == "restart":
            world.start()
        else:
            await world.releaser.close()
            world.releaser.lead(world.revision)
        await world.run(3, seconds=1, sessions=10)
        record = world.record
        assert (record.state, record.held_why, record.held_since) == (
            State.HELD, held.held_why, held.held_since,
        )  # fmt: skip
    assert world.alerts.kinds.count("release_held") == 1
    lose(world, 0.0)
    await world.until(lambda: world.record.decision == "promoted")


async def test_silence_is_counted_on_by_the_next_releaser():
    """A releaser that is restarted more often than the silence lasts still holds."""
    world = await ramping(lost_after_seconds=600)
    started = world.clock.monotonic()
    while world.record.state is not State.HELD:
        world.start()
        await world.run(6, seconds=10)
        assert world.clock.monotonic() - started < 3600
    assert world.record.held_why == "silence"
    # 720 s of silence; each restart forgets one pause between ticks, and at most 5 s that were not written
    assert world.clock.monotonic() - started < 720 * 60 / 45 + 60


async def test_a_night_without_traffic_is_no_silence():
    world = await ramping(lost_after_seconds=600)
    world.stream.idle = True
    await world.run(200, seconds=20)
    assert world.record.state is State.RAMPING and "release_held" not in world.alerts.kinds
    world.stream.idle = False
    await world.run(60, seconds=20)
    assert (world.record.state, world.record.held_why) == (State.HELD, "silence")


async def test_a_night_without_traffic_after_a_resumed_silence_is_no_silence():
    world = await ramping(lost_after_seconds=600)
    await world.run(60, seconds=20)
    assert (world.record.state, world.record.held_why) == (State.HELD, "silence")
    world.stream.idle = True
    await world.control("release", command="resume")
    await world.run(200, seconds=20)
    assert world.record.state is State.RAMPING and world.alerts.kinds.count("release_held") == 1
    world.stream.idle = False
    await world.run(60, seconds=20)
    assert (world.record.state, world.record.held_why) == (State.HELD, "silence")
    assert world.alerts.kinds.count("release_held") == 2


async def test_a_release_held_because_its_sessions_are_lost_stays_so_after_the_deadline():
    world = await ramping(step_deadline_minutes=30)
    lose(world, 0.9)
    await world.until(lambda: world.record.state is State.HELD, seconds=5)
    held = world.record
    await world.run(200, seconds=10, sessions=10)
    record = world.record
    assert record.step_total > record.schedule.deadline_seconds
    assert (record.held_why, record.held_since) == ("lost", held.held_since)
    assert record.history == held.history and world.alerts.kinds.count("release_held") == 1


@pytest.mark.parametrize("lost", [1.0, 0.0])
async def test_a_bus_that_goes_away_within_a_tick_leaves_no_old_rates(lost: float, monkeypatch):
    world = await ramping()
    lose(world, lost)
    await world.gateways_follow()
    world.begin_sessions(50)
    await world.clock.advance(60.0)
    world.deliver()
    before = world.record.rates

    async def away() -> int:
        raise BusError("NATS is away.")

    with monkeypatch.context() as patch:
        patch.setattr(world.stream, "assigned", away)
        with pytest.raises(BusError):
            await world.releaser.tick()
    assert world.record.rates == before
    await world.run(1)
    evidence = world.releaser.hand.evidence
    assert evidence is not None and evidence.cursor == 50
    assert world.record.rates == rates_of(evidence) != before


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_releaser_that_dies_at_any_write_of_a_hold_leaves_it_standing(after: bool):
    async def story(crash_at: int | None) -> World:
        world = await ramping()
        lose(world, 1.0)
        world.writes.clear()
        world.crash_at, world.crash_after = crash_at, after
        for _ in range(40):
            await world.gateways_follow()
            world.begin_sessions(10)
            world.deliver()
            try:
                await world.releaser.tick()
            except Crash:
                world.crash_at = None
                world.start()
            await world.clock.advance(10.0)
        return world

    calm = await story(None)
    assert calm.record.state is State.HELD
    begun = next(n for n, what in enumerate(calm.writes) if what.startswith("rl_releases/release."))
    for n in range(begun + 1, len(calm.writes) + 1, 3):
        world = await story(n)
        assert world.record.state is State.HELD, calm.writes[n - 1]
        assert world.record.held_why in NOTHING_KNOWN
        assert world.record.step == 0 and world.shares == calm.shares


@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_a_jump_of_the_wall_clock_neither_ends_nor_begins_a_hold(seconds: float):
    world = await ramping()
    await world.run(10, seconds=10, sessions=10)
    world.clock.jump(seconds)
    await world.run(3, seconds=10, sessions=10)
    assert world.record.state is not State.HELD and world.record.step_total < 200
    lose(world, 1.0)
    await world.until(lambda: world.record.state is State.HELD)
    why = world.record.held_why
    world.clock.jump(seconds)
    await world.run(20, seconds=10, sessions=10)
    assert (world.record.state, world.record.held_why) == (State.HELD, why)


async def test_a_record_of_an_earlier_version_goes_on_and_keeps_fields_that_are_not_known_here():
    world = await ramping()
    key = f"release.{world.record.release_id}"
    for field, value in {"step_sessions": 3, "silent_seconds": None, "step_rates": None}.items():
        document = world.json("rl_releases", key)
        document.pop(field, None)
        if value is not None:
            document[field] = value
        world.bus.bucket("rl_releases").data[key] = (json.dumps(document).encode(), world.revision)
    world.start()
    await world.until(lambda: world.record.decision == "promoted")
    assert world.json("rl_releases", key)["step_sessions"] == 3
