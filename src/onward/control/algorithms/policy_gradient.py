"""Shared by PPO, A3C and REINFORCE: policy and value networks, Adam over both, and normalised observations.

Invariants: networks receive observations through ``_seen``, in acting and in learning alike. The statistics
change only where the algorithm updates them, never in between.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from onward.control.algorithms.actor_critic import ActorCritic
from onward.control.algorithms.base import Algorithm, take_norm
from onward.control.core.config import NetworkConfig
from onward.control.core.contract import EnvSpec
from onward.control.core.normalise import normalised, observation_norm
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionKind, Obs
from onward.control.policies.policy import PolicyParts


class PolicyGradient(Algorithm):
    """Base of policy-gradient algorithms. ``heads``: of the value network. ``log_std``: a Gaussian policy's
    first value. ``eps``: Adam's."""

    action_kinds: ClassVar[tuple[ActionKind, ...]] = ("discrete", "multi_discrete", "multi_binary", "box")
    network: ClassVar[type[ActorCritic]] = ActorCritic

    def __init__(
        self,
        spec: EnvSpec,
        num: int,
        config: NetworkConfig,
        seeds: Seeds,
        *,
        heads: int = 1,
        log_std: float = 0.0,
        eps: float = 1e-5,
    ) -> None:
        self.spec, self.num = spec, num
        self.net = self.network(spec, config, seeds.torch_generator("weights"), heads, log_std)
        self.optimiser = self.net.flat.adam(config.learning_rate, eps=eps)
        self.norm = observation_norm(spec.layout, config)

    def _seen(self, obs: Obs) -> Obs:
        """Returns ``obs`` in the form that the networks receive."""
        return normalised(self.norm, obs, self.config.obs_clip)

    def networks(self) -> PolicyParts:
        return self.net.parts(self.norm, self.config.obs_clip)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "parameters": self.net.flat.tensor.detach().clone(),
            "adam": self.optimiser.state_dict(),
            "norm": None if self.norm is None else self.norm.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start_from(state)
        self.steps = int(state["steps"])

    def start_from(self, state: dict[str, Any]) -> None:
        self.net.load_parameters(torch.as_tensor(state["parameters"]))
        self.optimiser.load_state_dict(state["adam"])
        take_norm(self.norm, state["norm"])
