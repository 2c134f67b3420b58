"""Gradients by hand beside those of the same losses in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from off_policy_tasks import batch

from onward.control.algorithms.dqn import DQN
from onward.control.algorithms.ppo import PPO
from onward.control.core.config import DQNConfig, PPOConfig
from onward.control.core.contract import EnvSpec
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout

HIDDEN = [(), (32,), (40, 24)]


def spec(inputs: int, choices: int) -> EnvSpec:
    return EnvSpec("test", Layout(inputs), ActionSpec("discrete", (choices,)))


def perturbed(made: Any) -> Any:
    """Away from the start, where biases are zero and policies uniform."""
    with torch.no_grad():
        draws = torch.Generator().manual_seed(5)
        for flat in (made.net.flat,) if isinstance(made, PPO) else made.flats.values():
            flat.tensor.add_(0.2 * torch.randn(flat.tensor.shape, generator=draws))
    return made


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("sizes", [(4, 2), (20, 18)])
@pytest.mark.parametrize("options", [{}, {"activation": "relu", "entropy_coef": 0.1}, {"bonus": "rnd"}])
def test_the_gradient_of_ppos_loss_is_autograds(hidden, sizes, options: dict[str, Any]) -> None:
    made = perturbed(PPO(spec(*sizes), 1, PPOConfig(num_envs=1, hidden=hidden, **options), Seeds(0)))
    rng, heads = np.random.default_rng(0), 2 if options.get("bonus") else 1
    rows = {
        "obs": rng.normal(size=(65, sizes[0])), "log_probs": rng.normal(-1, 1, 65),
        "advantages": rng.normal(size=65), "values": rng.normal(size=(65, heads)),
        "returns": rng.normal(size=(65, heads)),
    }  # fmt: skip
    data: dict[str, Any] = {name: array.astype(np.float32) for name, array in rows.items()}
    data["actions"] = rng.integers(0, sizes[1], 65)
    loss, policy_loss, value_loss, log_ratio = made._loss(data, 0.2)
    made.net.flat.backward(loss)
    expected = made.net.flat.grad.clone()
    ratio = log_ratio.exp()
    assert (ratio > 1.2).any() and (ratio < 0.8).any() and expected.any()
    made.net.flat.grad.fill_(7.0)
    assert made._by_hand is not None
    told = made._gradient(data, 0.2)
    torch.testing.assert_close(made.net.flat.grad, expected, rtol=1e-4, atol=1e-6)
    assert told[:2] == pytest.approx((policy_loss.item(), value_loss.item()), rel=1e-4)
    torch.testing.assert_close(told[2], log_ratio.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("sizes", [(4, 2), (20, 18)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_gradient_of_dqns_loss_is_autograds(hidden, sizes, activation) -> None:
    config = DQNConfig(hidden=hidden, activation=activation, max_grad_norm=0.0, buffer_size=100)
    made = perturbed(DQN(spec(*sizes), 1, config, Seeds(0)))
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(65, sizes[0])).tolist()
    told = batch(obs, rng.integers(0, sizes[1], 65).tolist(), [0.0] * 65, obs, [0.0] * 65)
    targets = torch.from_numpy(rng.normal(0, 2, (1, 65)).astype(np.float32))
    loss, values = made._loss(told, targets)
    flat = made.flats["online"]
    flat.backward(loss)
    expected = flat.grad.clone()
    errors = (values - targets).abs()
    assert (errors > 1).any() and (errors < 1).any() and expected.any()
    flat.grad.fill_(7.0)
    assert made._by_hand is not None
    found, same = made._by_hand(told, targets)
    torch.testing.assert_close(flat.grad, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found, loss.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(same, values.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"layer_norm": True}, {"value_clip": 0.2}], ids=["layer norm", "clipped values"]
)
def test_what_the_form_by_hand_does_not_know_goes_through_autograd(options: dict[str, Any]) -> None:
    assert PPO(spec(4, 2), 1, PPOConfig(num_envs=1, **options), Seeds(0))._by_hand is None
    box = EnvSpec("test", Layout(4), ActionSpec("box", low=(-1.0,), high=(1.0,)))
    assert PPO(box, 1, PPOConfig(num_envs=1), Seeds(0))._by_hand is None
    for name, value in {"dueling": True, "prioritised": True, "ensemble": 2, "loss": "mse"}.items():
        config = DQNConfig(buffer_size=100, **{name: value})
        assert DQN(spec(4, 2), 1, config, Seeds(0))._by_hand is None
