"""The seed's table "Training Job Priority", line by line, and what forbids a job."""

from __future__ import annotations

import pytest

from onward.coordinator.triggers import Situation, Train, Wait, decide, leaves_out_run

FULL = {"rewarded": 5000, "threshold": 5000}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"degraded": True, "manual": True, "scheduled": True}, Train("performance_degradation", "urgent")),
        ({"manual": True, "scheduled": True}, Train("manual", "high")),
        ({"scheduled": True}, Train("threshold_reached", "normal")),
        ({}, Train("threshold_reached", "normal")),
        ({"rewarded": 4999, "scheduled": True}, Train("scheduled", "normal")),
        ({"rewarded": 4999}, Wait("4999 of 5000 rewarded trajectories")),
    ],
)
def test_the_first_line_of_the_table_that_applies_decides(facts, expected):
    assert decide(Situation(**{**FULL, **facts})) == expected


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"paused": True}, "learning is paused"),
        ({"has_policy": False}, "no policy serves yet"),
        ({"job": "j1"}, "job j1 is not finished"),
        ({"release": "r1"}, "release r1 is under way"),
    ],
)
def test_nothing_starts_while_something_forbids_it_not_even_the_urgent(facts, why):
    assert decide(Situation(**FULL, **facts, degraded=True, manual=True)) == Wait(why)


COOL = "job j1 failed: cool-down until 12:00"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"degraded": True}, Wait(COOL)),
        ({}, Wait(COOL)),
        ({"scheduled": True}, Wait(COOL)),
        ({"manual": True, "degraded": True}, Train("manual", "high")),
    ],
)
def test_a_cool_down_holds_up_all_but_a_manual_job(facts, expected):
    assert decide(Situation(**FULL, **facts, cooldown=COOL)) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"rewarded": 63, "degraded": True}, Wait("63 of 5000 rewarded trajectories")),
        ({"rewarded": 64, "degraded": True}, Train("performance_degradation", "urgent")),
        ({"rewarded": 63, "scheduled": True}, Wait("63 of 5000 rewarded trajectories")),
        ({"rewarded": 63, "degraded": True, "manual": True}, Train("manual", "high")),
        ({"rewarded": 9, "threshold": 10, "scheduled": True}, Wait("9 of 10 rewarded trajectories")),
    ],
)
def test_degradation_and_schedule_want_new_data(facts, expected):
    assert decide(Situation(**{**FULL, **facts}, min_new=64)) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, True),
        ({"rewarded": 64}, False),
        ({"scheduled": False}, False),
        ({"job": "j1"}, False),
        ({"release": "r1"}, False),
        ({"paused": True}, False),
        ({"cooldown": COOL}, False),
    ],
)
def test_a_run_is_left_out_for_want_of_data_alone_and_else_stays_due(facts, expected):
    now = Situation(**{"rewarded": 3, "threshold": 5000, "min_new": 64, "scheduled": True, **facts})
    assert leaves_out_run(now, decide(now)) is expected
