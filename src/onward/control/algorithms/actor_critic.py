"""Policy and value networks of PPO, A3C and REINFORCE.

Policy and value share no layer except the image encoder, and all their parameters are one flat tensor. Acting
uses numpy unless there are images. The arrays share the parameters' memory, so a change takes effect in both
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onward.control.core.config import NetworkConfig
from onward.control.core.contract import EnvSpec, Flags
from onward.control.core.normalise import RunningNorm
from onward.control.core.spaces import Layout, Obs, take
from onward.control.networks.dists import Gaussian, distribution
from onward.control.networks.flat import FlatParameters
from onward.control.networks.in_numpy import NumpyMLP
from onward.control.networks.nets import MLP, Encoder, TensorObs, to_tensor
from onward.control.policies.policy import PolicyParts
from onward.errors import ControlError

Floats = NDArray[np.float32]
IMAGE_FEATURES = 128
CHUNK = 4096
"""Rows in one pass without gradient; their images must fit into the memory."""


class ActorCritic:
    """Policy and value networks. ``values``: number of value heads. ``log_std``: a Gaussian's first value."""

    def __init__(
        self,
        spec: EnvSpec,
        config: NetworkConfig,
        generator: torch.Generator,
        values: int = 1,
        log_std: float = 0.0,
    ) -> None:
        self.spec = spec
        self.layout = self._policy_layout(spec)
        self.encoder = Encoder(self.layout, IMAGE_FEATURES, generator)
        self.dist = distribution(spec.actions, log_std)
        options = (config.activation, config.layer_norm)
        acting = (self.encoder.width, *config.hidden, self.dist.width)
        judging = (self._value_width(), *config.hidden, values)
        self.policy = MLP(acting, *options, gain=0.01, generator=generator)
        self.value = MLP(judging, *options, gain=1.0, generator=generator)
        self.flat = FlatParameters([self.encoder, self.policy, self.dist, self.value])
        self._numpy_policy = NumpyMLP(self.policy.arrays())

    def _policy_layout(self, spec: EnvSpec) -> Layout:
        """Returns the layout of what the policy sees."""
        return spec.layout

    def _value_width(self) -> int:
        """Returns the number of inputs of the value network."""
        return self.encoder.width

    def __call__(self, obs: TensorObs) -> tuple[Tensor, Tensor]:
        """Returns the policy's outputs (B, width) and values (B, heads), for a loss."""
        features = self.encoder(obs)
        return self.policy(features), self.value(features)

    def values(self, obs: Obs) -> Floats:
        """Returns values (B, heads) for any number of rows, without gradient."""
        return in_chunks(lambda rows: self.value(self.encoder(rows)), obs)

    def outputs(self, obs: Obs) -> Floats:
        """Returns the policy's outputs (B, width) for any number of rows, without gradient."""
        return in_chunks(lambda rows: self.policy(self.encoder(rows)), obs)

    def act(self, obs: Obs, rng: np.random.Generator, mask: Flags | None) -> NDArray[Any]:
        """Samples actions for ``obs`` (N, …), which is already normalised where normalisation is on."""
        outputs = self.outputs(obs) if isinstance(obs, dict) else self._numpy_policy(obs)
        return self.dist.sample(outputs, rng, mask)

    @torch.no_grad()
    def load_parameters(self, saved: Tensor) -> None:
        """Sets all parameters, in the form of ``flat.tensor``. Raises ControlError where the size differs."""
        if saved.shape != self.flat.tensor.shape:
            raise ControlError(
                f"The saved state has {saved.numel()} parameters, these networks have "
                f"{self.flat.tensor.numel()}: resume with the settings it was saved with."
            )
        self.flat.tensor.copy_(saved)

    def parts(self, norm: RunningNorm | None = None, clip: float = 10.0) -> PolicyParts:
        """Returns copies of the parts that act, without the value network."""
        encoder = {name: p.detach().numpy().copy() for name, p in self.encoder.state_dict().items()}
        return PolicyParts(
            layout=self.layout,
            actions=self.spec.actions,
            head="gaussian" if isinstance(self.dist, Gaussian) else "logits",
            layers=[layer.copied() for layer in self.policy.arrays()],
            log_std=self.dist.log_std.detach().numpy().copy() if isinstance(self.dist, Gaussian) else None,
            norm=None if norm is None else (norm.mean.copy(), norm.var.copy(), clip),
            images=encoder or None,
        )


@torch.no_grad()
def in_chunks(network: Callable[[TensorObs], Tensor], obs: Obs) -> Floats:
    count = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
    if count <= CHUNK:
        return network(to_tensor(obs)).numpy()
    chunks = (np.s_[at : at + CHUNK] for at in range(0, count, CHUNK))
    return np.concatenate([network(to_tensor(take(obs, chunk))).numpy() for chunk in chunks])


def annealed(value: float, schedule: str, progress: float) -> float:
    """Returns ``value``; where ``schedule`` is linear, it falls to 0 while ``progress`` goes from 0 to 1."""
    return value * (1.0 - progress) if schedule == "linear" else value
