"""Approval, shadow mode, traffic: what a release does before and at its start."""

import dataclasses
import json

import pytest
from release_world import World

from onward.config import ReleaseSettings
from onward.contracts import subjects
from onward.release import approval, power
from onward.release.commands import send_command
from onward.release.evidence.evidence import GateRules
from onward.release.plan import State, choose, make


async def proposed(success: float = 0.6, **settings) -> World:
    world = World(time_scale=0.01, **settings)
    await world.install()
    world.suite.success = {"d0": 0.5, "d1": success}
    await world.job("job-1", "d1")
    return world


async def waiting(**settings) -> World:
    world = await proposed(approval="always", **settings)
    await world.until(
        lambda: len(world.records) > 1 and world.record.state is State.WAITING, sessions=0, seconds=1
    )
    return world


def audited(world: World) -> list[dict]:
    return [json.loads(data) for subject, data in world.bus.published.values() if subject == subjects.AUDIT]


async def test_a_release_waits_without_traffic_until_a_person_approves_it():
    world = await waiting()
    await world.run(50, seconds=60)
    assert world.record.state is State.WAITING and world.shares == {"agent-zero-rl-v0": 1.0}
    assert world.alerts.kinds.count("approval_needed") == 1
    await send_command(world.bus, "approve", "agent-zero-rl-v1", clock=world.clock, by="ada", reason="seen")
    await world.run(2)
    assert world.record.state is State.RAMPING
    event = world.deployed[-1]["metadata"]
    assert (event["event"], event["approval_status"]) == ("candidate", "manual_approved")
    assert world.record.history[-2]["why"] == "approved by ada: seen"
    (entry,) = audited(world)
    assert (entry["event"], entry["answered_by"], entry["reason"]) == ("release_approve", "ada", "seen")


async def test_a_refused_release_ends_with_name_and_reason():
    world = await waiting()
    await world.control("release", command="refuse", by="bob", reason="freeze")
    await world.run(2)
    assert world.record.state is State.REJECTED and world.record.reason == "refused by bob: freeze"
    assert world.record.approval and world.record.approval["status"] == "refused"


async def test_an_answer_without_a_name_or_a_reason_is_consumed_and_changes_nothing():
    world = await waiting()
    await world.control("release", command="approve", by="bob")
    await world.run(2)
    assert world.record.state is State.WAITING and audited(world) == []


@pytest.mark.parametrize(
    ("policy", "state"),
    [("refuse", State.REJECTED), ("approve", State.RAMPING), ("wait", State.WAITING)],
)
async def test_without_an_answer_the_policy_decides_after_its_hours(policy, state):
    world = await waiting(approval_hours=1, on_approval_timeout=policy)
    await world.run(59, seconds=60)
    assert world.record.state is State.WAITING
    await world.run(4, seconds=60)
    assert world.record.state is state
    if policy == "approve":  # no person approved it, so the event does not say so
        assert world.deployed[-1]["metadata"]["approval_status"] == "automated"


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"strategy": "auto"}, "is below 0"), ({"mode": "shadow"}, "release.mode is shadow by now")],
)
async def test_an_approval_after_a_change_of_settings_that_forbids_the_release_closes_it(changed, words):
    world = await waiting(success=0.48, strategy="canary")
    release = world.ctx.settings.release.model_copy(update=changed)
    world.ctx = dataclasses.replace(
        world.ctx, settings=world.ctx.settings.model_copy(update={"release": release})
    )
    world.start()  # settings are read when a service starts
    await world.control("release", command="approve", by="ada", reason="seen")
    await world.run(2)
    assert world.record.state is State.REJECTED and words in (world.record.reason or "")


PASSED = {"passed": True, "summary": {"safety": "passed"}}


@pytest.mark.parametrize(
    ("validation", "improvement", "critical"),
    [
        (PASSED, 0.10, ""),
        (PASSED, 0.15, "blue-green: nearly all traffic at once"),
        ({**PASSED, "verdict": "not shown"}, 0.10, "validation: not shown"),
        ({"passed": True, "summary": {"safety": "not run", "skipped": "asked"}}, 0.10,
         "validation: not validated; safety: not run"),
    ],
)  # fmt: skip
def test_what_counts_as_critical(validation, improvement, critical):
    choice = choose(improvement, ReleaseSettings.model_validate({}), approval.verdict_of(validation))
    assert approval.why_critical(validation, choice) == critical


async def test_in_shadow_mode_a_candidate_is_validated_and_gets_no_traffic():
    world = await proposed(mode="shadow")
    await world.until(lambda: len(world.records) > 1 and world.record.closed, sessions=0, seconds=1)
    await world.run(3)
    assert world.record.state is State.SHADOWED and world.record.settled
    assert world.record.reason == "shadow mode: validation passed, improvement +0.100"
    assert world.shares == {"agent-zero-rl-v0": 1.0}
    assert [event["metadata"]["event"] for event in world.deployed] == ["installed"]


@pytest.mark.parametrize("improvement", [-0.01, -0.05])
async def test_a_worse_candidate_is_not_released_and_alerts_also_inside_the_band(improvement):
    world = await proposed(success=0.5 + improvement, strategy="auto")
    await world.until(lambda: len(world.records) > 1 and world.record.closed, sessions=0, seconds=1)
    await world.run(2)
    assert world.record.state is State.REJECTED and "is below 0" in (world.record.reason or "")
    assert "release_rejected" in world.alerts.kinds


async def test_at_a_thousand_sessions_a_day_the_canary_ends_in_its_four_hours():
    world = World(min_sessions=[])
    await world.install()
    world.per_day = 1000.0
    world.suite.success = {"d0": 0.5, "d1": 0.6}
    await world.job("job-1", "d1")
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    began = world.clock.monotonic()
    await world.until(lambda: world.record.state is State.BAKING, seconds=86.4, sessions=1)
    assert 4.0 <= (world.clock.monotonic() - began) / 3600 <= 4.5
    event = next(e for e in world.deployed if e["metadata"]["event"] == "candidate")
    assert event["metadata"]["power"] == world.record.power
    assert "at 1,000 sessions a day the ramp has" in world.record.history[2]["why"]


def test_the_power_of_a_ramp_grows_with_traffic_and_with_the_defect():
    settings = ReleaseSettings.model_validate({})
    rules = GateRules.from_settings(settings)
    found = {}
    for per_day in (1_000.0, 5_000.0):
        made = make(choose(0.1, settings), settings, per_day)
        found[per_day] = power.simulate(made, rules, per_day)
    # 41.67 sessions an hour: 42 + 42 + 83 in the four hours
    assert found[1_000.0]["sessions"] == 167
    assert found[1_000.0]["found"]["errors 50 %"] > found[1_000.0]["found"]["errors 20 %"]
    assert found[5_000.0]["found"]["errors 50 %"] == 1.0
    for name, share in found[1_000.0]["found"].items():
        assert found[5_000.0]["found"][name] >= share
