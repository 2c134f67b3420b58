"""Tabular Q-learning: one step by hand, against value iteration, what it refuses, resume."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from on_policy_tasks import train

from onward.control.algorithms.q_learning import QLearning
from onward.control.core.config import QLearningConfig
from onward.control.core.contract import EnvSpec, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.environments import make
from onward.control.policies.policy import Policy
from onward.errors import ControlError

CONFIG = QLearningConfig(learning_rate=0.5, gamma=0.9)


def one_hot(*states: int, count: int = 3) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[list(states)]


def q_learning(config: QLearningConfig = CONFIG, num: int = 1, width: int = 3, choices: int = 2) -> QLearning:
    spec = EnvSpec("test", Layout(width), ActionSpec("discrete", (choices,)))
    return QLearning(spec, num, config, Seeds(0))


def step(after: int, reward: float, end: str = "", final: int | None = None, **more: Any) -> Step:
    return Step(
        one_hot(after), np.array([reward], np.float32), np.array([end == "terminated"]),
        np.array([end == "truncated"]), None if final is None else one_hot(final), **more,
    )  # fmt: skip


def learn(made: QLearning, state: int, action: int, told: Step) -> None:
    made.observe(one_hot(state), np.array([action]), told)
    assert made.due()
    made.update()
    assert not made.due()


def test_one_update_by_hand_for_each_way_to_end() -> None:
    made = q_learning()
    learn(made, 1, 0, step(2, 8.0))
    assert made.values(one_hot(1)).tolist() == [[4.0, 0.0]]  # ½ · 8
    learn(made, 0, 1, step(1, 2.0))
    assert made.values(one_hot(0)).tolist() == [[0.0, 0.5 * (2 + 0.9 * 4)]]
    learn(made, 2, 0, step(0, 2.0, "truncated", final=1))  # life would have gone on in state 1
    assert made.values(one_hot(2)).tolist() == [[0.5 * (2 + 0.9 * 4), 0.0]]
    learn(made, 2, 1, step(0, 2.0, "terminated", final=1))
    assert made.values(one_hot(2))[0, 1] == 0.5 * 2


def test_slots_in_the_same_state_are_learned_from_one_after_the_other() -> None:
    made = q_learning(num=2)
    both = Step(
        one_hot(1, 1), np.array([8, 8], np.float32), np.ones(2, bool), np.zeros(2, bool), one_hot(2, 2)
    )
    made.observe(one_hot(0, 0), np.array([1, 1]), both)
    made.update()
    assert made.values(one_hot(0)).tolist() == [[0.0, 6.0]]  # 0 → 4 → 6


def test_the_maximum_is_over_legal_actions() -> None:
    made = q_learning(replace(CONFIG, learning_rate=1.0))
    learn(made, 1, 0, step(0, -5.0, "terminated", final=2))
    learn(made, 0, 0, step(1, 0.0, action_mask=np.array([[True, False]])))
    assert made.values(one_hot(0))[0, 0] == pytest.approx(0.9 * -5)  # not 0, which the illegal one has


def test_ties_are_broken_at_random_and_every_slot_draws_for_itself() -> None:
    made = q_learning(replace(CONFIG, epsilon_start=0.0, epsilon_end=0.0), num=2000)
    assert made.act(one_hot(*[0] * 2000), None).mean() == pytest.approx(0.5, abs=0.06)


def test_optimism_tries_what_was_tried_least() -> None:
    made = q_learning(replace(CONFIG, ucb=1.0, epsilon_start=0.0, epsilon_end=0.0, learning_rate=0.1))
    learn(made, 0, 0, step(1, 1.0))
    assert made.act(one_hot(0), None).tolist() == [1]  # never tried


def value_iteration(env: Any, gamma: float) -> np.ndarray:
    """Q* (S, A) from the transition table of a toy-text environment."""
    count, choices = env.observation_space.n, env.action_space.n
    q = np.zeros((count, choices))
    for _ in range(2000):
        v = q.max(axis=1)
        q = np.array(
            [
                [
                    sum(p * (r + gamma * v[after] * (not end)) for p, after, r, end in env.P[s][a])
                    for a in range(choices)
                ]
                for s in range(count)
            ]
        )
    return q


def test_it_finds_what_value_iteration_finds() -> None:
    import gymnasium

    config = QLearningConfig(learning_rate=1.0, gamma=0.9, epsilon_start=1.0, epsilon_end=1.0)
    envs = make("FrozenLake-v1", 8, env_kwargs={"is_slippery": False})
    made = QLearning(envs.spec, 8, config, Seeds(0))
    train(made, envs, 20_000)
    known = made._state_rows(len(made._index)).argmax(axis=1)
    exact = value_iteration(gymnasium.make("FrozenLake-v1", is_slippery=False).unwrapped, 0.9)
    tried = made._visits[: len(known)] > 0
    assert tried.sum() == 11 * 4  # every action, but in the four holes and at the goal
    assert made._table[: len(known)][tried] == pytest.approx(exact[known][tried], abs=1e-9)


@pytest.mark.long
def test_it_drives_the_taxi() -> None:
    envs = make("Taxi-v4", 8)
    config = QLearningConfig(learning_rate=0.5, gamma=0.99, epsilon_fraction=0.6)
    made = QLearning(envs.spec, 8, config, Seeds(0))
    train(made, envs, 300_000)
    policy = Policy(made.networks())
    trial = make("Taxi-v4", 100)
    obs, _ = trial.reset(5)
    total, running = np.zeros(100), np.ones(100, bool)
    while running.any():
        told = trial.step(policy.act_flat(obs, deterministic=True))
        total += told.reward * running
        running &= ~told.ended
        obs = told.obs
    assert total.mean() >= 7.0  # the best possible is about 7.9


def test_the_exported_policy_is_the_table() -> None:
    made = q_learning(width=5, choices=4)
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 2, (20, 5)).astype(np.float32)  # states of any zeros and ones
    made._states(obs)
    made._table[:] = rng.normal(size=made._table.shape)
    exported = Policy(made.networks()).act_flat(obs, deterministic=True)
    assert exported.tolist() == made.values(obs).argmax(axis=1).tolist()


def test_many_states_take_more_rows() -> None:
    made = q_learning(width=200)
    learn_obs = np.eye(200, dtype=np.float32)
    assert made._states(learn_obs).tolist() == list(range(200))
    assert made._states(learn_obs[::-1]).tolist() == list(range(199, -1, -1))
    assert np.array_equal(made._state_rows(200), learn_obs)


def test_what_cannot_be_counted_is_refused_with_a_remedy() -> None:
    with pytest.raises(ControlError, match="not made of zeros and ones: use dqn"):
        q_learning().act(np.array([[0.5, 0, 1]], np.float32), None)
    with pytest.raises(ControlError, match="or sac"):
        QLearning(EnvSpec("box", Layout(2), ActionSpec("box", low=(0.0,), high=(1.0,))), 1, CONFIG, Seeds(0))


def test_a_resumed_run_is_the_uninterrupted_one() -> None:
    envs = make("FrozenLake-v1", 4)
    first, second = (QLearning(envs.spec, 4, replace(CONFIG, ucb=0.3), Seeds(2)) for _ in range(2))
    train(first, envs, 2000)
    second.load_state_dict(first.state_dict())
    second.total_steps = first.total_steps = 3000
    obs, _ = envs.reset(8)
    for _ in range(250):
        actions = first.act(obs, None)
        assert np.array_equal(second.act(obs, None), actions)
        told = envs.step(actions)
        for made in (first, second):
            made.observe(obs, actions, told)
            made.update()
        obs = told.obs
    assert first.steps == second.steps
    assert np.array_equal(first._table, second._table)
    assert np.array_equal(first._visits, second._visits)


def test_a_table_without_any_state_acts_and_is_saved() -> None:
    """A run that is stopped before its first step saves, and looks at its parameters."""
    made = q_learning()
    policy = Policy(made.networks())
    assert policy.outputs(one_hot(0, 1, 2)).tolist() == [[0.0, 0.0]] * 3
    other = q_learning()
    other.load_state_dict(made.state_dict())
    learn(other, 1, 0, step(2, 8.0))
    assert other.values(one_hot(1)).tolist() == [[4.0, 0.0]]
