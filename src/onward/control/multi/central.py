"""PPO with a central critic (MAPPO, Yu et al. 2021, 2103.01955): central training, decentralised execution.

The policy network sees the first ``TeamSpec.own`` numbers of an observation: what the agent itself sees. The
value network sees all of them, the global state included. Only the policy is exported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from onward.control.algorithms.actor_critic import ActorCritic, Floats, in_chunks
from onward.control.algorithms.ppo import PPO
from onward.control.core.contract import EnvSpec, Flags
from onward.control.core.normalise import RunningNorm
from onward.control.core.spaces import Layout, Obs
from onward.control.multi.parallel import TeamSpec, numbers
from onward.control.networks.nets import TensorObs
from onward.control.policies.policy import PolicyParts


class CentralActorCritic(ActorCritic):
    """Policy of the own part, values of the whole observation."""

    def _policy_layout(self, spec: EnvSpec) -> Layout:
        self.own = cast(TeamSpec, spec).own
        return numbers(self.own)

    def _value_width(self) -> int:
        return self.spec.layout.width

    def __call__(self, obs: TensorObs) -> tuple[Tensor, Tensor]:
        assert not isinstance(obs, dict)
        return self.policy(obs[:, : self.own]), self.value(obs)

    def values(self, obs: Obs) -> Floats:
        return in_chunks(lambda rows: self.value(cast(Tensor, rows)), obs)

    def outputs(self, obs: Obs) -> Floats:
        return in_chunks(lambda rows: self.policy(cast(Tensor, rows)[:, : self.own]), obs)

    def act(self, obs: Obs, rng: np.random.Generator, mask: Flags | None) -> NDArray[Any]:
        assert not isinstance(obs, dict)
        own = np.ascontiguousarray(obs[:, : self.own])
        return self.dist.sample(self._numpy_policy(own), rng, mask)

    def parts(self, norm: RunningNorm | None = None, clip: float = 10.0) -> PolicyParts:
        found = super().parts(None, clip)
        if norm is None:
            return found
        return replace(found, norm=(norm.mean[: self.own].copy(), norm.var[: self.own].copy(), clip))


class CentralPPO(PPO):
    """PPO of a team: one policy for all agents, one critic of the global state."""

    network: ClassVar[type[ActorCritic]] = CentralActorCritic
