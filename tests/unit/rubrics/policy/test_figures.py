from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from onward.errors import ConfigError
from onward.lm.tokens import TokenRow
from onward.rubrics.language import Criterion, Rubric, serialise
from onward.rubrics.policy.episodes import Attempt
from onward.rubrics.policy.figures import Interval, figures, interval, interval_within
from onward.rubrics.policy.judging import TruthJudge
from onward.rubrics.tasks import make_task


def attempt(places: list[int], *, seed: int = 0, questions: int = 0, text: str | None = None) -> Attempt:
    task = make_task("expense_audit", seed)
    rubric = Rubric(Criterion(task.active[place], 2) for place in places)
    written = serialise(rubric) if text is None else text
    return Attempt(task, TokenRow([], [], []), ("accuracy",) * questions, written, rubric)


def test_shares_and_means_are_those_counted_by_hand() -> None:
    some = [attempt([0, 1, 2], questions=3), attempt([0, 0, 1], seed=1), attempt([0, 1, 2, 3], seed=2)]
    some.append(Attempt(some[0].task, TokenRow([], [], []), (), "no", None, "no rubric"))
    found = figures(some, TruthJudge()(some))
    assert found.episodes == 4
    assert found.invalid == 0.25
    assert found.degenerate == 0.25  # the second repeats a check
    assert found.questions == 0.75
    assert found.criteria == pytest.approx(10 / 3)
    assert found.distinct == pytest.approx(100.0)
    assert found.ordered == 1.0


def test_an_episode_that_the_environment_ended_counts_nowhere() -> None:
    failed = Attempt(
        make_task("expense_audit", 0), TokenRow([], [], []), (), "", None, "gone", finished=False
    )
    some = [attempt([0, 1, 2]), failed]
    assert figures(some, TruthJudge()(some)) == figures(some[:1], TruthJudge()(some[:1]))


def test_entropy_of_names_is_in_bits() -> None:
    one = attempt([0, 1, 2])
    names = {check.name for check in one.task.active[:3]}
    expected = np.log2(3) if len(names) == 3 else np.nan
    assert figures([one], TruthJudge()([one])).entropy == pytest.approx(expected)


def test_another_order_is_seen_in_the_text() -> None:
    one = attempt([0, 1, 2])
    items = one.text[len('{"criteria": [') : -2].split("}, ")
    turned = '{"criteria": [' + "}, ".join([items[1] + "", items[0], items[2].rstrip("}")]) + "}]}"
    other = attempt([0, 1, 2], text=turned)
    assert figures([one, other], TruthJudge()([one, other])).ordered == 0.5


def test_the_interval_has_the_width_of_independent_clusters() -> None:
    # 40 families of 10 equal values: the standard error is that of 40 values, not of 400.
    values = np.random.default_rng(0).normal(size=40)
    found = interval(np.repeat(values, 10).tolist(), np.repeat(np.arange(40), 10).tolist())
    expected = 2 * 1.96 * values.std() / np.sqrt(40)
    assert found.mean == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(expected, rel=0.1)


def test_families_count_by_their_tasks() -> None:
    found = interval([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"])
    assert (found.mean, found.low, found.high) == (0.75, 0.0, 1.0)


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


def test_the_interval_within_four_families_covers_their_mean_and_the_bootstrap_over_them_does_not() -> None:
    draw, runs = np.random.default_rng(0), 400
    names = [name for name in "abcd" for _ in range(16)]
    covered = wide = 0
    for _ in range(runs):
        families = draw.normal(0.0, 0.1, 4)
        values = (families[:, None] + draw.normal(0.0, 0.2, (4, 16))).ravel().tolist()
        found = interval_within(values, names)
        covered += found.low <= families.mean() <= found.high  # the truth of these families
        over = interval(values, names, resamples=200)
        wide += over.low <= 0.0 <= over.high  # the truth of all families
    assert 0.92 <= covered / runs <= 0.98
    assert wide / runs < 0.87
