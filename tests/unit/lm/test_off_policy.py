"""The off-policy estimate against hand-computed values, a slow reference, and a toy with a known value."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from onward.errors import TrainingError
from onward.lm import off_policy
from onward.lm.off_policy import LoggedAttempt, estimate


def _one_each(weights: list[float], rewards: list[float]) -> list[LoggedAttempt]:
    pairs = zip(weights, rewards, strict=True)
    return [LoggedAttempt(n, [math.log(w)], [r]) for n, (w, r) in enumerate(pairs)]


def test_the_value_is_the_weighted_mean_computed_by_hand() -> None:
    """Twelve tasks, weights 1 and 2 in turn, rewards 1 for the heavy ones: 12 / 18, effective 18² / 30."""
    found = estimate(_one_each([1.0, 2.0] * 6, [0.0, 1.0] * 6))
    assert found.value == pytest.approx(2 / 3)
    assert found.effective == pytest.approx(18**2 / 30)
    assert (found.attempts, found.tasks, found.truncated, found.reason) == (12, 12, 0.0, None)


def test_the_interval_is_the_one_computed_by_hand() -> None:
    """Sixteen tasks of weight 1, four successes. Linearised residuals: 0.75² · 4 + 0.25² · 12 = 3, so the
    squared error is 16/15 · 3 / 16² = 1/80. Two pseudo-observations at either end: centre (4 + 2) / 20."""
    found = estimate(_one_each([1.0] * 16, [1.0] * 4 + [0.0] * 12))
    centre = 6 / 20
    spread = 16 * (16 / 80 + (0.25 - centre) ** 2) + 2 * centre**2 + 2 * (1 - centre) ** 2
    half = 2.1314 * math.sqrt(spread) / 20  # Student, 15 degrees of freedom
    assert (found.low, found.high) == (
        pytest.approx(centre - half, abs=1e-4),
        pytest.approx(centre + half, abs=1e-4),
    )


def test_a_weight_is_truncated_at_the_root_of_n_times_the_mean() -> None:
    """Weights 1 × 15 and 49: mean 4, limit 16. The truncated sum is 31, of which the success has 16."""
    weights = [1.0] * 15 + [49.0]
    found = estimate(_one_each(weights, [0.0] * 15 + [1.0]))
    assert found.truncated == 1 / 16
    assert found.effective == pytest.approx(31**2 / (15 + 256))
    assert (
        found.value is None
        and found.reason is not None
        and "16 held-out tasks weigh as much as 3.5" in found.reason
    )
    wide = estimate(_one_each([*[1.0] * 399, 441.0], [0.0] * 399 + [1.0]))  # mean 2.1, limit 42
    assert wide.value == pytest.approx(42 / 441)


def test_a_reward_per_decision_has_the_weight_of_its_own_decision() -> None:
    """Rewards at the first of two decisions: the second ratios, which are large, play no part in it."""
    attempts = [
        LoggedAttempt(n, [math.log(1 + n % 2), math.log(3 - 2 * (n % 2))], [float(n % 2), 0.0])
        for n in range(24)
    ]
    found = estimate(attempts, per_decision=True)
    assert found.value == pytest.approx(2 / 3)
    # Per trajectory both kinds weigh 3 and 2: 2 / 5.
    assert estimate(attempts).value == pytest.approx(2 / 5)


def test_an_attempt_that_ended_keeps_its_last_weight() -> None:
    short = [LoggedAttempt(("s", n), [math.log(2)], [1.0]) for n in range(12)]
    long = [LoggedAttempt(("l", n), [0.0, 0.0], [0.0, 0.0]) for n in range(12)]
    assert estimate([*short, *long], per_decision=True).value == pytest.approx(2 / 3)


def _reference(attempts: list[LoggedAttempt]) -> tuple[Fraction, Fraction]:
    """Returns value and squared standard error, from the definitions, in exact arithmetic, without numpy."""
    weights = [Fraction(round(math.exp(sum(one.log_ratios)))) for one in attempts]
    total = sum(weights)
    value = sum(w * Fraction(sum(one.rewards)) for w, one in zip(weights, attempts, strict=True)) / total
    by_task: dict[object, Fraction] = {}
    for w, one in zip(weights, attempts, strict=True):
        by_task[one.task] = by_task.get(one.task, Fraction(0)) + w * (Fraction(sum(one.rewards)) - value)
    tasks = len(by_task)
    return value, Fraction(tasks, tasks - 1) * sum(x * x for x in by_task.values()) / total**2


def test_tasks_with_several_attempts_agree_with_a_slow_reference() -> None:
    draw = np.random.default_rng(3)
    attempts = [
        LoggedAttempt(n % 20, [math.log(int(draw.integers(1, 4)))], [float(draw.integers(0, 2))])
        for n in range(70)
    ]
    value, square = _reference(attempts)
    found = estimate(attempts)
    assert found.value == pytest.approx(float(value))
    low, high = off_policy._interval(float(value), math.sqrt(square), found.effective, (0.0, 1.0))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_many_attempts_at_few_tasks_are_few_observations() -> None:
    """Otherwise 900 attempts at nine tasks would have an interval as if the tasks were 900."""
    found = estimate([LoggedAttempt(n % 9, [0.0], [float(n % 2)]) for n in range(900)])
    assert found.value is None and found.low is None
    assert found.reason == "9 tasks were held out and an estimate needs 10: hold out more, or collect more"


def test_attempts_that_all_ended_alike_have_an_interval_all_the_same() -> None:
    found = estimate(_one_each([1.0] * 20, [1.0] * 20))
    assert found.value == 1.0 and found.high == 1.0
    assert found.low is not None and 0.75 < found.low < 0.95


@pytest.mark.parametrize("bad", [([], []), ([0.0], []), ([math.nan], [1.0]), ([0.0], [math.inf])])
def test_an_attempt_that_says_nothing_is_refused(bad: tuple[list[float], list[float]]) -> None:
    with pytest.raises(TrainingError, match=r"give one|not finite"):
        estimate([LoggedAttempt(0, *bad)])


def test_nothing_held_out_is_no_number() -> None:
    assert estimate([]).facts() == {
        "attempts": 0, "tasks": 0, "effective": 0.0, "truncated": 0.0, "reason": "no attempt was held out",
    }  # fmt: skip


def _toy(seed: int, tasks: int, attempts: int, turns: int, shift: float) -> list[LoggedAttempt]:
    """Each turn is a choice, right with probability σ(difficulty) under μ and σ(difficulty + shift) under π;
    an attempt at which all choices are right has the reward 1."""
    draw = np.random.default_rng(seed)
    made = []
    for task in range(tasks):
        level = draw.normal()
        mu, pi = (1 / (1 + math.exp(-level - more)) for more in (0.0, shift))
        for _ in range(attempts):
            right = draw.random(turns) < mu
            ratios = [math.log(pi / mu) if one else math.log((1 - pi) / (1 - mu)) for one in right]
            made.append(LoggedAttempt(task, ratios, [0.0] * (turns - 1) + [float(right.all())]))
    return made


@pytest.mark.parametrize("per_decision", [False, True])
@pytest.mark.parametrize(
    ("tasks", "attempts", "turns", "shift"), [(50, 1, 1, 0.7), (30, 8, 3, 0.7), (200, 1, 6, 0.3)]
)
def test_the_interval_covers_the_true_value_in_about_the_stated_share(
    tasks: int, attempts: int, turns: int, shift: float, per_decision: bool
) -> None:
    """The truth is an integral over the difficulty. 95 % of 200 have a deviation of 1.5 %."""
    grid = np.linspace(-8, 8, 4001)
    density = np.exp(-(grid**2) / 2)
    truth = float((density * (1 / (1 + np.exp(-grid - shift))) ** turns).sum() / density.sum())
    found = [
        estimate(_toy(seed, tasks, attempts, turns, shift), per_decision=per_decision) for seed in range(200)
    ]
    covered = [one.low <= truth <= one.high for one in found if one.low is not None and one.high is not None]
    assert len(covered) == 200
    assert 0.91 <= sum(covered) / 200 <= 0.995
    # and it is the policy's value that is covered, not that of the policy that sampled
    before = float((density * (1 / (1 + np.exp(-grid))) ** turns).sum() / density.sum())
    mean = sum(one.value or 0.0 for one in found) / 200
    assert abs(mean - truth) < abs(mean - before) / 5


def test_a_policy_far_away_has_no_number_and_the_effective_size_falls_with_the_distance() -> None:
    found = [estimate(_toy(0, 40, 1, 8, shift)) for shift in (0.0, 0.5, 1.0, 3.0)]
    assert all(near.effective > far.effective for near, far in pairwise(found))
    assert found[0].value is not None
    assert found[-1].value is None and found[-1].reason is not None and "too far" in found[-1].reason


@pytest.mark.parametrize("per_decision", [False, True])
def test_attempts_that_are_all_unlikely_now_do_not_pass_for_the_work_of_the_policy(
    per_decision: bool,
) -> None:
    """Weights e^-21, e^-22 …: one attempt has 63 % of the weight, so the mean reward says nothing. And where
    all weights are e^-30 alike, the attempts are not what the policy does."""
    unlike = [LoggedAttempt(n, [-21.0 - n], [1.0]) for n in range(40)]
    alike = [LoggedAttempt(n, [-30.0], [1.0]) for n in range(40)]
    for attempts in (unlike, alike):
        found = estimate(attempts, per_decision=per_decision)
        assert found.value is None and found.effective < 2
        assert found.reason is not None and "too far" in found.reason


def test_a_factor_that_all_weights_have_in_common_is_no_matter_above_the_mean_of_one() -> None:
    """Log ratios of 30 and 30 + ln 2 have the value of 0 and ln 2."""
    heavy = [
        LoggedAttempt(one.task, [30.0 + one.log_ratios[0]], one.rewards)
        for one in _one_each([1.0, 2.0] * 6, [0.0, 1.0] * 6)
    ]
    assert estimate(heavy).value == pytest.approx(2 / 3)
    assert estimate(heavy).effective == pytest.approx(18**2 / 30)
