"""Strategy, schedule, names and the state table."""

from datetime import UTC, datetime

import pytest

from onward.config import ReleaseSettings
from onward.errors import ConfigError, IllegalTransitionError
from onward.release import plan
from onward.release.evidence.rates import KnownAndLost
from onward.release.plan import TRANSITIONS, Plan, State, Step, choose, make, move, step_verdict

LEAST = {"min_sessions": [50, 100, 200, 0]}
SETTINGS = ReleaseSettings.model_validate(LEAST)
CANARY = ReleaseSettings.model_validate({**LEAST, "strategy": "canary"})


@pytest.mark.parametrize(
    ("improvement", "strategy", "careful"),
    [(0.2, "blue_green", False), (0.15, "blue_green", False), (0.1499, "canary", False),
     (0.05, "canary", False), (0.0499, "canary", True), (0.04, "canary", True), (0.0, "canary", True),
     (-0.0001, None, False), (-0.05, None, False), (-0.0501, None, False)],
)  # fmt: skip
def test_strategy_follows_the_seeds_table_at_each_border(improvement, strategy, careful):
    found = choose(improvement, SETTINGS)
    assert (found.strategy, found.careful) == (strategy, careful)


@pytest.mark.parametrize("verdict", ["not shown", "not validated"])
def test_what_was_not_measured_starts_carefully_however_good_it_looks(verdict):
    found = choose(0.4, SETTINGS, verdict)
    assert (found.strategy, found.careful) == ("canary", True)


def test_a_careful_start_is_four_steps_of_an_hour_and_full_at_four_hours():
    made = make(choose(0.04, SETTINGS), SETTINGS)
    assert [(step.share, step.seconds, step.sessions) for step in made.steps] == [
        (0.05, 3600, 50), (0.1, 3600, 50), (0.25, 3600, 100), (0.5, 3600, 200), (0.95, 3600, 0),
    ]  # fmt: skip


def test_at_a_thousand_sessions_a_day_the_least_sessions_fit_the_four_hours():
    settings = ReleaseSettings.model_validate({})
    made = make(choose(0.1, settings), settings, 1000.0)
    # 1,000 a day are 41.7 an hour: 4.2, 10.4 and 41.7 of the candidate in its steps, and a third of those
    assert [step.sessions for step in made.steps] == [1, 3, 13, 0]
    assert [step.sessions for step in make(choose(0.1, settings), settings, 1e6).steps] == [50, 100, 200, 0]
    assert [step.sessions for step in make(choose(0.1, settings), settings).steps] == [50, 100, 200, 0]


def test_immediate_is_for_who_asks_and_gives_all_traffic_but_the_bake_share():
    settings = ReleaseSettings.model_validate({"strategy": "immediate"})
    made = make(choose(0.0, settings), settings)
    assert made.strategy == "immediate" and [step.share for step in made.steps] == [0.95]
    assert choose(-0.051, settings).strategy is None


def test_the_bake_is_prolonged_until_not_worse_is_shown_or_its_limit():
    made = Plan("canary", (Step(0.1, 60, 1), Step(0.95, 60, 0)), 600, "promote", max_bake_seconds=100)
    arms = {"candidate": KnownAndLost(9, 0), "current": KnownAndLost(9, 0)}

    def verdict(served: float, support: float) -> tuple[str, str]:
        return step_verdict(made, 1, served=served, total=served, support=support, **arms)

    assert verdict(60, 1) == ("stay", "none-against")
    assert verdict(60, 10) == ("advance", "not worse")
    assert verdict(100, 1) == ("advance", "none-against")


def test_a_forced_canary_starts_with_the_configured_share_but_never_takes_a_worse_model():
    assert choose(0.3, CANARY).strategy == "canary"
    assert choose(-0.05, CANARY).strategy == "canary" and choose(-0.051, CANARY).strategy is None
    assert make(choose(0.0, CANARY), CANARY).steps[0].share == 0.1


def test_the_seeds_schedule():
    made = make(choose(0.1, SETTINGS), SETTINGS)
    assert [(step.share, step.seconds, step.sessions) for step in made.steps] == [
        (0.1, 3600, 50), (0.25, 3600, 100), (0.5, 7200, 200), (0.95, 3600, 0),
    ]  # fmt: skip
    schedule = plan.ramp_schedule(made, datetime(2026, 1, 1, tzinfo=UTC))
    assert [(item["timestamp"][11:16], item["percentage"]) for item in schedule] == [
        ("00:00", 10.0), ("01:00", 25.0), ("02:00", 50.0), ("04:00", 100.0),
    ]  # fmt: skip
    assert Plan.from_state(made.state()) == made


def test_compressing_scales_time_and_never_the_minimum():
    fast = ReleaseSettings.model_validate({**LEAST, "time_scale": 0.01, "canary_ramp_hours": 2})
    made = make(choose(0.1, fast), fast)
    assert [step.seconds for step in made.steps[:3]] == pytest.approx([18, 18, 36])
    assert [step.sessions for step in made.steps] == [50, 100, 200, 0]


def test_blue_green_goes_straight_to_the_bake():
    made = make(choose(0.2, SETTINGS), SETTINGS)
    assert made.bake == 0 and made.steps[0].share == 0.95


ONE = Plan("canary", (Step(0.1, 60, 10), Step(0.95, 30, 0)), 600, "promote")


@pytest.mark.parametrize(
    ("served", "total", "known", "support", "policy", "verdict"),
    [
        (59, 59, 99, 1, "promote", "stay"),
        (60, 60, 9, 1, "promote", "stay"),
        (60, 60, 10, 1, "promote", "advance"),
        (60, 60, 10, 1, "hold", "hold"),
        (60, 60, 10, 1, "ask", "ask"),
        (60, 60, 10, 10, "hold", "advance"),
        (600, 600, 9, 1, "promote", "deadline"),
        (599, 600, 9, 99, "promote", "deadline"),
    ],
)
def test_a_step_needs_its_time_and_its_sessions(served, total, known, support, policy, verdict):
    made = Plan(ONE.strategy, ONE.steps, ONE.deadline_seconds, policy)
    arms = {"candidate": KnownAndLost(known, 0), "current": KnownAndLost(90, 0)}
    found, shown = step_verdict(made, 0, served=served, total=total, support=support, **arms)
    assert found == verdict
    assert shown == ("not worse" if support >= 10 else "none-against")


@pytest.mark.parametrize(
    ("step", "candidate", "current", "verdict"),
    [
        (0, (0, 21), (0, 190), "lost"),  # nobody reported anything
        (0, (0, 9), (0, 90), "stay"),  # nor did enough sessions end
        (0, (10, 11), (90, 91), "lost"),  # the known ones are the smaller part, on both arms
        (0, (10, 10), (90, 90), "advance"),
        (0, (10, 11), (90, 0), "stay"),  # lost on the candidate alone: the gates weigh it
        (0, (10, 0), (0, 90), "advance"),
        (1, (0, 0), (5, 0), "stay"),  # a step without a minimum still needs one known outcome
        (1, (0, 1), (0, 1), "lost"),
        (1, (1, 0), (0, 0), "advance"),
    ],
)
def test_lost_sessions_never_end_a_step(step, candidate, current, verdict):
    arms = {"candidate": KnownAndLost(*candidate), "current": KnownAndLost(*current)}
    assert step_verdict(ONE, step, served=60, total=60, support=99, **arms)[0] == verdict


def test_a_deadline_does_not_hide_that_most_sessions_are_lost():
    def verdict(served: float, candidate: tuple[int, int], current: tuple[int, int]) -> str:
        arms = {"candidate": KnownAndLost(*candidate), "current": KnownAndLost(*current)}
        return step_verdict(ONE, 0, served=served, total=600, support=99, **arms)[0]

    assert verdict(60, (5, 21), (90, 190)) == "lost"
    assert verdict(60, (5, 4), (90, 190)) == "deadline"
    assert verdict(60, (0, 9), (90, 190)) == "deadline"
    assert verdict(59, (5, 21), (90, 190)) == "deadline"


def test_names_count_up():
    keys = ["agent-zero-rl-v2_3", "agent-zero-rl-v2_10", "agent-zero-rl-v3_99", "other"]
    assert plan.next_model_id("agent-zero-rl-v2.{n}", ["agent-zero-rl-v2_3"]) == "agent-zero-rl-v2.4"
    assert plan.next_model_id("agent-zero-rl-v2.{n}", keys) == "agent-zero-rl-v2.11"
    assert plan.next_model_id("agent-zero-rl-v{n}", ["agent-zero-rl-v0"]) == "agent-zero-rl-v1"
    assert plan.next_model_id("agent-zero-rl-v{n}", []) == "agent-zero-rl-v1"
    assert plan.first_model_id("agent-zero-rl-v{n}") == "agent-zero-rl-v0"
    for pattern in ("no-number", "{n}-{n}", "a/b{n}", "x {n}"):
        with pytest.raises(ConfigError, match="id_pattern"):
            plan.next_model_id(pattern, [])


def test_the_table_of_transitions():
    assert move(State.PROPOSED, State.VALIDATING) is State.VALIDATING
    for state in plan.TERMINAL:
        for to in State:
            with pytest.raises(IllegalTransitionError):
                move(state, to)
    with pytest.raises(IllegalTransitionError, match="proposed cannot become promoted"):
        move(State.PROPOSED, State.PROMOTED)
    with pytest.raises(IllegalTransitionError):
        move(State.VALIDATING, State.ROLLED_BACK)
    assert set(TRANSITIONS) == set(State)
    assert {State.PROMOTED, State.ROLLED_BACK, State.REJECTED, State.ABORTED, State.SHADOWED} == plan.TERMINAL
