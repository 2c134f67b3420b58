"""The turn limit by stage, by hand from AgentGym-RL's constants for BabyAI: 6, 13, 20, each 100 steps."""

from __future__ import annotations

import pytest

from onward.envs.horizon import HorizonSchedule
from onward.errors import ConfigError


def test_limits_rise_by_stage_and_the_last_one_stays() -> None:
    schedule = HorizonSchedule.parse("6,13,20/100")
    assert schedule == HorizonSchedule((6, 13, 20), every=100)
    assert [schedule.turns_at(step) for step in (0, 99, 100, 199, 200, 10_000)] == [6, 6, 13, 13, 20, 20]


def test_one_number_is_a_constant_limit() -> None:
    assert {HorizonSchedule.parse("30").turns_at(step) for step in (0, 5, 500)} == {30}


@pytest.mark.parametrize("text", ["", "6,", "a", "6;13", "13,6", "6,6", "0", "6/0", "-3", "6,13/x"])
def test_what_is_no_schedule_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 6,13,20/100"):
        HorizonSchedule.parse(text)
