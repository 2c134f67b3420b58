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
from onward.control.networks.dists import tanh_gaussian

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

    def policy(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Samples actions (B, dim) from the actor's outputs; returns them and their log-probs (B,)."""
        noise = torch.randn(len(outputs), self.dim, generator=self._torch_generator)
        return tanh_gaussian(outputs, noise, LOG_STD)

    @torch.no_grad()
    def targets(self, batch: Batch, alpha: float) -> Tensor:
        """Returns (B,) R + γᵐ · soft value of s′, which is 0 after a termination."""
        actions, log_probs = self.policy(self.actor(batch.next_obs))
        values = self.critic_target(batch.next_obs, actions).amin(dim=0)
        return batch.returns + batch.discount * (values - alpha * log_probs)

    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        alpha = math.exp(self.log_alpha.item())
        actions, log_probs = self.policy(self.actor(batch.obs))
        if self.config.temperature is None:
            self._fit_temperature(log_probs.detach())
        critic_loss, q = self._fit_critics(batch.obs, batch.actions, self.targets(batch, alpha))

        actor_loss = (alpha * log_probs - self.critic(batch.obs, actions).amin(dim=0)).mean()
        self._actor.backward(actor_loss)
        self.optimisers["actor"].step()

        self._critic_target.lerp_from(self._critic, self.config.tau)
        return {
            "critic_loss": critic_loss, "actor_loss": actor_loss.detach(), "q_mean": q,
            "entropy": -log_probs.detach(), "temperature": torch.tensor(alpha),
        }  # fmt: skip

    def _fit_temperature(self, log_probs: Tensor) -> None:
        """Makes one step on −log α · (log π + target entropy): α grows while the entropy is too low."""
        self._temperature.backward(-(self.log_alpha * (log_probs + self.target_entropy)).mean())
        self.optimisers["temperature"].step()
