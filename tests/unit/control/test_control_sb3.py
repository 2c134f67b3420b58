"""Whole updates beside stable-baselines3's, from the same weights and steps: networks end up equal."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor, nn

from onward.control.algorithms.dqn import DQN
from onward.control.algorithms.ppo import PPO
from onward.control.comparison import translated
from onward.control.core.config import DQNConfig, PPOConfig
from onward.control.core.replay import Batch
from onward.control.core.seeds import Seeds
from onward.control.environments import make

NEAR = 5e-6  # parameters move by 1e-2 and more


def linears(*modules: nn.Module) -> list[nn.Linear]:
    return [layer for module in modules for layer in module.modules() if isinstance(layer, nn.Linear)]


@torch.no_grad()
def copied(layers: Iterable[nn.Linear], weights: Iterable[tuple[Tensor, Tensor]]) -> None:
    """``weights``: (out, in) and (out,) of each layer."""
    for layer, (weight, bias) in zip(layers, weights, strict=True):
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


def apart(layers: Iterable[nn.Linear], weights: Iterable[tuple[Tensor, Tensor]]) -> float:
    pairs = zip(layers, weights, strict=True)
    return max(float((a - b).detach().abs().max()) for layer, w in pairs
               for a, b in zip((layer.weight, layer.bias), w, strict=True))  # fmt: skip


def theirs(kind: Any, config: Any) -> Any:
    envs = make_vec_env("CartPole-v1", config.num_envs)
    model = kind("MlpPolicy", envs, device="cpu", **translated(config))
    model._logger = SimpleNamespace(record=lambda *_, **__: None)
    model._current_progress_remaining = 1.0
    return model


def members(network: Any) -> list[tuple[Tensor, Tensor]]:
    """Weights of the only member of an ensemble, as layers have them."""
    return [(weight.detach()[0].T, bias.detach()[0, 0]) for weight, bias in network.advantage.layers]


def test_gradient_steps_of_dqn_on_the_same_transitions_are_those_of_stable_baselines3() -> None:
    """The target network is asked once for a whole burst here, batch by batch there. Clipping binds."""
    config = DQNConfig(
        num_envs=1, hidden=(64, 64), double=False, learning_starts=0, batch_size=32, gradient_steps=16,
        gamma=0.9, learning_rate=2e-3, max_grad_norm=0.3,
    )  # fmt: skip
    envs = make("CartPole-v1", 1)
    ours = DQN(envs.spec, 1, config, Seeds(0))
    obs, _ = envs.reset(0)
    for _ in range(600):
        actions = ours.act(obs, None)
        step = envs.step(actions)
        ours.observe(obs, actions, step)
        obs = step.obs
    model = theirs(sb3.DQN, config)
    online, target = linears(model.q_net), linears(model.q_net_target)
    copied(online, members(ours.online))
    before = members(ours.online)[0][0].clone()
    for _ in range(3):
        ours._target_flat.lerp_from(ours._online, 1.0)
        copied(target, members(ours.target))
        burst = ours._sample(16 * 32).tensors()
        pieces = list(burst.pieces(32))
        model.replay_buffer = SimpleNamespace(sample=lambda *_, left=pieces, **__: sampled(left.pop(0)))
        model.train(16, 32)
        ours._learn_burst(burst)
        assert apart(online, members(ours.online)) < NEAR
    assert (members(ours.online)[0][0] - before).abs().max() > 0.01


def sampled(batch: Batch) -> Any:
    """A batch in their words, where the discount is left to their own settings."""
    column = (-1, 1)
    done = (batch.discount == 0).float().reshape(column)
    return SimpleNamespace(
        observations=batch.obs, next_observations=batch.next_obs, actions=batch.actions.reshape(column),
        rewards=batch.returns.reshape(column), dones=done, discounts=None,
    )  # fmt: skip


@pytest.mark.parametrize("value_clip", [None, 0.2])
def test_an_update_of_ppo_is_that_of_stable_baselines3(value_clip: float | None) -> None:
    """Their buffer takes rewards, values and ends, and makes advantages and returns of them itself."""
    config = PPOConfig(
        num_envs=4, n_steps=64, batch_size=256, epochs=8, gamma=0.9, gae_lambda=0.8, learning_rate=1e-3,
        entropy_coef=0.01, value_clip=value_clip, clip=0.02,
    )  # fmt: skip
    envs = make("CartPole-v1", 4, env_kwargs={"max_episode_steps": 30})
    ours = PPO(envs.spec, 4, config, Seeds(0))
    ours.total_steps = 10**9
    model = theirs(sb3.PPO, config)
    policy = linears(model.policy.mlp_extractor.policy_net, model.policy.action_net)
    value = linears(model.policy.mlp_extractor.value_net, model.policy.value_net)
    own = [(ours.net.policy, policy), (ours.net.value, value)]
    for mine, layers in own:
        copied(layers, mine.layers)
    before = ours.net.flat.tensor.detach().clone()
    obs, _ = envs.reset(0)
    buffer = RolloutBuffer(
        64, model.observation_space, model.action_space, "cpu", gae_lambda=0.8, gamma=0.9, n_envs=4
    )
    starts, cut = np.ones(4), 0
    for _ in range(64):
        actions = ours.act(obs, None)
        step = envs.step(actions)
        rows = torch.from_numpy(obs)
        values, log_probs, _ = model.policy.evaluate_actions(rows, torch.from_numpy(actions))
        rewards = step.reward.copy()
        for slot in np.flatnonzero(step.truncated):  # as their loop does before it stores the reward
            final = torch.from_numpy(step.next_obs()[slot : slot + 1])
            rewards[slot] += 0.9 * float(model.policy.predict_values(final).detach())
            cut += 1
        buffer.add(obs, actions, rewards, starts, values.detach(), log_probs.detach())
        ours.observe(obs, actions, step)
        starts, obs = step.ended.astype(float), step.obs
    assert cut > 0
    buffer.compute_returns_and_advantage(model.policy.predict_values(torch.from_numpy(obs)).detach(), starts)
    model.rollout_buffer = buffer
    model.train()
    assert ours.update()["clip_fraction"] > 0.02
    for mine, layers in own:
        assert apart(layers, mine.layers) < NEAR
    assert (ours.net.flat.tensor - before).abs().max() > 5e-3
