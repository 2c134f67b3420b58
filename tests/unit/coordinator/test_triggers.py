"""The seed's table "Training Job Priority", line by line, and what forbids a job."""

from __future__ import annotations

import pytest

from onward.coordinator.triggers import Situation, Train, Wait, decide

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
