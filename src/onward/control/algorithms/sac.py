"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, 1812.05905).

Invariants: the value of a next state is soft, min Q − α log π, and a termination masks all of it, including
the entropy. Log-probs are of actions in −1 … 1, so the target entropy −dim means the same for every
environment.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from onward.control.algorithms.continuous import ContinuousControl, Floats
from onward.control.core.config import SACConfig
from onward.control.core.contract import EnvSpec
from onward.control.core.replay import Batch
from onward.control.core.seeds import Seeds
from onward.control.networks.dists import TanhGaussian

LOG_STD = (-20.0, 2.0)
"""Bounds of the log-deviation of actions before tanh (the paper's code)."""


class SAC(ContinuousControl):
    """SAC. Critics minimise ½ (Q(s, a) − R − γᵐ (min Q̄(s′, a′) − α log π(a′|s′)))², the actor minimises α
    log π(a|s) − min Q(s, a) through a = tanh(μ + σ ε), and α follows the entropy towards its target."""

    def __init__(self, spec: EnvSpec, num: int, config: SACConfig, seeds: Seeds) -> None:
        super().__init__(spec, num, config, seeds, outputs=2 * spec.actions.dim, critics=2)
        self.config: SACConfig = config
        self.target_entropy = -float(self.dim) if config.target_entropy is None else config.target_entropy
        start = 0.0 if config.temperature is None else math.log(config.temperature)
        self.log_alpha = nn.Parameter(torch.full((1,), start))
        self._temperature = self._trained("temperature", [nn.ParameterList([self.log_alpha])])

    def _act(self, outputs: Floats) -> Floats:
        mean, log_std = outputs[:, : self.dim], np.clip(outputs[:, self.dim :], *LOG_STD)
        noise = self._explore.standard_normal(mean.shape, np.float32)
        return np.tanh(mean + np.exp(log_std) * noise)

    def policy(self, outputs: Tensor) -> TanhGaussian:
        """Samples actions from the actor's outputs (B, 2 · dim)."""
        noise = torch.randn(len(outputs), self.dim, generator=self._torch_generator)
        return TanhGaussian(outputs.numpy(), noise.numpy(), LOG_STD)

    @torch.no_grad()
    def targets(self, batch: Batch, alpha: float) -> Tensor:
        """Returns (B,) R + γᵐ · soft value of s′, which is 0 after a termination."""
        drawn = self.policy(self.actor(batch.next_obs))
        values = self.critic_target(batch.next_obs, torch.from_numpy(drawn.actions)).amin(dim=0)
        soft = values - torch.from_numpy(np.float32(alpha) * drawn.log_probs)
        return batch.returns + batch.discount * soft

    @torch.no_grad()
    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        alpha = math.exp(self.log_alpha.item())
        outputs, actor_back = self.actor.record(batch.obs)
        drawn = self.policy(outputs)
        log_probs = torch.from_numpy(drawn.log_probs)
        if self.config.temperature is None:
            self._fit_temperature(log_probs)
        critic_loss, q = self._fit_critics(batch.obs, batch.actions, self.targets(batch, alpha))

        values, values_back = self.critic.of_actions(batch.obs, torch.from_numpy(drawn.actions))
        smaller, which = values.min(dim=0, keepdim=True)
        share = 1 / len(log_probs)
        at_actions = values_back(torch.zeros_like(values).scatter_(0, which, -share))
        at_log_probs = np.full(len(log_probs), alpha * share, np.float32)
        actor_back(torch.from_numpy(drawn.back(at_actions.numpy(), at_log_probs)))
        self.optimisers["actor"].step()

        self._critic_target.lerp_from(self._critic, self.config.tau)
        return {
            "critic_loss": critic_loss, "actor_loss": alpha * log_probs - smaller, "q_mean": q,
            "entropy": -log_probs, "temperature": torch.tensor(alpha),
        }  # fmt: skip

    def _fit_temperature(self, log_prob: Tensor) -> None:
        """Makes one step on −log α · (log π + target entropy): α grows while the entropy is too low."""
        self._temperature.grad.fill_(-(log_prob.mean() + self.target_entropy))
        self.optimisers["temperature"].step()
