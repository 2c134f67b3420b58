from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

from onward.errors import ConfigError
from onward.lm.tokens import TokenRow
from onward.rubrics.language import Criterion, Rubric, serialise
from onward.rubrics.policy import prompts
from onward.rubrics.policy.episodes import Attempt
from onward.rubrics.policy.figures import Interval, figures, interval, interval_within, skill_of
from onward.rubrics.policy.scoring import TruthScorer
from onward.rubrics.reward import RubricReward, gated, reward_of
from onward.rubrics.tasks import make_task


def attempt(places: list[int], *, seed: int = 0, questions: int = 0, text: str | None = None) -> Attempt:
    task = make_task("expense_audit", seed)
    rubric = Rubric(Criterion(task.active[place], 2) for place in places)
    written = serialise(rubric) if text is None else text
    return Attempt(task, TokenRow([], [], []), ("accuracy",) * questions, written, rubric)


def test_shares_and_means_are_those_counted_by_hand() -> None:
    some = [attempt([0, 1, 2], questions=3), attempt([0, 0, 1], seed=1), attempt([0, 1, 2, 3], seed=2)]
    some.append(Attempt(some[0].task, TokenRow([], [], []), (), "no", None, "no rubric"))
    found = figures(some, TruthScorer()(some))
    assert found.episodes == 4
    assert found.invalid == 0.25
    assert found.degenerate == 0.25  # the second repeats a check
    assert found.questions == 0.75
    assert found.criteria == pytest.approx(10 / 3)
    assert found.distinct == pytest.approx(100.0)
    assert found.ordered == 1.0
    rewards = [reward_of(one.rubric, one.task, len(one.questions)) for one in some]
    assert rewards[-1].total == -2.0
    assert found.reward == pytest.approx(sum(float(one.total or 0) for one in rewards) / 4)
    assert found.skill == pytest.approx((sum(max(-1, one.measures["skill"]) for one in rewards[:3]) - 1) / 4)
    assert found.f1 == pytest.approx(sum(one.measures["f1"] for one in rewards[:3]) / 4)
    weight = [dict(zip(one.task.active, one.task.weights, strict=True)) for one in some]
    right = [w[c] > 0 for one, w in zip(some, weight, strict=True) if one.rubric for c in one.rubric.checks]
    assert found.right == pytest.approx(sum(right) / 10) and 0 < sum(right) < 10
    same = figures(some[:1] * 3, rewards[:1] * 3)
    assert same.distinct == 100.0  # one task counts once
    other = replace(some[0], task=make_task("expense_audit", 1))
    assert figures([some[0], other], rewards[:1] * 2).distinct == 50.0


def test_a_reward_is_that_of_its_task_and_its_questions() -> None:
    """A judge remembers rewards: of the same text on another task, and after questions, it is another one."""
    one, judge = attempt([0, 1, 2]), TruthScorer()
    other = replace(one, task=replace(one.task, weights=one.task.weights[::-1].copy()))
    asked = replace(one, questions=("accuracy", "brevity", "compliance"))
    for some in (one, other, asked, one):
        assert judge.reward(some) == reward_of(some.rubric, some.task, len(some.questions))
    found = [judge.reward(some).total for some in (one, other, asked)]
    assert len(set(found)) == 3 and float(found[0] or 0) - float(found[2] or 0) == pytest.approx(0.1)


def test_an_episode_that_the_environment_ended_counts_nowhere() -> None:
    failed = Attempt(
        make_task("expense_audit", 0), TokenRow([], [], []), (), "", None, "gone", finished=False
    )
    some = [attempt([0, 1, 2]), failed]
    rewards = TruthScorer()(some)
    assert figures(some, rewards) == figures(some[:1], rewards[:1])
    assert np.isnan(skill_of(rewards[1])) and not np.isnan(skill_of(rewards[0]))


def test_a_rubric_that_is_gated_and_repeats_a_check_is_degenerate_once() -> None:
    refused = gated("it gives every output the same score")
    for places in ([0, 0, 1], [0, 1, 2]):
        assert figures([attempt(places)], [refused]).degenerate == 1.0


def test_right_notes_are_those_about_what_brief_or_answers_state() -> None:
    task = next(task for task in map(partial(make_task, "expense_audit"), range(9)) if task.hidden)
    asked, left = task.hidden[0], task.hidden[1:]
    right = {name: level for name, level in task.levels.items() if name not in left}
    one = replace(attempt([0, 1, 2]), task=task, questions=(asked,), notes=prompts.notes(right))
    other = replace(one, notes=prompts.notes({**right, asked: None}))  # it did not hear the answer
    blind = replace(one, notes=prompts.notes({}))
    for some, share in (([one], 1.0), ([one, other], 7 / 8), ([blind], 0.0)):
        assert figures(some, [RubricReward(1.0)] * len(some)).notes_right == pytest.approx(share)
    assert len(right) == 4
    without = replace(one, notes="")
    assert figures([without], [RubricReward(1.0)]).notes_right is None


def test_entropy_of_names_is_in_bits() -> None:
    one = attempt([0, 1, 2])
    names = {check.name for check in one.task.active[:3]}
    expected = np.log2(3) if len(names) == 3 else np.nan
    assert figures([one], TruthScorer()([one])).entropy == pytest.approx(expected)


def test_another_order_is_seen_in_the_text() -> None:
    one = attempt([0, 1, 2])
    items = one.text[len('{"criteria": [') : -2].split("}, ")
    turned = '{"criteria": [' + "}, ".join([items[1] + "", items[0], items[2].rstrip("}")]) + "}]}"
    other = attempt([0, 1, 2], text=turned)
    assert figures([one, other], TruthScorer()([one, other])).ordered == 0.5


def test_the_interval_has_the_width_of_independent_clusters() -> None:
    # 40 families of 10 equal values: the interval is the t test's of 40 values, not of 400.
    values = np.random.default_rng(0).normal(size=40)
    found = interval(np.repeat(values, 10).tolist(), np.repeat(np.arange(40), 10).tolist())
    peer = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((values.mean(), peer.low, peer.high))


def test_families_count_by_their_tasks_by_hand() -> None:
    # The gaps of the sums from 3 and 1 times the mean are ±0.75: variance 2 (0.75² + 0.75²) / 1 / 4².
    found = interval([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"])
    half = 12.706205 * (2 * 2 * 0.75**2 / 16) ** 0.5
    assert (found.mean, found.low, found.high) == pytest.approx((0.75, 0.75 - half, 0.75 + half))


def test_an_interval_leaves_out_what_failed_and_needs_two_families() -> None:
    for by in (interval, interval_within):
        values, names = [1.0, 2.0, 5.0, 4.0], ["a", "a", "b", "b"]
        assert by([*values, np.nan], [*names, "c"]) == by(values, names)
    with pytest.raises(ConfigError, match="fewer than 2 families"):
        interval([1.0, 2.0, np.nan], ["a", "a", "b"])


def test_the_interval_within_families_by_hand() -> None:
    # Each variance is 2, so that of the mean is (2·2 + 2·2)/4² = 0.5; Student's t of 2 degrees is 4.302653.
    found = interval_within([0.0, 2.0, 10.0, 12.0], ["a", "a", "b", "b"])
    half = 4.302653 * 0.5**0.5
    assert (found.mean, found.low, found.high) == pytest.approx((6.0, 6.0 - half, 6.0 + half))
    # one family: the interval of a one-sample t test
    values = np.random.default_rng(3).normal(size=9)
    peer = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    one = interval_within(values.tolist(), ["a"] * 9)
    assert (one.low, one.high) == pytest.approx((peer.low, peer.high))
    assert interval_within([0.0, 0.0], ["a", "a"]) == Interval(0.0, 0.0, 0.0)
    with pytest.raises(ConfigError, match="fewer than 2 tasks"):
        interval_within([1.0, 2.0, 3.0], ["a", "a", "b"])


def test_the_intervals_cover_the_truth_in_95_of_100_cases() -> None:
    """Over eight families the truth is that of all families; within four it is their own mean. The percentile
    bootstrap over the eight, which stood here before, covers it in 85 of 100."""
    draw, runs = np.random.default_rng(0), 1000
    over = within = boot = 0
    for _ in range(runs):
        families = draw.normal(0.0, 0.1, 8)
        values = families[:, None] + draw.normal(0.0, 0.2, (8, 6))
        names = [name for name in "abcdefgh" for _ in range(6)]
        found = interval(values.ravel().tolist(), names)
        over += found.low <= 0.0 <= found.high
        drawn = values.mean(1)[draw.integers(8, size=(200, 8))].mean(1)
        low, high = np.quantile(drawn, [0.025, 0.975])
        boot += low <= 0.0 <= high
        found = interval_within(values[:4].ravel().tolist(), names[:24])
        within += found.low <= families[:4].mean() <= found.high
    assert 0.93 <= over / runs <= 0.97
    assert 0.93 <= within / runs <= 0.97
    assert boot / runs < 0.9
