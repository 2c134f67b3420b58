"""Policy and value networks side by side: what PPO, A3C and REINFORCE learn with.

The one thing to know: policy and value share no layer but the image encoder, and all their parameters are
one flat tensor. Acting goes through numpy unless there are images; both see a change of parameters at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onward.control.config import NetworkConfig
from onward.control.contract import EnvSpec, Flags
from onward.control.dists import Gaussian, distribution
from onward.control.flat import FlatParameters
from onward.control.nets import Encoder, TensorObs, mlp, to_tensor
from onward.control.networks_numpy import NumpyMLP
from onward.control.normalise import RunningNorm
from onward.control.policy import Layer, PolicyParts
from onward.control.spaces import Obs
from onward.errors import ControlError

Floats = NDArray[np.float32]
IMAGE_FEATURES = 128
CHUNK = 4096
"""Rows in one pass without gradient: what images of them take must fit the memory."""


class ActorCritic:
    """``values``: heads of the value network. ``log_std``: where a Gaussian policy starts."""

    def __init__(
        self,
        spec: EnvSpec,
        config: NetworkConfig,
        generator: torch.Generator,
        values: int = 1,
        log_std: float = 0.0,
    ) -> None:
        self.spec = spec
        self.encoder = Encoder(spec.layout, IMAGE_FEATURES, generator)
        self.dist = distribution(spec.actions, log_std)
        shape = (self.encoder.width, *config.hidden)
        options = (config.activation, config.layer_norm)
        self.policy = mlp((*shape, self.dist.width), *options, gain=0.01, generator=generator)
        self.value = mlp((*shape, values), *options, gain=1.0, generator=generator)
        self.flat = FlatParameters([self.encoder, self.policy, self.dist, self.value])
        self._dist_parameters = list(self.dist.parameters())
        self._numpy_policy = NumpyMLP(self.policy.arrays())

    def forward(self, obs: TensorObs) -> tuple[Tensor, Tensor]:
        """Outputs of the policy (B, …) and values (B, heads)."""
        features = self.encoder(obs)
        return self.policy(features), self.value(features)

    def record(self, obs: TensorObs) -> tuple[Tensor, Tensor, Callable[[Tensor], None]]:
        """As ``forward``, and what sets all gradients to those of a loss of these outputs and values."""
        if isinstance(obs, dict):
            return *self.forward(obs), self._by_autograd
        outputs, policy_back = self.policy.record(obs)
        values, value_back = self.value.record(obs)
        leaves = [outputs.requires_grad_(), values.requires_grad_(), *self._dist_parameters]

        def back(loss: Tensor) -> None:
            self.flat.attach()
            at_outputs, at_values, *own = torch.autograd.grad(loss, leaves, materialize_grads=True)
            policy_back(at_outputs)
            value_back(at_values)
            for p, gradient in zip(self._dist_parameters, own, strict=True):
                assert p.grad is not None
                p.grad.copy_(gradient)

        return outputs, values, back

    def _by_autograd(self, loss: Tensor) -> None:
        self.flat.zero_grad()
        loss.backward()

    def values(self, obs: Obs) -> Floats:
        """(B, heads) for any number of rows, without gradient."""
        return _in_chunks(lambda rows: self.value(self.encoder(rows)), to_tensor(obs)).numpy()

    def outputs(self, obs: TensorObs) -> Tensor:
        """(B, width) of the policy for any number of rows, without gradient."""
        return _in_chunks(lambda rows: self.policy(self.encoder(rows)), obs)

    def act(self, obs: Obs, rng: np.random.Generator, mask: Flags | None) -> NDArray[Any]:
        """Actions drawn for ``obs`` (N, …), which is what the networks see (normalised, if anything is)."""
        if not isinstance(obs, dict):
            return self.dist.sample(self._numpy_policy(obs), rng, mask)
        return self.dist.sample(self.outputs(to_tensor(obs)).numpy(), rng, mask)

    @torch.no_grad()
    def load_parameters(self, saved: Tensor) -> None:
        """All parameters, as ``flat.tensor`` has them. Raises ControlError for another network's."""
        if saved.shape != self.flat.tensor.shape:
            raise ControlError(
                f"The saved state has {saved.numel()} parameters, these networks have "
                f"{self.flat.tensor.numel()}: resume with the settings it was saved with."
            )
        self.flat.tensor.copy_(saved)

    def parts(self, norm: RunningNorm | None = None, clip: float = 10.0) -> PolicyParts:
        """What acts, as copies; without the value network."""
        encoder = {name: p.detach().numpy().copy() for name, p in self.encoder.state_dict().items()}
        return PolicyParts(
            layout=self.spec.layout,
            actions=self.spec.actions,
            head="gaussian" if isinstance(self.dist, Gaussian) else "logits",
            layers=[
                Layer(w.copy(), b.copy(), activation, None if ln is None else (ln[0].copy(), ln[1].copy()))
                for w, b, activation, ln in self.policy.arrays()
            ],
            log_std=self.dist.log_std.detach().numpy().copy() if isinstance(self.dist, Gaussian) else None,
            norm=None if norm is None else (norm.mean.copy(), norm.var.copy(), clip),
            images=encoder or None,
        )


@torch.no_grad()
def _in_chunks(network: Callable[[TensorObs], Tensor], obs: TensorObs) -> Tensor:
    count = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
    if count <= CHUNK:
        return network(obs)
    chunks = (slice(at, at + CHUNK) for at in range(0, count, CHUNK))
    return torch.cat([network(rows_of(obs, chunk)) for chunk in chunks])


def rows_of(obs: TensorObs, rows: Any) -> TensorObs:
    """``obs[rows]`` in every part."""
    return {key: tensor[rows] for key, tensor in obs.items()} if isinstance(obs, dict) else obs[rows]


def annealed(value: float, schedule: str, progress: float) -> float:
    """``value``, or what is left of it at ``progress`` 0 … 1 where ``schedule`` is linear."""
    return value * (1.0 - progress) if schedule == "linear" else value
