"""DDPG and TD3: targets and delays by hand, noise by its statistics, what it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from off_policy_tasks import Endless, assert_resumes, batch, fill, optimised
from on_policy_tasks import Identity, greedy_returns, identity_score, train

from onward.control.algorithms.continuous import ActionNoise
from onward.control.algorithms.ddpg import DDPG
from onward.control.core.config import DDPGConfig, TD3Config
from onward.control.core.contract import EnvSpec, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.environments import make
from onward.control.policies.policy import Policy

pytestmark = pytest.mark.slow

ONE = ActionSpec("box", low=(-2.0,), high=(2.0,), shape=(1,))
SMALL = DDPGConfig(hidden=(16, 16), batch_size=8, buffer_size=10_000, learning_starts=8)
LINEAR = replace(SMALL, hidden=())


def ddpg(config: DDPGConfig = LINEAR, num: int = 1) -> DDPG:
    return DDPG(EnvSpec("test", Layout(1), ONE), num, config, Seeds(0))


def rows(count: int = 8) -> Any:
    rng = np.random.default_rng(0)
    obs, actions, following = rng.uniform(-1, 1, (3, count, 1)).astype(np.float32)
    return batch(
        obs.tolist(), actions.tolist(), rng.normal(size=count).tolist(), following.tolist(), [0.9] * count
    )


def test_the_target_is_the_target_critics_value_of_the_target_actors_action() -> None:
    made = ddpg()
    fill(made.flats["actor_target"], 0.5, 0.1)  # μ̄(s) = tanh(s/2 + 0.1)
    fill(made.flats["critic_target"], [3.0, 2.0], 1.0)  # Q̄(s, a) = 3 s + 2 a + 1
    told = batch([[0], [0]], [[0.0], [0.0]], [1, 1], [[0.4], [0.4]], [0.25, 0.0])  # the second terminated
    value = 3 * 0.4 + 2 * float(np.tanh(0.3)) + 1
    assert made.targets(told).tolist() == pytest.approx([1 + 0.25 * value, 1.0])


def test_td3_takes_the_smaller_of_two_critics() -> None:
    made = ddpg(replace(LINEAR, twin=True))
    fill(made.flats["actor_target"], 0.0, 0.0)
    fill(made.flats["critic_target"], [[3.0, 2.0], [-1.0, 2.0]], [1.0, 1.0])  # 3 s + … and −s + …
    told = batch([[0], [0]], [[0.0], [0.0]], [0, 0], [[1.0], [-1.0]], [1, 1])
    assert made.targets(told).tolist() == [0.0, -2.0]


def test_td3_smooths_the_target_action_within_the_clip_and_the_box() -> None:
    made = ddpg(replace(LINEAR, twin=True, target_noise=10.0, target_noise_clip=0.5))
    fill(made.flats["actor_target"], 0.0, 0.0)
    fill(made.flats["critic_target"], [[0.0, 1.0], [0.0, 1.0]], [0.0, 0.0])  # Q̄ = a
    told = batch([[0]] * 200, [[0.0]] * 200, [0] * 200, [[0.0]] * 200, [1] * 200)
    targets = made.targets(told)
    assert (targets.min().item(), targets.max().item()) == (-0.5, 0.5)
    fill(made.flats["actor_target"], 0.0, 20.0)  # tanh = 1: the noise cannot go above
    targets = made.targets(told)
    assert (targets.min().item(), targets.max().item()) == (0.5, 1.0)


@pytest.mark.parametrize("burst", [1, 3])
def test_td3s_delay_is_not_off_by_one(burst: int) -> None:
    """Actor and targets move at gradient steps 2, 4, 6 …, whatever a burst is (SB3 changelog)."""
    made = ddpg(replace(LINEAR, policy_delay=2))
    moved = []
    learn = made._learn

    def watched(told: Any) -> Any:
        names = ("actor", "actor_target", "critic_target")
        before = [made.flats[name].tensor.detach().clone() for name in names]
        metrics = learn(told)
        changed = [not torch.equal(made.flats[n].tensor, b) for n, b in zip(names, before, strict=True)]
        assert all(changed) or not any(changed)
        moved.append(changed[0])
        return metrics

    made._learn = watched  # type: ignore[method-assign]
    for _ in range(6 // burst):
        made._learn_burst(rows(8 * burst))
    assert moved == [False, True] * 3


def test_the_actor_climbs_the_first_critic_alone() -> None:
    made = ddpg(replace(LINEAR, twin=True))
    fill(made.flats["critic"], [[0.0, 2.0], [0.0, -50.0]], [0.0, 0.0])
    fill(made.flats["actor"], 0.0, 0.0)
    loss = made._fit_actor(torch.tensor([[1.0], [3.0]]))
    assert float(loss) == 0.0
    # −2 · tanh'(0) times the observation (mean 2) for the weight, and 1 for the bias
    assert made.flats["actor"].grad.tolist() == [-4.0, -2.0]
    assert not made.flats["critic"].grad.any()


def test_targets_are_in_no_optimiser_and_get_no_gradient() -> None:
    made = ddpg(SMALL)
    for network in (made.actor_target, made.critic_target):
        assert all(not p.requires_grad and p.grad is None for p in network.parameters())
        assert not {p.untyped_storage().data_ptr() for p in network.parameters()} & optimised(made)
    made._learn(rows())
    assert all(p.grad is None for p in made.actor_target.parameters())


def test_both_targets_follow_by_polyak_steps() -> None:
    made = ddpg(replace(LINEAR, tau=0.25))
    before = {name: made.flats[name].tensor.clone() for name in ("actor_target", "critic_target")}
    made._learn(rows())
    for name, old in before.items():
        online = made.flats[name.removesuffix("_target")].tensor.detach()
        assert torch.allclose(made.flats[name].tensor, 0.75 * old + 0.25 * online, atol=1e-7)


# Noise


def test_gaussian_noise_is_independent_and_stored_within_the_box() -> None:
    num = 4000
    made = ddpg(replace(LINEAR, learning_starts=0, noise_std=0.2), num=num)
    fill(made.flats["actor"], 0.0, 0.0)
    obs = np.zeros((num, 1), np.float32)
    first, second = made.act(obs, None)[:, 0], made.act(obs, None)[:, 0]
    assert first.std() == pytest.approx(0.2, rel=0.06)  # 5 standard deviations
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.08
    fill(made.flats["actor"], 0.0, 20.0)  # tanh = 1: half of the noise is cut off
    actions = made.act(obs, None)
    assert actions.max() == 1.0
    ones = np.ones(num, np.float32)
    no = np.zeros(num, bool)
    made.observe(obs, actions + 3, Step(obs, ones, no, no))
    assert made.replay.sample(100).actions.max() == 1.0


def test_ornstein_uhlenbeck_noise_has_its_stationary_deviation_and_correlation() -> None:
    """x′ = (1 − θ dt) x + σ √dt ε: variance σ² dt / (1 − (1 − θ dt)²), correlation 1 − θ dt per step."""
    theta_dt, sigma = 0.15 * 0.01, 0.5
    noise = ActionNoise("ou", sigma, 20_000, 1)
    stationary = sigma**2 * 0.01 / (1 - (1 - theta_dt) ** 2)
    noise.state[:] = np.random.default_rng(1).normal(0, stationary**0.5, (20_000, 1))
    rng = np.random.default_rng(0)
    start = noise.state.copy()
    x = [noise.sample(rng) for _ in range(100)][-1]
    assert x.var() == pytest.approx(stationary, rel=0.05)  # 5 standard deviations
    assert np.corrcoef(start[:, 0], x[:, 0])[0, 1] == pytest.approx((1 - theta_dt) ** 100, abs=0.01)
    assert sigma / (2 * 0.15) ** 0.5 == pytest.approx(stationary**0.5, rel=1e-3)


def test_ornstein_uhlenbeck_noise_starts_again_with_each_episode() -> None:
    made = ddpg(replace(LINEAR, action_noise="ou", noise_std=0.5, learning_starts=0), num=2)
    obs = np.zeros((2, 1), np.float32)
    actions = [made.act(obs, None) for _ in range(3)][-1]
    assert made.noise is not None
    kept = float(made.noise.state[1, 0])
    ended = np.array([True, False])
    step = Step(obs, np.zeros(2, np.float32), np.zeros(2, bool), ended, obs[:1])
    made.observe(obs, actions, step)
    assert made.noise.state[:, 0].tolist() == [0.0, kept]


# What it learns


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, n_step=3)])
def test_a_cut_life_is_worth_as_much_as_an_endless_one(config: DDPGConfig) -> None:
    config = replace(config, gamma=0.8, tau=0.1, learning_rate=3e-3, batch_size=32)
    made = DDPG(EnvSpec("test", Layout(1), ONE), 4, config, Seeds(0))
    train(made, Endless(ONE), 1000)
    q = made.critic(torch.ones(2, 1), torch.tensor([[-0.5], [0.5]]))
    assert q.flatten().tolist() == pytest.approx([5, 5], abs=0.3)


@pytest.mark.parametrize("options", [{}, {"action_noise": "ou", "twin": True, "policy_delay": 2}])
def test_a_resumed_run_is_the_uninterrupted_one(options: dict[str, Any]) -> None:
    envs = make("Pendulum-v1", 2)
    config = replace(SMALL, learning_starts=20, **options)
    assert_resumes(lambda: DDPG(envs.spec, 2, config, Seeds(1)), envs, 60, 100)


@pytest.mark.parametrize("kind", [DDPGConfig, TD3Config])
def test_it_learns_to_repeat_what_it_sees(kind: type[DDPGConfig]) -> None:
    envs = Identity("box")
    config = kind(hidden=(32, 32), learning_rate=3e-3, batch_size=64, buffer_size=5000, gamma=0.5,
                  learning_starts=200, train_every=4, tau=0.02, noise_std=0.2)  # fmt: skip
    made = DDPG(envs.spec, 8, config, Seeds(0))
    train(made, envs, 4000)
    assert identity_score(made, "box") >= 90


def test_the_exported_policy_acts_without_noise() -> None:
    made = ddpg(SMALL)
    obs = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    expected = torch.tanh(made.actor(torch.from_numpy(obs))).detach().numpy()
    assert Policy(made.networks()).act_flat(obs, deterministic=True) == pytest.approx(expected, abs=1e-6)


@pytest.mark.long
def test_it_swings_the_pendulum_up() -> None:
    envs = make("Pendulum-v1")
    config = DDPGConfig(hidden=(64, 64), batch_size=128, gamma=0.98, learning_starts=500, buffer_size=10_000)
    made = DDPG(envs.spec, 1, config, Seeds(0))
    train(made, envs, 6000)
    assert greedy_returns(made, make("Pendulum-v1", 100)).mean() >= -200
