"""The doubly robust estimate against the true value of a tabular problem."""

import math

import numpy as np
import pytest

from onward.errors import TrainingError
from onward.lm import doubly_robust, off_policy
from onward.lm.doubly_robust import Values
from onward.lm.off_policy import LoggedAttempt

REWARDS = np.array([[0.0, 0.4], [0.1, 0.2], [0.5, 0.0]])
"""Mean reward of (state, action). State 0 comes first; its action leads to state 1 or 2, where it ends."""
NEXT = np.array([[0.8, 0.2], [0.3, 0.7]])
"""Chance of states 1 and 2 after each action in state 0."""
SAMPLED, WANTED = np.full((3, 2), 0.5), np.array([[0.3, 0.7], [0.6, 0.4], [0.8, 0.2]])


def truth() -> tuple[np.ndarray, np.ndarray, float]:
    """Q, V and the value of the wanted policy, by enumeration."""
    q = REWARDS.copy()
    q[0] += NEXT @ (WANTED[1:] * REWARDS[1:]).sum(1)
    v = (WANTED * q).sum(1)
    return q, v, float(v[0])


def drawn(seed: int, number: int) -> tuple[list[LoggedAttempt], list[Values]]:
    rng, (q, v, _) = np.random.default_rng(seed), truth()
    attempts, values = [], []
    for task in range(number):
        states, actions = [0], []
        for step in range(2):
            actions.append(int(rng.random() < SAMPLED[states[-1], 1]))
            if step == 0:
                states.append(1 + int(rng.random() < NEXT[actions[0], 1]))
        pairs = list(zip(states, actions, strict=True))
        rewards = [float(rng.random() < REWARDS[pair]) for pair in pairs]
        ratios = [math.log(WANTED[pair] / SAMPLED[pair]) for pair in pairs]
        attempts.append(LoggedAttempt(task, ratios, rewards))
        values.append(Values([v[state] for state in states], [q[pair] for pair in pairs]))
    return attempts, values


BOUNDS = {"bounds": (0.0, 2.0)}


def test_it_is_right_and_varies_less_than_the_weights_alone() -> None:
    true = truth()[2]
    plain, robust = [], []
    for seed in range(40):
        attempts, values = drawn(seed, 300)
        plain.append(off_policy.estimate(attempts, per_decision=True, **BOUNDS).value)
        robust.append(doubly_robust.estimate(attempts, values, **BOUNDS).value)
    assert np.mean(robust) == pytest.approx(true, abs=0.015)
    assert np.std(robust) < np.std(plain)


def test_wrong_weights_do_no_harm_where_the_values_are_right() -> None:
    true = truth()[2]
    attempts, values = drawn(7, 4000)
    wrong = [LoggedAttempt(one.task, [0.0, 0.0], one.rewards) for one in attempts]
    plain = off_policy.estimate(wrong, per_decision=True, **BOUNDS).value
    robust = doubly_robust.estimate(wrong, values, **BOUNDS).value
    assert robust == pytest.approx(true, abs=0.03)
    assert plain is not None and abs(plain - true) > 0.05


def test_wrong_values_do_no_harm_where_the_weights_are_right() -> None:
    true = truth()[2]
    attempts, _ = drawn(8, 4000)
    silly = [Values([0.9, 0.1], [0.1, 0.9]) for _ in attempts]
    assert doubly_robust.estimate(attempts, silly, **BOUNDS).value == pytest.approx(true, abs=0.1)


def test_a_model_of_zeros_is_importance_sampling_per_decision_again() -> None:
    attempts, _ = drawn(9, 200)
    zeros = [Values([0.0, 0.0], [0.0, 0.0]) for _ in attempts]
    plain = off_policy.estimate(attempts, per_decision=True, **BOUNDS)
    robust = doubly_robust.estimate(attempts, zeros, **BOUNDS)
    assert (robust.value, robust.low, robust.high) == pytest.approx((plain.value, plain.low, plain.high))


def test_the_interval_covers_the_true_value_in_about_its_share() -> None:
    true, hits = truth()[2], 0
    for seed in range(100):
        found = doubly_robust.estimate(*drawn(seed, 120), **BOUNDS)
        assert found.low is not None and found.high is not None
        hits += found.low <= true <= found.high
    assert hits >= 90


def test_too_few_tasks_are_refused_with_the_reason_and_odd_values_with_an_error() -> None:
    attempts, values = drawn(1, 5)
    found = doubly_robust.estimate(attempts, values)
    assert found.value is None and "an estimate needs 10" in str(found.reason)
    attempts, values = drawn(1, 20)
    with pytest.raises(TrainingError, match="another number of decisions"):
        doubly_robust.estimate(attempts, [*values[:-1], Values([0.1], [0.1])])


def test_the_simplest_model_leaves_out_an_attempts_own_task() -> None:
    attempts = [
        LoggedAttempt("a", [0.0], [1.0]), LoggedAttempt("a", [0.0], [0.0]), LoggedAttempt("b", [0.0], [0.4])
    ]  # fmt: skip
    means = [one.states[0] for one in doubly_robust.task_values(attempts)]
    assert means == pytest.approx([0.4, 0.4, 0.5])
