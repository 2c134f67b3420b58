"""SAC: the soft target, the temperature, who holds still, what it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from off_policy_tasks import Endless, assert_resumes, batch, optimised
from on_policy_tasks import Identity, greedy_returns, identity_score, train

from onward.control.algorithms.sac import SAC
from onward.control.core.config import SACConfig
from onward.control.core.contract import EnvSpec
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.environments import make
from onward.control.policies.policy import Policy
from onward.errors import ControlError

pytestmark = pytest.mark.slow

BOX = ActionSpec("box", low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,))
SMALL = SACConfig(hidden=(16, 16), batch_size=8, buffer_size=1000, learning_starts=8)


def sac(config: SACConfig = SMALL, actions: ActionSpec = BOX, width: int = 3, num: int = 1) -> SAC:
    return SAC(EnvSpec("test", Layout(width), actions), num, config, Seeds(0))


def rows(count: int, width: int = 3, discount: float = 0.9) -> Any:
    rng = np.random.default_rng(4)
    actions = rng.uniform(-1, 1, (count, 2)).astype(np.float32).tolist()
    obs, following = rng.normal(size=(2, count, width)).tolist()
    return batch(obs, actions, rng.normal(size=count).tolist(), following, [discount] * count)


def test_the_soft_value_is_masked_whole_after_a_termination() -> None:
    """The entropy term too (SB3 changelog). And the rest is R + γ (min Q̄ − α log π), by the parts."""
    made = sac()
    told = rows(6)
    told.discount[:3] = 0.0
    state = made._torch_generator.get_state()
    targets = made.targets(told, 0.3)
    assert torch.equal(targets[:3], told.returns[:3])
    made._torch_generator.set_state(state)
    with torch.no_grad():
        actions, log_probs = made.policy(made.actor(told.next_obs))
        both = made.critic_target(told.next_obs, actions)
    for i in range(3, 6):
        expected = float(told.returns[i]) + 0.9 * (min(both[:, i].tolist()) - 0.3 * float(log_probs[i]))
        assert float(targets[i]) == pytest.approx(expected, rel=1e-5)


def test_log_probs_are_those_of_the_squashed_action() -> None:
    """Against the change of variables in float64: log N(u; μ, σ) − Σ log(1 − tanh² u)."""
    made = sac()
    obs = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    state = made._torch_generator.get_state()
    actions, log_probs = made.policy(made.actor(obs).detach())
    made._torch_generator.set_state(state)
    mean, log_std = made.actor(obs).detach().double().numpy()[:, :2], None
    log_std = np.clip(made.actor(obs).detach().double().numpy()[:, 2:], -20, 2)
    u = mean + np.exp(log_std) * torch.randn(4, 2, generator=made._torch_generator).double().numpy()
    gauss = -0.5 * ((u - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    expected = (gauss - np.log(1 - np.tanh(u) ** 2)).sum(axis=1)
    assert actions.numpy() == pytest.approx(np.tanh(u), abs=1e-6)
    assert log_probs.numpy() == pytest.approx(expected, abs=1e-4)


def test_the_temperatures_gradient_by_hand() -> None:
    """d/d log α of −log α · mean(log π + H̄) is −mean(log π + H̄): with −1 and −2 on average, 3."""
    made = sac()
    assert made.target_entropy == -2.0  # minus the number of action dimensions
    made._fit_temperature(torch.tensor([-2.0, 0.0]))
    assert made.log_alpha.grad is not None
    assert made.log_alpha.grad.tolist() == [3.0]
    # Adam's first step is the learning rate against the sign: the entropy, 1, is above its target
    assert made.log_alpha.item() == pytest.approx(-made.config.learning_rate, rel=1e-4)


def test_the_temperature_grows_while_the_entropy_is_below_its_target() -> None:
    made = sac()
    made._fit_temperature(torch.tensor([5.0, 5.0]))
    assert made.log_alpha.item() > 0


def test_a_fixed_temperature_stays() -> None:
    made = sac(replace(SMALL, temperature=0.1))
    made._learn(rows(8))
    assert made.log_alpha.exp().item() == pytest.approx(0.1)


def test_twin_critics_are_two_networks_in_one_product() -> None:
    made = sac()
    told = rows(5)
    both = made.critic(told.obs, told.actions)
    x = torch.cat((told.obs, told.actions), dim=1)
    for member in range(2):
        y = x
        for depth, (weight, bias, activation, _) in enumerate(made.critic.ensemble.arrays(member)):
            y = y @ torch.from_numpy(weight.copy()).T + torch.from_numpy(bias.copy())
            y = y.relu() if depth < 2 else y
            assert activation == ("relu" if depth < 2 else "none")
        assert torch.allclose(both[member], y[:, 0], atol=1e-6)
    assert not torch.equal(both[0], both[1])


def test_the_critics_hold_still_while_the_actor_learns_and_targets_always() -> None:
    made = sac()
    for p in made.critic_target.parameters():
        assert not p.requires_grad
        assert p.grad is None
    held = {p.untyped_storage().data_ptr() for p in made.critic_target.parameters()}
    assert not held & optimised(made)
    told = rows(8)
    made._learn(told)
    # The critics' gradient is that of their own loss alone, taken here in a twin with the same draws.
    twin = sac()
    twin.policy(twin.actor(told.obs).detach())
    twin._fit_critics(told.obs, told.actions, twin.targets(told, 1.0))
    assert torch.equal(twin.flats["critic"].grad, made.flats["critic"].grad)
    assert all(p.requires_grad for p in made.critic.parameters())


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_actors_gradient_is_the_one_that_autograd_finds_in_its_loss(layer_norm: bool) -> None:
    """mean(α log π(a|s) − min Q(s, a)), a = tanh(μ + σ ε), as written, by torch.distributions."""
    config = replace(SMALL, layer_norm=layer_norm, temperature=0.3, learning_rate=1e-9)
    made, twin = sac(config), sac(config)
    told = rows(16)
    made._learn(told)
    outputs = twin.actor(told.obs)
    noise = torch.randn(16, 2, generator=twin._torch_generator)
    mean, log_std = outputs.chunk(2, dim=1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + log_std.clamp(-20, 2).exp() * noise
    tanh = torch.distributions.TanhTransform(cache_size=1)
    action = tanh(u)
    squashed = torch.distributions.TransformedDistribution(normal, [tanh])
    log_prob = squashed.log_prob(action).sum(1)
    value = twin.critic(told.obs, action).amin(dim=0)
    expected = torch.autograd.grad((0.3 * log_prob - value).mean(), list(twin.actor.parameters()))
    for p, wanted in zip(made.actor.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, wanted, rtol=1e-3, atol=1e-6)


def test_the_target_follows_by_one_polyak_step() -> None:
    made = sac(replace(SMALL, tau=0.25))
    before = made.flats["critic_target"].tensor.clone()
    made._learn(rows(8))
    online = made.flats["critic"].tensor.detach()
    expected = 0.75 * before + 0.25 * online
    assert torch.allclose(made.flats["critic_target"].tensor, expected, atol=1e-7)
    assert not torch.equal(before, expected)


def test_warm_up_is_uniform_and_stored_as_it_was() -> None:
    """hill-a#573: warm-up actions in the environment's own units do not belong in the memory."""
    made = sac(replace(SMALL, learning_starts=100_000), num=500)
    envs = Endless(BOX, 500)
    obs, _ = envs.reset(0)
    seen = []
    for _ in range(10):
        actions = made.act(obs, None)
        made.observe(obs, actions, envs.step(actions))
        seen.append(actions)
    drawn = np.concatenate(seen)
    assert drawn.dtype == np.float32
    assert -1 <= drawn.min() < -0.99
    assert 0.99 < drawn.max() <= 1
    assert np.abs(drawn.mean(axis=0)).max() < 0.05
    assert drawn.var(axis=0) == pytest.approx([1 / 3, 1 / 3], abs=0.02)
    assert set(made.replay.sample(200).actions[:, 0].tolist()) <= set(drawn[:, 0].tolist())
    assert not made.due()


def test_noise_never_leaves_the_box() -> None:
    made = sac(replace(SMALL, learning_starts=0, action_noise="gaussian", noise_std=5.0), num=50)
    actions = made.act(np.zeros((50, 3), np.float32), None)
    assert np.abs(actions).max() == 1.0


def test_discrete_actions_are_refused_with_a_remedy() -> None:
    with pytest.raises(ControlError, match="discrete: use dqn or ppo"):
        sac(actions=ActionSpec("discrete", (2,)))


def test_the_exported_policy_gives_tanh_of_the_mean() -> None:
    made = sac()
    obs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    mean = made.actor(torch.from_numpy(obs)).detach().numpy()[:, :2]
    exported = Policy(made.networks()).act_flat(obs, deterministic=True)
    assert exported == pytest.approx(np.tanh(mean), abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"n_step": 2, "normalise_obs": True, "action_noise": "ou"}])
def test_a_resumed_run_is_the_uninterrupted_one(options: dict[str, Any]) -> None:
    envs = make("Pendulum-v1", 2)
    config = replace(SMALL, learning_starts=20, **options)
    assert_resumes(lambda: SAC(envs.spec, 2, config, Seeds(1)), envs, 60, 100)


def test_a_cut_life_is_worth_as_much_as_an_endless_one() -> None:
    """1 / (1 − 0.8) = 5, with hardly any entropy in it."""
    one = ActionSpec("box", low=(-1.0,), high=(1.0,), shape=(1,))
    config = replace(SMALL, gamma=0.8, temperature=1e-6, tau=0.1, learning_rate=3e-3, batch_size=32)
    made = SAC(EnvSpec("test", Layout(1), one), 4, config, Seeds(0))
    train(made, Endless(one), 1000)
    q = made.critic(torch.ones(2, 1), torch.tensor([[-0.5], [0.5]]))
    assert q.flatten().tolist() == pytest.approx([5] * 4, abs=0.3)


def test_it_learns_to_repeat_what_it_sees() -> None:
    envs = Identity("box")
    config = SACConfig(hidden=(32, 32), learning_rate=3e-3, batch_size=64, buffer_size=5000, gamma=0.5,
                       learning_starts=200, train_every=4, tau=0.02)  # fmt: skip
    made = SAC(envs.spec, 8, config, Seeds(0))
    train(made, envs, 4000)
    assert identity_score(made, "box") >= 90


@pytest.mark.long
def test_it_swings_the_pendulum_up() -> None:
    envs = make("Pendulum-v1")
    config = SACConfig(learning_rate=1e-3, hidden=(64, 64), batch_size=128, gamma=0.98)
    made = SAC(envs.spec, 1, config, Seeds(0))
    train(made, envs, 8000)
    assert greedy_returns(made, make("Pendulum-v1", 100)).mean() >= -200
