"""Gradients of the two most frequent losses by hand: PPO's with discrete actions, and DQN's.

The losses are written in torch in ``algorithms/ppo.py`` and ``algorithms/dqn.py``; those are the reference,
and tests compare the gradients. These are used where they fit, since on small networks autograd's own work
costs as much as the arithmetic. Products have the orientation in which the processor is fast: with a narrow
side (observations of 4 numbers, 2 actions) that takes a quarter of the time. tanh is numpy's, six times
faster than PyTorch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onward.control.core.config import DQNConfig, PPOConfig
from onward.control.core.contract import EnvSpec
from onward.control.core.replay import Batch
from onward.control.networks.nets import MLP, NARROW, Ensemble


class Layers:
    """The linear layers of ``network`` (without layer norm) in the memory of its flat parameters.

    ``network``: an MLP, or an ensemble of one member, after ``FlatParameters``.
    """

    def __init__(self, network: MLP | Ensemble) -> None:
        self.activation = network.activation
        self.layers = [(_matrix(w), b.detach().view(-1)) for w, b in network.layers]
        self.gradients = [(_matrix(w.grad), b.grad.view(-1)) for w, b in network.layers]  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Returns the input of each layer, and the outputs at last."""
        found = [x]
        for weight, bias in self.layers:
            if 1 < weight.shape[1] <= NARROW and weight.is_contiguous():
                weight = weight.t().contiguous().t()
            x = torch.addmm(bias, x, weight)
            if len(found) < len(self.layers):
                if self.activation == "relu":
                    x.relu_()
                else:
                    np.tanh(x.numpy(), out=x.numpy())
            found.append(x)
        return found

    def backward(self, found: list[Tensor], gradient: Tensor) -> None:
        """Sets the gradients of all parameters from that at the outputs; ``found``: from ``forward``."""
        for depth in range(len(self.layers) - 1, -1, -1):
            x, (weight_into, bias_into) = found[depth], self.gradients[depth]
            torch.sum(gradient, 0, out=bias_into)
            _weight_gradient(x, gradient, weight_into)
            if depth == 0:
                return
            gradient = torch.mm(gradient, self.layers[depth][0].t())
            if self.activation == "relu":
                torch.ops.aten.threshold_backward.grad_input(gradient, x, 0, grad_input=gradient)
            else:
                torch.ops.aten.tanh_backward.grad_input(gradient, x, grad_input=gradient)


class ClippedPolicyLoss:
    """PPO's loss of discrete actions, without masks and with unclipped values: see ``PPO._loss``."""

    def __init__(self, policy: MLP, value: MLP) -> None:
        self.policy, self.value = Layers(policy), Layers(value)

    @staticmethod
    def fits(spec: EnvSpec, config: PPOConfig) -> bool:
        """True where the loss of these settings is this one."""
        plain = spec.layout.flat and not config.layer_norm
        return plain and spec.actions.kind == "discrete" and config.value_clip is None

    @torch.no_grad()
    def __call__(
        self, batch: dict[str, Any], clip: float, value_coef: float, entropy_coef: float
    ) -> tuple[float, float, Tensor]:
        """Sets all gradients. Returns the policy's and the values' loss, and log r (B,)."""
        rows, advantages = torch.from_numpy(batch["obs"]), batch["advantages"]
        of_policy, of_value = self.policy.forward(rows), self.value.forward(rows)
        every = torch.log_softmax(of_policy[-1], dim=1).numpy()
        taken, share = (np.arange(len(every)), batch["actions"]), np.float32(1 / len(every))
        log_ratio = every[taken] - batch["log_probs"]
        with np.errstate(over="ignore", invalid="ignore"):  # the trainer reports what is not finite
            free = np.exp(log_ratio) * advantages
            bound = advantages + np.float32(clip) * np.abs(advantages)
            errors = of_value[-1].numpy() - batch["returns"]
            # d r A / d log π = r A, and 0 where the bound is the smaller one; d log π(a) / d logits = 1ₐ − π
            at_log_probs = np.where(free <= bound, free, np.float32(0)) * -share
            probs = np.exp(every)
            gradient = probs * -at_log_probs[:, None]
            gradient[taken] += at_log_probs
            if entropy_coef:  # d H / d logits = −π (log π + H)
                entropies = -(probs * every).sum(axis=1, keepdims=True)
                gradient += np.float32(entropy_coef) * share * probs * (every + entropies)
        self.policy.backward(of_policy, torch.from_numpy(gradient))
        self.value.backward(of_value, torch.from_numpy(errors * np.float32(2 * value_coef * share)))
        policy_loss = -float(np.minimum(free, bound).sum() * share)
        return policy_loss, float((errors**2).sum() * share), torch.from_numpy(log_ratio)


class HuberLoss:
    """DQN's loss of discrete actions with one network, neither dueling nor prioritised: see ``DQN._loss``."""

    def __init__(self, online: Ensemble) -> None:
        self.online = Layers(online)

    @staticmethod
    def fits(spec: EnvSpec, config: DQNConfig) -> bool:
        """True where the loss of these settings is this one."""
        plain = spec.layout.flat and not (config.layer_norm or config.dueling or config.prioritised)
        return plain and spec.actions.kind == "discrete" and config.ensemble == 1 and config.loss == "huber"

    @torch.no_grad()
    def __call__(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Sets all gradients, from ``targets`` (1, B). Returns the loss and the actions' values (1, B)."""
        found = self.online.forward(batch.obs)
        q, rows = found[-1].numpy(), len(found[-1])
        taken = (np.arange(rows), batch.actions.numpy())
        chosen = q[taken]
        errors = chosen - targets.numpy()[0]
        slopes = np.clip(errors, -1, 1)
        gradient = np.zeros_like(q)
        gradient[taken] = slopes / rows
        self.online.backward(found, torch.from_numpy(gradient))
        loss = (slopes * (errors - np.float32(0.5) * slopes)).mean()
        return torch.tensor(float(loss)), torch.from_numpy(chosen[None])


def _matrix(weight: Tensor) -> Tensor:
    """Returns (in, out) of (out, in) or (1, in, out), as a view."""
    return weight.detach().t() if weight.dim() == 2 else weight.detach()[0]


def _weight_gradient(x: Tensor, gradient: Tensor, into: Tensor) -> None:
    """``into`` (in, out) = xᵀ · gradient, in the faster orientation."""
    fan_in, fan_out = into.shape
    if into.is_contiguous():
        if 1 < fan_out <= NARROW:
            into.copy_(torch.mm(gradient.t(), x).t())
        else:
            torch.mm(x.t(), gradient, out=into)
    elif fan_in <= NARROW:
        into.copy_(torch.mm(x.t(), gradient))
    else:
        torch.mm(gradient.t(), x, out=into.t())
