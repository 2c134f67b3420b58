"""Shared by SAC and DDPG: actor, critics, action noise, and which parameters are frozen during which update.

Actions are −1 … 1 everywhere here, including warm-up and noise; the environment scales them. The critics are
one ``Ensemble``, so that two cost one product per layer.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onward.control.algorithms.off_policy import OffPolicy
from onward.control.core.config import ContinuousConfig
from onward.control.core.contract import EnvSpec, Flags, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionKind, Obs
from onward.control.networks.in_numpy import NumpyMLP
from onward.control.networks.nets import MLP, Encoder, Ensemble
from onward.control.policies.policy import PolicyParts

Floats = NDArray[np.float32]


class ActionNoise:
    """Noise (N, dim) of deviation ``std``: independent (``gaussian``) or Ornstein-Uhlenbeck (``ou``).

    The process is x ← x − θ·dt·x + σ·√dt·N(0, 1) with θ = 0.15 and dt = 0.01 (Lillicrap et al. 2016, section
    7, with the time step of peer libraries). It drifts with a stationary deviation of about σ/√(2θ) = 1.83 σ,
    and restarts at 0 with each episode.
    """

    theta, dt = 0.15, 0.01

    def __init__(self, kind: str, std: float, num: int, dim: int) -> None:
        self.kind, self.std = kind, std
        self.state = np.zeros((num, dim), np.float32)

    def sample(self, rng: np.random.Generator) -> Floats:
        """Returns the next noise (N, dim) of every slot."""
        draw = np.float32(self.std) * rng.standard_normal(self.state.shape, np.float32)
        if self.kind == "ou":
            self.state += (
                np.float32(math.sqrt(self.dt)) * draw - np.float32(self.theta * self.dt) * self.state
            )
            return self.state.copy()
        return draw

    def reset(self, ended: Flags) -> None:
        """Restarts the noise of slots whose episode ended."""
        self.state[ended] = 0.0


class Actor(nn.Module):
    """Actor network: (B, …) → (B, outputs), before any squashing."""

    def __init__(
        self, encoder: Encoder, outputs: int, config: ContinuousConfig, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.net = MLP(
            (encoder.width, *config.hidden, outputs), config.activation, config.layer_norm, None, rng
        )

    def forward(self, obs: Any) -> Tensor:
        return self.net(self.encoder(obs))


class Critics(nn.Module):
    """Critic networks: Q(s, a) of E critics, (B, …), (B, dim) → (E, B)."""

    def __init__(
        self, encoder: Encoder, dim: int, count: int, config: ContinuousConfig, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = encoder
        sizes = (encoder.width + dim, *config.hidden, 1)
        self.ensemble = Ensemble(count, sizes, config.activation, config.layer_norm, None, rng)

    def forward(self, obs: Any, actions: Tensor, members: int | None = None) -> Tensor:
        """``members``: computes only the first ones."""
        return self.ensemble(torch.cat((self.encoder(obs), actions), dim=1), members).squeeze(-1)


class ContinuousControl(OffPolicy):
    """Base of SAC and DDPG. A subclass defines how to act (``_act``) and how to learn (``_learn``)."""

    action_kinds: ClassVar[tuple[ActionKind, ...]] = ("box",)

    def __init__(
        self, spec: EnvSpec, num: int, config: ContinuousConfig, seeds: Seeds, outputs: int, critics: int
    ) -> None:
        super().__init__(spec, num, config, seeds)
        self.dim = spec.actions.dim
        rng = self._init_generator
        self.actor = Actor(self._encoder(), outputs, config, rng)
        self.critic, self.critic_target = (
            Critics(self._encoder(), self.dim, critics, config, rng) for _ in range(2)
        )
        self._actor = self._trained("actor", [self.actor])
        self._critic = self._trained("critic", [self.critic])
        self._critic_target = self._target("critic_target", [self.critic_target], self._critic)
        self._acting = NumpyMLP(self.actor.net.arrays())
        noisy = config.action_noise != "none"
        self.noise = ActionNoise(config.action_noise, config.noise_std, num, self.dim) if noisy else None

    @abstractmethod
    def _act(self, outputs: Floats) -> Floats:
        """Returns exploring actions (N, dim) in −1 … 1 from the actor's outputs."""

    def act(self, obs: Obs, mask: Flags | None) -> NDArray[Any]:
        """Returns uniform actions in the warm-up, then the actor's with noise, clipped to −1 … 1."""
        if self.warming_up:
            uniform = self._explore.random((self.num, self.dim), np.float32)
            return np.float32(2) * uniform - np.float32(1)
        actions = self._act(self._acting(self._features(self.actor.encoder, obs)))
        if self.noise is not None:
            actions = np.clip(actions + self.noise.sample(self._explore), -1.0, 1.0)
        return actions

    def observe(self, obs: Obs, actions: NDArray[Any], step: Step) -> None:
        super().observe(obs, actions, step)
        if self.noise is not None:
            self.noise.reset(step.ended)

    def _fit_critics(self, obs: Any, actions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Makes one step on ½ Σ over critics of the mean squared error; returns (loss, values)."""
        q = self.critic(obs, actions)
        loss = 0.5 * (q - targets).square().mean(dim=1).sum()
        self._critic.backward(loss)
        self.optimisers["critic"].step()
        return loss.detach(), q.detach()

    def networks(self) -> PolicyParts:
        return PolicyParts(
            self.spec.layout,
            self.spec.actions,
            "tanh",
            [layer.copied() for layer in self.actor.net.arrays()],
            norm=self._norm_parts(),
            images=self._image_parts(self.actor.encoder),
        )

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"noise": None if self.noise is None else self.noise.state.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.noise is not None:
            self.noise.state = np.array(state["noise"])
