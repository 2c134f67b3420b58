"""REINFORCE: whole episodes, right returns at a time limit, and that it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from on_policy_tasks import ACTIONS, Identity, identity_score, train

from onward.control.algorithms.reinforce import Reinforce
from onward.control.core.config import ReinforceConfig
from onward.control.core.contract import EnvSpec, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout

SPEC = EnvSpec("line", Layout(1), ActionSpec("discrete", sizes=(2,)))


def reinforce(num: int = 2, **settings) -> Reinforce:
    return Reinforce(
        SPEC, num, ReinforceConfig(num_envs=num, **{"episodes": 2, "gamma": 0.5, **settings}), Seeds(0)
    )


def step(obs, reward, terminated=(0, 0), truncated=(0, 0), final=None, alive=None) -> Step:
    final_obs = None if final is None else np.float32(final)[:, None]
    flags = np.array(terminated, bool), np.array(truncated, bool)
    living = None if alive is None else np.array(alive, bool)
    return Step(np.float32(obs)[:, None], np.float32(reward), *flags, final_obs, living)


def two_episodes(algorithm: Reinforce) -> None:
    """Slot 0 ends by its own rules after 2 steps; slot 1 is cut after 3, when it would have seen 13."""
    obs = np.float32([[0], [10]])
    for after in (
        step([1, 11], [1, 1]),
        step([50, 12], [2, 2], terminated=(1, 0), final=[2]),
        step([51, 60], [9, 4], truncated=(0, 1), final=[13]),
    ):
        algorithm.observe(obs, algorithm.act(obs, None), after)
        obs = after.obs


def test_an_update_is_due_after_whole_episodes_and_keeps_the_unfinished():
    algorithm = reinforce()
    two_episodes(algorithm)
    assert algorithm.due() and algorithm.steps == 6
    assert [episode["obs"][:, 0].tolist() for episode in algorithm._done] == [[0, 1], [10, 11, 12]]
    told = algorithm.update()
    assert not algorithm.due() and all(math.isfinite(value) for value in told.values())
    assert [len(steps) for steps in algorithm._open] == [1, 0]


def test_a_terminated_return_ends_and_a_truncated_one_goes_on_with_the_value_of_its_last_observation():
    algorithm = reinforce()
    two_episodes(algorithm)
    value = float(algorithm.net.values(np.float32([[13]]))[0, 0])
    np.testing.assert_allclose(algorithm._returns(algorithm._done[0]), [1 + 0.5 * 2, 2])
    third = 4 + 0.5 * value
    np.testing.assert_allclose(
        algorithm._returns(algorithm._done[1]), [1 + 0.5 * (2 + 0.5 * third), 2 + 0.5 * third, third]
    )


def test_without_a_baseline_the_value_network_never_moves():
    algorithm = reinforce(value_coef=0.0)
    before = [p.detach().clone() for p in algorithm.net.value.parameters()]
    two_episodes(algorithm)
    np.testing.assert_allclose(algorithm._returns(algorithm._done[1])[2], 4)
    algorithm.update()
    assert all(torch.equal(a, p) for a, p in zip(before, algorithm.net.value.parameters(), strict=True))


def test_dead_slots_give_no_steps():
    algorithm = reinforce()
    obs = np.float32([[0], [10]])
    algorithm.observe(
        obs, algorithm.act(obs, None), step([1, 0], [1, 1], terminated=(0, 1), final=[11], alive=(1, 0))
    )
    algorithm.observe(obs, algorithm.act(obs, None), step([2, 0], [1, 0], alive=(1, 0)))
    assert [len(steps) for steps in algorithm._open] == [2, 0]
    assert len(algorithm._done) == 1


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit():
    envs = Identity("discrete", 3)
    config = ReinforceConfig(num_envs=3, episodes=3, normalise_obs=True)
    whole, other = Reinforce(envs.spec, 3, config, Seeds(0)), Reinforce(envs.spec, 3, config, Seeds(9))
    obs, _ = envs.reset(3)
    for turn in range(90):
        if turn == 47:
            other.load_state_dict(whole.state_dict())
        actions = whole.act(obs, None)
        if turn >= 47:
            np.testing.assert_array_equal(other.act(obs, None), actions)
        after = envs.step(actions)
        for algorithm in (whole, other) if turn >= 47 else (whole,):
            algorithm.observe(obs, actions, after)
            if algorithm.due():
                algorithm.update()
        obs = after.obs
    assert torch.equal(whole.net.flat.tensor, other.net.flat.tensor)


@pytest.mark.parametrize("kind", ACTIONS)
def test_every_action_space_is_learned(kind):
    envs = Identity(kind)
    config = ReinforceConfig(num_envs=8, episodes=8, learning_rate=1e-2, gamma=0.0)
    algorithm = Reinforce(envs.spec, 8, config, Seeds(0))
    train(algorithm, envs, 24_000 if kind == "box" else 12_000)
    assert identity_score(algorithm, kind) >= 90
