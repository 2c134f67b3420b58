"""Values for rows that the critic was not fitted to: the signal is never subtracted from itself."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from onward.lm.algorithms import Ppo, learn
from onward.lm.cross_fit import cross_fit, folds_of
from onward.lm.learner import CriticConfig, Learner, LearnerConfig
from onward.lm.policy import Policy
from onward.lm.tokens import TokenRow
from onward.lm.trajectories import Selection, Trajectory
from onward.lm.value import explained_variance

CONFIG = LearnerConfig(epochs=1, behaviour="recompute", critic=CriticConfig())
NOTHING = (torch.zeros(3), torch.zeros(1))


def attempts(count: int, seed: int, prompts: int | None = None) -> list[Trajectory]:
    """Random answers of 8 tokens to ``prompts`` prompts (default: one each); rewards are coin flips."""
    rnd = random.Random(seed)
    asked = [[rnd.randrange(3, 290) for _ in range(20)] for _ in range(prompts or count)]
    mask = [False] * 20 + [True] * 8
    return [
        Trajectory(
            [TokenRow(asked[k % len(asked)] + [rnd.randrange(3, 290) for _ in range(8)], mask, [0.0] * 28)],
            float(rnd.random() < 0.5),
        )
        for k in range(count)
    ]


def gap(learner: Learner, selection: Selection) -> float:
    """A(rewarded) − A(unrewarded) before normalisation, which is 1 where the value knows nothing of both."""
    learner.open(selection.rows)
    learner.warm_critic(Ppo().monte_carlo(selection, None))
    rewards = np.array([float(one.reward or 0.0) for one in selection.trajectories])
    left = rewards - np.array([float(values.mean()) for values in learner.values()])
    return float(left[rewards == 1].mean() - left[rewards == 0].mean())


# --- the fit ------------------------------------------------------------------------------------


def data(noise: float, count: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(5)
    states = rng.normal(2.0, 1.5, (count, 3))
    returns = states @ [0.5, -1.0, 0.25] + 0.75 + rng.normal(0, noise, count)
    folds = np.arange(count) % 8
    return torch.tensor(states).float(), torch.tensor(returns).float(), torch.tensor(folds)


def test_values_are_those_of_least_squares_on_the_other_folds() -> None:
    """Three features: conjugate gradients end at the exact solution after three steps."""
    states, returns, folds = data(noise=0.02)
    found = cross_fit(states, returns, folds, NOTHING, steps=3)
    design = np.concatenate([states.numpy(), np.ones((64, 1))], axis=1)
    for k in range(8):
        other = (folds != k).numpy()
        solution, *_ = np.linalg.lstsq(design[other], returns.numpy()[other], rcond=None)
        assert found.values[folds == k].tolist() == pytest.approx(design[~other] @ solution, abs=1e-3)
    solution, *_ = np.linalg.lstsq(design, returns.numpy(), rcond=None)
    assert [*found.weight.tolist(), float(found.bias)] == pytest.approx(solution, abs=1e-3)


def test_a_value_does_not_depend_on_the_returns_of_its_own_fold() -> None:
    states, returns, folds = data(noise=0.02)
    before = cross_fit(states, returns, folds, NOTHING, steps=3).values
    changed = torch.where(folds == 2, returns + 0.05 * (states[:, 0] > 2), returns)
    after = cross_fit(states, changed, folds, NOTHING, steps=3).values
    assert after[folds == 2].tolist() == pytest.approx(before[folds == 2].tolist(), abs=1e-4)
    assert float((after - before)[folds != 2].abs().max()) > 1e-3


def test_where_nothing_can_be_learned_the_value_is_the_mean_of_the_other_folds() -> None:
    states, _, folds = data(noise=0.0)
    rnd = random.Random(1)
    flips = [float(rnd.random() < 0.5) for _ in range(64)]
    found = cross_fit(states, torch.tensor(flips), folds, NOTHING, steps=20)
    for i in range(64):
        others = [flips[j] for j in range(64) if int(folds[j]) != int(folds[i])]
        assert float(found.values[i]) == pytest.approx(sum(others) / len(others), abs=1e-5)


def test_a_fit_begins_at_the_head_it_is_given() -> None:
    """A head that is right but for a constant needs no step: only the constant is corrected."""
    states, returns, folds = data(noise=0.0)
    start = (torch.tensor([0.5, -1.0, 0.25]), torch.tensor([9.0]))
    found = cross_fit(states, returns, folds, start, steps=0)
    assert found.values.tolist() == pytest.approx(returns.tolist(), abs=1e-4)
    assert float(found.bias) == pytest.approx(0.75, abs=1e-4)


# --- folds --------------------------------------------------------------------------------------


def test_rows_that_share_an_attempt_a_group_or_a_prompt_are_in_one_fold() -> None:
    units = [
        [("attempt", k // 2), ("group", k // 6), ("prompt", "other" if k == 11 else "first" if k == 0 else k)]
        for k in range(60)
    ]
    units[40][2] = ("prompt", "first")
    folds = folds_of(units).tolist()
    assert folds[40] == folds[0]
    for k in range(60):
        assert folds[k] == folds[k // 6 * 6]
    assert len(set(folds)) > 4


@pytest.mark.parametrize("level", [0, 1])
def test_rows_of_a_single_prompt_are_separated_by_group_or_else_by_attempt(level: int) -> None:
    units = [[("attempt", k // 2), ("group", k // 4 if level else 0), ("prompt", 1)] for k in range(32)]
    folds = folds_of(units).tolist()
    width = 4 if level else 2
    assert all(folds[k] == folds[k // width * width] for k in range(32)) and len(set(folds)) > 4
    assert folds_of([[("attempt", 0), ("prompt", 1)]] * 3).tolist() == [0, 0, 0]


# --- in the learner -----------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "prompts"), [(8, None), (16, None), (64, None), (32, 4), (16, 1)])
def test_rewards_that_nothing_explains_keep_their_whole_gap(
    policy: Policy, count: int, prompts: int | None
) -> None:
    policy.new_adapter("x", 4, 8.0)
    found = []
    for seed in range(6):
        selection = Ppo().select(attempts(count, seed, prompts))
        found.append(gap(Learner(policy, "x", CONFIG), selection))
    assert sorted(found)[len(found) // 2] == pytest.approx(1.0, abs=0.25)
    assert min(found) > 0.5


def test_the_gap_stays_when_the_same_rows_come_again(policy: Policy) -> None:
    """Jobs overlap, and a critic remembers the rows that it was fitted to: their values start anew."""
    policy.new_adapter("x", 4, 8.0)
    learner, selection = Learner(policy, "x", CONFIG), Ppo().select(attempts(32, 0))
    for _ in range(3):
        assert gap(learner, selection) > 0.8
        list(learn(learner, Ppo(), selection))


def told_by_the_prompt(seed: int) -> list[Trajectory]:
    """Attempts whose prompt ends with one of two words, which decides the reward."""
    found = attempts(64, seed)
    for k, one in enumerate(found):
        one.rows[0].ids[12:20] = [40 + k % 2] * 8
        one.reward = float(k % 2)
    return found


def test_what_a_state_shows_is_explained_on_rows_that_the_critic_has_not_seen(policy: Policy) -> None:
    policy.new_adapter("x", 4, 8.0)
    for trajectories, least, most in ((told_by_the_prompt(3), 0.5, 1.0), (attempts(64, 3), -0.3, 0.1)):
        (metrics,) = learn(Learner(policy, "x", CONFIG), Ppo(), Ppo().select(trajectories))
        assert least < metrics.held_out_explained_variance <= most


def test_a_critic_that_explains_later_rows_judges_them_and_is_not_fitted_again(policy: Policy) -> None:
    policy.new_adapter("x", 4, 8.0)
    learner = Learner(policy, "x", CONFIG)
    (_,) = learn(learner, Ppo(), Ppo().select(told_by_the_prompt(3)))
    assert learner.critic is not None
    before, few = learner.critic.weight.clone(), Ppo().select(told_by_the_prompt(4)[:4])
    assert 0 <= gap(learner, few) < 0.7  # four rows teach a new critic nothing: this is the one from before
    assert torch.equal(before, learner.critic.weight)


def test_a_critic_that_explains_nothing_begins_anew(policy: Policy) -> None:
    policy.new_adapter("x", 4, 8.0)
    learner = Learner(policy, "x", CONFIG)
    assert learner.critic is not None
    learner.critic.weight.fill_(1.0)  # a head of another task: its values are noise here
    learner.critic.warm = True
    (metrics,) = learn(learner, Ppo(), Ppo().select(attempts(32, 4)))
    assert metrics.held_out_explained_variance > -0.3
    assert float(learner.critic.weight.abs().max()) < 0.9


def test_values_and_the_rows_behind_a_critic_survive_a_stop(policy: Policy, tmp_path: Path) -> None:
    policy.new_adapter("x", 4, 8.0)
    selection = Ppo().select(attempts(32, 0))
    config = LearnerConfig(epochs=2, behaviour="recompute", critic=CriticConfig())
    learner = Learner(policy, "x", config)
    first = next(iter(learn(learner, Ppo(), selection)))
    learner.save(tmp_path)
    again = Learner(policy, "x", config)
    again.restore(tmp_path)
    (second,) = learn(again, Ppo(), selection)
    assert second.held_out_explained_variance == first.held_out_explained_variance
    assert gap(again, selection) > 0.8


def test_the_figure_reported_is_that_of_the_values_and_plain_returns(policy: Policy) -> None:
    policy.new_adapter("x", 4, 8.0)
    selection = Ppo().select(attempts(16, 2))
    learner = Learner(policy, "x", CONFIG)
    rows, plain = selection.rows, Ppo().monte_carlo(selection, None)
    learner.open(rows)
    learner.warm_critic(plain)
    values = [v for row in learner.values() for v in row.tolist()]
    rewards = [float(one.reward or 0.0) for one in selection.trajectories for _ in range(8)]
    expected = 1 - np.var(np.array(rewards) - values) / np.var(rewards)
    assert explained_variance(values, rewards) == pytest.approx(expected, abs=1e-5)
    (metrics,) = learner.update(rows, [0.0] * 16, plain)
    assert metrics.held_out_explained_variance == pytest.approx(expected, abs=1e-4)
