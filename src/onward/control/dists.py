"""Distributions over actions: what a policy network's outputs mean, sampled in numpy and scored in PyTorch.

The one thing to know: every distribution is scored by hand-written formulas on the raw outputs, no objects of
``torch.distributions`` and no validation, because at these sizes that is where the time goes. Illegal actions
get a logit of −1e9, finite so that a slot without any legal action (a dead one) stays free of NaN.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from onward.control.contract import Flags
from onward.control.spaces import ActionSpec
from onward.errors import ControlError

Floats = NDArray[np.float32]
ILLEGAL = -1e9
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class ActionDistribution(nn.Module):
    """Of one kind of action space. Learned numbers beside the network's output (log-stds) are parameters."""

    width: int
    """Outputs the network needs."""

    @abstractmethod
    def score(self, outputs: Tensor, actions: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-prob (B,) of ``actions`` (as ``ActionSpec`` says) and entropy (B,), both in nats."""

    @abstractmethod
    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        """Actions (N, …) drawn from ``outputs`` (N, width)."""


class Categorical(ActionDistribution):
    """``discrete``: softmax over logits, sampled by Gumbel-max."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        self.width = choices

    def score(self, outputs: Tensor, actions: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        log_probs = torch.log_softmax(_legal(outputs, mask), dim=1)
        return log_probs.gather(1, actions.unsqueeze(1)).squeeze(1), -(log_probs.exp() * log_probs).sum(1)

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        return np.argmax(_legal_array(outputs, mask) + rng.gumbel(size=outputs.shape), axis=1)


class MultiCategorical(ActionDistribution):
    """``multi_discrete``: independent components, logits and masks one after the other."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = sizes
        self.width = sum(sizes)
        self.ends = tuple(int(end) for end in np.cumsum(sizes))

    def score(self, outputs: Tensor, actions: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total = entropy = torch.zeros(len(outputs))
        for component, logits in enumerate(_legal(outputs, mask).split(self.sizes, dim=1)):
            log_probs = torch.log_softmax(logits, dim=1)
            total = total + log_probs.gather(1, actions[:, component : component + 1]).squeeze(1)
            entropy = entropy - (log_probs.exp() * log_probs).sum(1)
        return total, entropy

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        scores = _legal_array(outputs, mask) + rng.gumbel(size=outputs.shape)
        starts = (0, *self.ends[:-1])
        parts = [scores[:, start:end].argmax(axis=1) for start, end in zip(starts, self.ends, strict=True)]
        return np.stack(parts, axis=1)


class Bernoulli(ActionDistribution):
    """``multi_binary``: independent bits, outputs are logits of 1. It takes no masks."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.width = bits

    def score(self, outputs: Tensor, actions: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # log p(a) = a·x − softplus(x), since log sigmoid(x) = x − softplus(x).
        softplus = F.softplus(outputs)
        return (actions * outputs - softplus).sum(1), (softplus - torch.sigmoid(outputs) * outputs).sum(1)

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        # x > logit(u) with probability sigmoid(x); a logistic draw is the logit of a uniform one.
        return (outputs > rng.logistic(size=outputs.shape)).astype(np.int64)


class Gaussian(ActionDistribution):
    """``box``: outputs are means, log-stds are parameters that do not depend on the observation.

    Samples are not clipped: what is stored is what was scored, and the environment clips for itself.
    """

    def __init__(self, dim: int, log_std: float = 0.0) -> None:
        super().__init__()
        self.width = dim
        self.log_std = nn.Parameter(torch.full((dim,), log_std))

    def score(self, outputs: Tensor, actions: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return gaussian_log_prob(actions, outputs, self.log_std), self.entropy().expand(len(outputs))

    def entropy(self) -> Tensor:
        """Scalar: Σ (log σ + ½ log 2πe)."""
        return self.log_std.sum() + self.width * (0.5 + _HALF_LOG_2PI)

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        std = np.exp(self.log_std.detach().numpy())
        return outputs + std * rng.standard_normal(outputs.shape, dtype=np.float32)


def distribution(actions: ActionSpec, log_std: float = 0.0) -> ActionDistribution:
    """The distribution of an action space; ``log_std`` is where a Gaussian starts."""
    if actions.kind == "discrete":
        return Categorical(actions.sizes[0])
    if actions.kind == "multi_discrete":
        return MultiCategorical(actions.sizes)
    if actions.kind == "multi_binary":
        return Bernoulli(actions.dim)
    if actions.kind == "box":
        return Gaussian(actions.dim, log_std)
    raise ControlError(
        f"An action space of kind {actions.kind!r} has no distribution: "
        "use discrete, multi_discrete, multi_binary or box."
    )


def gaussian_log_prob(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """(B,) log-density of ``x`` (B, dim) under independent Gaussians; ``log_std`` (dim,) or (B, dim)."""
    z = (x - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - _HALF_LOG_2PI).sum(-1)


def tanh_gaussian_log_prob(u: Tensor, mean: Tensor, log_std: Tensor, scale: Tensor | None = None) -> Tensor:
    """(B,) log-density of ``a = scale · tanh(u)`` where u is Gaussian; takes u, so tanh is never inverted.

    log N(u) − Σ log(1 − tanh² u) − Σ log scale, with log(1 − tanh² u) = 2 (log 2 − u − softplus(−2u)), which
    neither cancels nor takes the log of 0 (Haarnoja et al. 2018, appendix C). ``scale`` (dim,): half the
    width of the action's bounds; None for densities of actions in −1 … 1, as everywhere in this package.
    """
    log_slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    log_prob = gaussian_log_prob(u, mean, log_std) - log_slope.sum(-1)
    return log_prob if scale is None else log_prob - scale.log().sum()


def tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Reparameterised action tanh(mean + σ·noise) (B, dim) in −1 … 1 and its log-prob (B,)."""
    u = mean + log_std.exp() * noise
    return torch.tanh(u), tanh_gaussian_log_prob(u, mean, log_std)


def _legal(logits: Tensor, mask: Tensor | None) -> Tensor:
    return logits if mask is None else logits.masked_fill(~mask, ILLEGAL)


def _legal_array(logits: Floats, mask: Flags | None) -> Floats:
    return logits if mask is None else np.where(mask, logits, np.float32(ILLEGAL))
