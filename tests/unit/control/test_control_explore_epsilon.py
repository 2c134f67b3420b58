"""Epsilon schedules and draws, and upper confidence bounds: values by hand, regret by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onward.control.explore.epsilon import (
    decayed_epsilon,
    epsilon_greedy,
    linear_epsilon,
    uniform_actions,
)
from onward.control.explore.ucb import count_bonus, ensemble_choice, ucb_choice
from onward.errors import ControlError


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(0, 1.0), (250, 0.7625), (500, 0.525), (1_000, 0.05), (5_000, 0.05), (10_000, 0.05)],
)
def test_linear_epsilon_anneals_over_its_share_and_is_not_at_its_end_from_step_0(steps: int, expected: float):
    assert linear_epsilon(steps, 10_000, 1.0, 0.05, 0.1) == pytest.approx(expected)


def test_linear_epsilon_is_a_function_of_environment_steps_however_many_slots_make_them():
    one = [linear_epsilon(steps, 800, 1.0, 0.0, 1.0) for steps in range(0, 800, 1)]
    eight = [linear_epsilon(steps, 800, 1.0, 0.0, 1.0) for steps in range(0, 800, 8)]
    assert eight == one[::8]


@pytest.mark.parametrize(
    ("times", "expected"),
    [(0, 1.0), (1, 0.995), (100, 0.605770), (918, 0.010036), (919, 0.01), (9_999, 0.01)],
)
def test_decayed_epsilon_of_the_seed(times: int, expected: float):
    assert decayed_epsilon(times) == pytest.approx(expected, abs=1e-6)


def test_each_slot_draws_for_itself():
    generator = np.random.default_rng(0)
    greedy = np.zeros(2_000, dtype=np.int64)
    chosen = epsilon_greedy(greedy, 0.3, 4, generator)
    # Explores with 0.3 and then leaves action 0 with 3/4: 0.225, deviation sqrt(.225 · .775 / 2000) = 0.0093.
    assert (chosen != 0).mean() == pytest.approx(0.225, abs=0.04)


def test_exploring_keeps_to_legal_actions_and_is_uniform_over_them():
    generator = np.random.default_rng(2)
    mask = np.tile([False, True, False, True], (1_000, 1))
    chosen = epsilon_greedy(np.full(1_000, 1), 1.0, 4, generator, mask)
    assert set(chosen) == {1, 3}
    assert (chosen == 1).mean() == pytest.approx(0.5, abs=0.08)


def test_epsilon_takes_as_many_draws_whatever_comes_out():
    ends = []
    for epsilon in (0.0, 1.0):
        generator = np.random.default_rng(3)
        epsilon_greedy(np.zeros(5, dtype=np.int64), epsilon, 3, generator)
        ends.append(generator.random())
    assert ends[0] == ends[1]


def test_impossible_epsilons_and_masks_raise():
    with pytest.raises(ControlError, match="probability"):
        linear_epsilon(0, 1, 1.5, 0.0, 0.5)
    with pytest.raises(ControlError, match="share"):
        linear_epsilon(0, 1, 1.0, 0.0, 0.0)
    with pytest.raises(ControlError, match="multiplied"):
        decayed_epsilon(1, factor=1.5)
    with pytest.raises(ControlError, match="no action at all"):
        uniform_actions(2, 2, np.random.default_rng(0), np.array([[True, False], [False, False]]))


def test_count_bonus_by_hand():
    bonus = count_bonus(np.array([4, 1, 0]), 100, 2.0)
    assert bonus[:2] == pytest.approx([2 * math.sqrt(4.605170 / 4), 2 * math.sqrt(4.605170)])
    assert bonus[2] == math.inf
    assert count_bonus(np.array([1]), 1, 2.0) == pytest.approx([0.0])
    assert count_bonus(np.array([0]), 0, 2.0)[0] == math.inf


def test_ucb_choice_tries_the_untried_then_weighs_value_against_doubt():
    values = np.array([[1.0, 0.9, 0.0], [1.0, 0.9, 0.0], [1.0, 0.9, 0.0]])
    counts = np.array([[5, 5, 0], [90, 5, 5], [34, 33, 33]])
    # Row 1: sqrt(ln 100 / 90) = .226 → 1.226; sqrt(ln 100 / 5) = .960 → 1.860; 0.960.
    assert ucb_choice(values, counts, 1.0).tolist() == [2, 1, 0]
    assert ucb_choice(values, counts, 0.0).tolist()[1:] == [0, 0]
    legal = np.array([[True, True, False]] * 3)
    assert ucb_choice(values, counts, 1.0, legal).tolist() == [0, 1, 0]


def test_ensemble_choice_is_mean_plus_deviation():
    values = np.array([[[1.0, 1.5]], [[3.0, 2.7]]])  # means 2 and 2.1, deviations 1 and 0.6
    assert ensemble_choice(values, 0.0).tolist() == [1]
    assert ensemble_choice(values, 0.2).tolist() == [1]  # 2.2 against 2.22
    assert ensemble_choice(values, 0.3).tolist() == [0]  # 2.3 against 2.28
    assert ensemble_choice(values, 0.3, np.array([[False, True]])).tolist() == [1]


def test_impossible_optimism_raises():
    with pytest.raises(ControlError, match="at least 2 members"):
        ensemble_choice(np.zeros((1, 3, 2)), 1.0)
    with pytest.raises(ControlError, match="at least 2 members"):
        ensemble_choice(np.zeros((3, 2)), 1.0)
    with pytest.raises(ControlError, match="greedy"):
        ucb_choice(np.zeros((1, 2)), np.ones((1, 2)), -0.1)


ARMS = np.array([0.9, 0.6, 0.6, 0.5])
RUNS, HORIZON = 64, 5_000


def bandit_regret(choose) -> np.ndarray:
    """Mean pseudo-regret of RUNS Bernoulli bandits after each pull: ``choose(means, counts, generator)``."""
    generator = np.random.default_rng(11)
    counts, sums = np.zeros((RUNS, len(ARMS)), dtype=np.int64), np.zeros((RUNS, len(ARMS)))
    regret, rows = np.empty(HORIZON), np.arange(RUNS)
    for pull in range(HORIZON):
        arms = choose(sums / np.maximum(1, counts), counts, generator)
        counts[rows, arms] += 1
        sums[rows, arms] += generator.random(RUNS) < ARMS[arms]
        regret[pull] = (counts * (ARMS.max() - ARMS)).sum(axis=1).mean()
    return regret


def test_bandit_regret_of_ucb_keeps_the_analytic_bound_and_beats_epsilon_greedy():
    ucb = bandit_regret(lambda means, counts, _: ucb_choice(means, counts, math.sqrt(2)))
    greedy = bandit_regret(lambda means, counts, g: epsilon_greedy(means.argmax(axis=1), 0.1, len(ARMS), g))
    gaps = (ARMS.max() - ARMS)[1:]
    pulls = np.arange(1, HORIZON + 1)
    bound = (
        8 * np.log(pulls) * (1 / gaps).sum() + (1 + math.pi**2 / 3) * gaps.sum()
    )  # Auer et al. 2002, theorem 1
    assert (ucb <= bound).all()
    # Epsilon-greedy pays 0.1 · mean gap = 0.025 per pull for ever; UCB's price per pull goes to 0.
    assert greedy[-1] - greedy[HORIZON // 2] == pytest.approx(0.025 * HORIZON / 2, rel=0.25)
    assert ucb[-1] - ucb[HORIZON // 2] < 0.5 * (greedy[-1] - greedy[HORIZON // 2])
    assert ucb[-1] < greedy[-1]
