"""DDPG (Lillicrap et al. 2016, 1509.02971), and TD3 (Fujimoto et al. 2018, 1802.09477) as its options.

Invariants: with ``policy_delay`` d the actor and the targets move at gradient steps d, 2d, 3d …, counted from
1 over the whole run, so bursts of any size preserve the ratio.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onward.control.algorithms.continuous import Actor, ContinuousControl, Floats
from onward.control.core.config import DDPGConfig
from onward.control.core.contract import EnvSpec
from onward.control.core.replay import Batch
from onward.control.core.seeds import Seeds


class DDPG(ContinuousControl):
    """DDPG. Critics minimise ½ (Q(s, a) − R − γᵐ min Q̄(s′, μ̄(s′) + clipped noise))².

    The actor minimises −Q₁(s, μ(s)).
    """

    def __init__(self, spec: EnvSpec, num: int, config: DDPGConfig, seeds: Seeds) -> None:
        super().__init__(spec, num, config, seeds, outputs=spec.actions.dim, critics=2 if config.twin else 1)
        self.config: DDPGConfig = config
        self.actor_target = Actor(self._encoder(), self.dim, config, self._init_generator)
        self._actor_target = self._target("actor_target", [self.actor_target], self._actor)
        self._metrics: dict[str, Tensor] = {}

    def _act(self, outputs: Floats) -> Floats:
        return np.tanh(outputs)

    def targets(self, batch: Batch) -> Tensor:
        """Returns (B,) R + γᵐ · the target critics' smaller value of the target action, smoothed by noise."""
        with torch.no_grad():
            actions = torch.tanh(self.actor_target(batch.next_obs))
            if self.config.target_noise:
                noise = torch.randn(actions.shape, generator=self._torch_generator) * self.config.target_noise
                limit = self.config.target_noise_clip
                actions = (actions + noise.clamp_(-limit, limit)).clamp_(-1.0, 1.0)
            value = self.critic_target(batch.next_obs, actions).amin(dim=0)
            return batch.returns + batch.discount * value

    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        loss, q = self._fit_critics(batch.obs, batch.actions, self.targets(batch))
        if (self.updates + 1) % self.config.policy_delay == 0:
            self._metrics["actor_loss"] = self._fit_actor(batch.obs)
            self._critic_target.lerp_from(self._critic, self.config.tau)
            self._actor_target.lerp_from(self._actor, self.config.tau)
        return {"critic_loss": loss, "q_mean": q} | self._metrics

    def _fit_actor(self, obs: Any) -> Tensor:
        loss = -self.critic(obs, torch.tanh(self.actor(obs)), members=1).mean()
        self._actor.backward(loss)
        self.optimisers["actor"].step()
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"metrics": dict(self._metrics)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._metrics = dict(state["metrics"])
