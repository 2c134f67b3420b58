"""Every line of the table "Training Job Priority" on a real bus: what makes a job, what holds it up, what is
reported."""

from __future__ import annotations

import contextlib
import json
import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from coordinator_world import context, requests, serve, set_job, set_release
from counted_warehouse import CountedWarehouse

from onward.bus import read_document
from onward.clock import ManualClock, utc_text
from onward.contracts import subjects
from onward.contracts.buckets import LastRequest, ScheduleMark
from onward.coordinator import watching
from onward.coordinator.coordinator import Coordinator
from onward.coordinator.outlook import outlook
from onward.coordinator.triggers import Train, Wait

HOUR = 3600.0
URGENT = Train("performance_degradation", "urgent")
SCHEDULED = Train("scheduled", "normal")
THRESHOLD = Train("threshold_reached", "normal")


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> CountedWarehouse:
    return CountedWarehouse.installed(monkeypatch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 3, 28, 12, tzinfo=UTC))


async def finish(bus, clock: ManualClock, job_id: str, state: str = "failed") -> None:
    await set_job(bus, job_id, state, updated_at=utc_text(clock.now()))


# The schedule.


async def test_a_job_is_made_at_two_utc_once_also_on_the_night_of_the_time_change(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock, threshold=5000, cooldown_minutes=0))
    await serve(bus, "d1")
    warehouse.add("d1", 70)
    assert await c.tick() == Wait("70 of 5000 rewarded trajectories")
    await clock.advance(14 * HOUR - 1)  # 01:59:59 on 29 March, when Europe loses an hour
    assert isinstance(await c.tick(), Wait)
    await clock.advance(1)
    assert await c.tick() == SCHEDULED
    (asked,) = await requests(bus)
    assert (asked["trigger_reason"], asked["priority"]) == ("scheduled", "normal")
    await finish(bus, clock, asked["training_job_id"])
    warehouse.add("d1", 70)
    assert isinstance(await c.tick(), Wait)
    await clock.advance(24 * HOUR - 1)
    assert isinstance(await c.tick(), Wait)
    await clock.advance(1)
    assert await c.tick() == SCHEDULED


async def test_runs_missed_while_it_was_down_or_a_job_was_open_are_made_once(bus, warehouse, clock):
    settings = {"threshold": 5000, "cooldown_minutes": 0}
    await serve(bus, "d1")
    warehouse.add("d1", 70)
    await Coordinator(context(bus, warehouse, clock, **settings)).tick()
    await clock.advance(5 * 24 * HOUR)
    after = Coordinator(context(bus, warehouse, clock, **settings))
    await set_job(bus, "other", "running")
    assert await after.tick() == Wait("job other is not finished")
    await finish(bus, clock, "other", "completed")
    assert await after.tick() == SCHEDULED
    (asked,) = await requests(bus)
    await finish(bus, clock, asked["training_job_id"])
    warehouse.add("d1", 70)
    assert isinstance(await after.tick(), Wait)


async def test_a_run_without_new_data_is_left_out_and_says_so(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock, threshold=5000, min_new=64))
    await serve(bus, "d1")
    warehouse.add("d1", 63)
    await c.tick()
    await clock.advance(24 * HOUR)
    assert await c.tick() == Wait("63 of 5000 rewarded trajectories")
    mark = await read_document(bus, ScheduleMark)
    assert mark is not None and mark.left_out == "63 of 5000 rewarded trajectories"
    warehouse.add("d1", 1)
    assert isinstance(await c.tick(), Wait)  # the run was left out: the next one is tomorrow's
    await clock.advance(24 * HOUR)
    assert await c.tick() == SCHEDULED


async def test_a_changed_expression_counts_from_its_first_start_and_off_has_no_runs(bus, warehouse, clock):
    await serve(bus, "d1")
    warehouse.add("d1", 70)
    await Coordinator(context(bus, warehouse, clock, threshold=5000)).tick()
    await clock.advance(24 * HOUR)
    hourly = Coordinator(context(bus, warehouse, clock, threshold=5000, schedule="0 * * * *"))
    assert isinstance(await hourly.tick(), Wait)
    off = Coordinator(context(bus, warehouse, clock, threshold=5000, schedule="off"))
    await clock.advance(240 * HOUR)
    assert isinstance(await off.tick(), Wait)


async def test_the_threshold_at_two_o_clock_makes_one_job_with_its_own_reason(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock, cooldown_minutes=0))
    await serve(bus, "d1")
    await c.tick()
    warehouse.add("d1", 100)
    await clock.advance(24 * HOUR)
    assert await c.tick() == THRESHOLD
    (asked,) = await requests(bus)
    await finish(bus, clock, asked["training_job_id"])
    warehouse.add("d1", 99)
    assert isinstance(await c.tick(), Wait)  # the job made the run of this night
    assert len(await requests(bus)) == 1


# Degradation.


def values(seed: int, mean: float, number: int) -> list[float]:
    draw = random.Random(seed)
    return [min(1.0, max(0.0, draw.gauss(mean, 0.15))) for _ in range(number)]


async def test_a_fall_under_the_frozen_baseline_is_urgent_and_held_up_until_there_is_new_data(
    bus, warehouse, clock
):
    heard = await bus.nc.subscribe(subjects.ALERT)
    c = Coordinator(context(bus, warehouse, clock, threshold=5000))
    await serve(bus, "d1")
    warehouse.serve("d1", values(1, 0.6, 190))
    await c.tick()
    watch = await watching.stored_watch(bus, c.ctx.settings, "d1")
    assert watch is not None and watch.collected == 190 and watch.sessions == 0
    assert watch.baseline == pytest.approx(0.6, abs=0.03)
    warehouse.serve("d1", values(2, 0.3, 90))
    await clock.advance(watching.EVERY_SECONDS)
    assert await c.tick() == URGENT
    (asked,) = await requests(bus)
    assert (asked["trigger_reason"], asked["priority"]) == ("performance_degradation", "urgent")
    alert = json.loads((await heard.next_msg(timeout=30)).data)
    assert alert["kind"] == "policy_degraded" and "in its last 90 sessions, baseline 0.6" in alert["message"]
    again = await watching.stored_watch(bus, c.ctx.settings, "d1")
    assert again is not None and again.baseline == watch.baseline  # it stays frozen
    await finish(bus, clock, asked["training_job_id"])
    warehouse.serve("d1", values(3, 0.3, 70))
    assert await c.tick() == Wait(
        f"job {asked['training_job_id']} failed: cool-down until {utc_text(clock.now() + timedelta(hours=1))}"
    )
    await clock.advance(HOUR)
    assert await c.tick() == URGENT


async def alerts_of(heard) -> list[tuple[str, str]]:
    found = []
    with contextlib.suppress(TimeoutError):
        while True:
            alert = json.loads((await heard.next_msg(timeout=0.3)).data)
            found.append((alert["kind"], alert["severity"]))
    return found


async def test_an_alarm_is_raised_again_after_a_restart_and_resolved_when_another_policy_serves(
    bus, warehouse, clock
):
    heard = await bus.nc.subscribe(subjects.ALERT)
    ctx = context(bus, warehouse, clock, threshold=5000)
    await serve(bus, "d1")
    warehouse.serve("d1", values(1, 0.6, 190))
    await watching.PolicyWatcher(ctx).is_degraded("d1", "m1")
    warehouse.serve("d1", values(2, 0.3, 90))
    assert await watching.PolicyWatcher(ctx).is_degraded("d1", "m1")
    after = watching.PolicyWatcher(ctx)  # the one before may have died between the state and its alert
    assert await after.is_degraded("d1", "m1")
    await clock.advance(watching.EVERY_SECONDS)
    assert await after.is_degraded("d1", "m1")
    assert await alerts_of(heard) == [("policy_degraded", "critical")] * 2
    assert not await after.is_degraded("d2", "m2")
    assert await alerts_of(heard) == [("policy_degraded", "resolved")]


async def test_other_reward_weights_begin_with_new_sessions(bus, warehouse, clock):
    """The stored sessions were scored with the weights of before: as a baseline they would raise an alarm."""
    await serve(bus, "d1")
    warehouse.serve("d1", [0.9] * 300)
    await watching.PolicyWatcher(context(bus, warehouse, clock)).is_degraded("d1", "m1")
    ctx = context(bus, warehouse, clock)
    weights = ctx.settings.reward.model_copy(update={"efficiency": 0.0})
    ctx = replace(ctx, settings=ctx.settings.model_copy(update={"reward": weights}))
    other = watching.PolicyWatcher(ctx)
    assert not await other.is_degraded("d1", "m1")
    warehouse.serve("d1", [0.4] * 250)
    await clock.advance(watching.EVERY_SECONDS)
    assert not await other.is_degraded("d1", "m1")
    watch = await watching.stored_watch(bus, ctx.settings, "d1")
    assert watch is not None and watch.baseline == pytest.approx(0.4)
    assert (watch.collected, watch.sessions) == (190, 60)


async def test_the_test_goes_on_when_stream_and_warehouse_begin_anew(bus, warehouse, clock):
    watcher = watching.PolicyWatcher(context(bus, warehouse, clock))
    warehouse.serve("d1", values(1, 0.6, 190))
    await watcher.is_degraded("d1", "m1")
    warehouse.latest, warehouse.sessions, warehouse.rewarded = 0, [], []
    warehouse.serve("d1", values(2, 0.3, 90))
    await clock.advance(watching.EVERY_SECONDS)
    assert await watcher.is_degraded("d1", "m1")


async def test_degradation_without_new_data_since_the_failed_snapshot_makes_no_job(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock, threshold=5000))
    await serve(bus, "d1")
    warehouse.serve("d1", values(1, 0.6, 190))
    await c.tick()
    warehouse.serve("d1", values(2, 0.3, 90))
    await clock.advance(watching.EVERY_SECONDS)
    assert await c.tick() == URGENT
    await finish(bus, clock, (await requests(bus))[0]["training_job_id"])
    warehouse.serve("d1", values(3, 0.3, 63))
    await clock.advance(10 * HOUR)
    assert await c.tick() == Wait("63 of 5000 rewarded trajectories")


async def test_an_unchanged_policy_and_another_policys_work_do_not_degrade(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock, threshold=5000, min_new=1))
    await serve(bus, "d1")
    warehouse.serve("d1", values(1, 0.6, 190))
    await c.tick()
    warehouse.serve("d1", values(2, 0.6, 300))
    warehouse.serve("candidate", values(3, 0.1, 300))
    await clock.advance(watching.EVERY_SECONDS)
    assert await c.tick() == Wait("490 of 5000 rewarded trajectories")


async def test_a_new_policy_freezes_its_canary_sessions_as_its_baseline_at_once(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock, threshold=5000))
    await serve(bus, "d1")
    warehouse.serve("d2", [0.75] * 250)  # as a candidate
    await c.tick()
    await serve(bus, "d2")
    await c.tick()
    watch = await watching.stored_watch(bus, c.ctx.settings, "d2")
    assert watch is not None and (watch.collected, watch.baseline) == (250, 0.75)
    assert watch.frozen_at == utc_text(clock.now())


async def test_degradation_comes_before_a_manual_request_and_makes_one_job(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock))
    await serve(bus, "d1")
    warehouse.serve("d1", [*values(1, 0.6, 190), *values(2, 0.2, 90)])
    await bus.bucket("rl_control").put("learning", b'{"paused": true}')
    warehouse.sessions, later = warehouse.sessions[:190], warehouse.sessions
    await c.tick()
    warehouse.sessions = later
    await clock.advance(24 * HOUR)
    await c.tick()
    await bus.bucket("rl_control").put("learning", b'{"paused": false}')
    answer = json.loads(await c.answer(b'{"message": "Trigger training job"}'))
    assert answer["accepted"] and answer["trigger_reason"] == "performance_degradation"
    assert len(await requests(bus)) == 1 and isinstance(await c.tick(), Wait)


# What is shown.


async def shown(bus, c: Coordinator) -> list[str]:
    return (await outlook(bus, c.ctx.settings, c.ctx.clock))["sentences"]


async def test_the_status_shows_the_next_run_the_test_and_the_cool_down(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock, threshold=5000))
    assert await shown(bus, c) == ["Schedule: 0 2 * * * (UTC), the next run is at 2026-03-29T02:00:00.000Z."]
    await serve(bus, "d1")
    warehouse.serve("d1", [0.6] * 189)
    await c.tick()
    assert (await shown(bus, c))[1] == "Degradation: baseline of m from 189 of 190 sessions."
    warehouse.serve("d1", [0.6, *[0.45] * 10])
    await clock.advance(watching.EVERY_SECONDS)
    await c.tick()
    gap = 0.6 - 0.1 - 0.45
    e = sum(math.prod([1 + b / 1.1 * gap] * 10) for b in (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)) / 14
    assert (await shown(bus, c))[1] == (
        "Degradation: none shown. m had a mean raw total of 0.45 in its last 10 sessions, baseline 0.60, "
        f"E {e:.2g}."
    )
    await finish(bus, clock, "j9")
    assert (await shown(bus, c))[2] == (
        "No job starts by itself now: job j9 failed: cool-down until "
        f"{utc_text(clock.now() + timedelta(hours=1))}."
    )
    await clock.advance(24 * HOUR)
    assert (await shown(bus, c))[0].endswith("a run is due since 2026-03-29T02:00:00.000Z.")


# Cool-down and jobs of others.


@pytest.mark.parametrize("state", ["rejected", "rolled_back", "aborted"])
async def test_a_candidate_that_was_not_promoted_holds_up_the_threshold(bus, warehouse, clock, state):
    c = Coordinator(context(bus, warehouse, clock))
    await serve(bus, "d1")
    warehouse.add("d1", 100)
    await set_release(bus, "r1", "j1", state, closed_at=utc_text(clock.now()))
    until = utc_text(clock.now() + timedelta(hours=1))
    ended = state.replace("_", " ")
    assert await c.tick() == Wait(f"the candidate of job j1 was {ended}: cool-down until {until}")
    await clock.advance(HOUR)
    assert await c.tick() == THRESHOLD


async def test_a_manual_job_on_stored_trajectories_is_the_last_training(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock, cooldown_minutes=0))
    await serve(bus, "d1")
    warehouse.add("d1", 90)
    dataset = {"source": "clickhouse", "sample_size": 50}
    manual = {"request": {"training_config": {"dataset": dataset}}}
    await set_job(bus, "manual-1", "running", **manual)
    assert await c.tick() == Wait("job manual-1 is not finished")
    record = await read_document(bus, LastRequest)
    assert record is not None and (record.job_id, record.snapshot) == ("manual-1", 90)
    await set_job(bus, "manual-1", "failed", **manual)
    warehouse.add("d1", 99)
    assert await c.tick() == Wait("99 of 100 rewarded trajectories")


async def test_a_job_in_an_environment_leaves_the_count_as_it_is(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock, cooldown_minutes=0))
    await serve(bus, "d1")
    warehouse.add("d1", 100)
    dataset = {"source": "local", "sample_size": 50, "environment": {"name": "desk"}}
    await set_job(bus, "env-1", "running", request={"training_config": {"dataset": dataset}})
    assert isinstance(await c.tick(), Wait)
    await set_job(bus, "env-1", "completed")
    assert await c.tick() == THRESHOLD
