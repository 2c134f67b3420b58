"""Action distributions of policy networks: sampling, log-probabilities and entropies.

Scores are torch, for losses; samples are numpy, for acting. Illegal actions get a logit of −1e9. It is
finite, so that a slot without any legal action (a dead one) produces no NaN.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from onward.control.core.contract import Flags
from onward.control.core.spaces import ActionSpec
from onward.errors import ControlError

Floats = NDArray[np.float32]
ILLEGAL = -1e9
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Scores(NamedTuple):
    """Log-probabilities of a batch of actions, and the entropies of their distributions, in nats."""

    log_probs: Tensor
    """(B,)"""
    entropies: Callable[[], Tensor]
    """Returns (B,); many losses do without."""


class ActionDistribution(nn.Module):
    """Distribution over one kind of action space. Its own learned numbers (log-stds) are parameters."""

    width: int
    """Outputs that the network must have."""

    @abstractmethod
    def score(self, outputs: Tensor, actions: NDArray[Any], mask: Flags | None = None) -> Scores:
        """Scores ``actions`` (B, …; see ``ActionSpec``) under ``outputs`` (B, width) within ``mask``."""

    @abstractmethod
    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        """Samples actions (N, …) from ``outputs`` (N, width)."""


class Categorical(ActionDistribution):
    """Distribution of ``discrete`` actions: softmax over logits, sampled by Gumbel-max."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        self.width = choices

    def score(self, outputs: Tensor, actions: NDArray[Any], mask: Flags | None = None) -> Scores:
        if mask is not None:
            outputs = outputs.masked_fill(torch.from_numpy(~mask), ILLEGAL)
        every = torch.log_softmax(outputs, dim=1)
        taken = F.nll_loss(every, torch.from_numpy(actions), reduction="none")
        return Scores(-taken, lambda: -(every.exp() * every).sum(dim=1))

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        return np.argmax(_legal(outputs, mask) + rng.gumbel(size=outputs.shape), axis=1)


class MultiCategorical(ActionDistribution):
    """Distribution of ``multi_discrete`` actions: independent components, concatenated logits and masks."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.width = sum(sizes)
        ends = [int(end) for end in np.cumsum(sizes)]
        self._parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._components = [Categorical(size) for size in sizes]

    def score(self, outputs: Tensor, actions: NDArray[Any], mask: Flags | None = None) -> Scores:
        scores = [
            component.score(outputs[:, part], actions[:, i], None if mask is None else mask[:, part])
            for i, (component, part) in enumerate(zip(self._components, self._parts, strict=True))
        ]
        return Scores(
            torch.stack([each.log_probs for each in scores]).sum(dim=0),
            lambda: torch.stack([each.entropies() for each in scores]).sum(dim=0),
        )

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        scores = _legal(outputs, mask) + rng.gumbel(size=outputs.shape)
        return np.stack([scores[:, part].argmax(axis=1) for part in self._parts], axis=1)


class Bernoulli(ActionDistribution):
    """Distribution of ``multi_binary`` actions: independent bits; outputs are logits of 1. Ignores masks.

    log p(a) = a x − softplus(x), since log sigmoid(x) = x − softplus(x).
    """

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.width = bits

    def score(self, outputs: Tensor, actions: NDArray[Any], mask: Flags | None = None) -> Scores:
        softplus = F.softplus(outputs)
        return Scores(
            (outputs * torch.from_numpy(actions) - softplus).sum(dim=1),
            lambda: (softplus - outputs.sigmoid() * outputs).sum(dim=1),
        )

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        # x > logit(u) with probability sigmoid(x); a logistic draw is the logit of a uniform one.
        return (outputs > rng.logistic(size=outputs.shape)).astype(np.int64)


class Gaussian(ActionDistribution):
    """Distribution of ``box`` actions: outputs are means, log-stds are parameters.

    Log-stds do not depend on the observation. Samples are not clipped: the stored action is the one that was
    scored. The environment clips for itself.
    """

    def __init__(self, dim: int, log_std: float = 0.0) -> None:
        super().__init__()
        self.width = dim
        self.log_std = nn.Parameter(torch.full((dim,), log_std))

    def score(self, outputs: Tensor, actions: NDArray[Any], mask: Flags | None = None) -> Scores:
        z = (torch.from_numpy(actions) - outputs) * (-self.log_std).exp()
        entropy = (self.log_std + (0.5 + _HALF_LOG_2PI)).sum()
        return Scores(
            (-0.5 * z * z - self.log_std - _HALF_LOG_2PI).sum(dim=1), lambda: entropy.expand(len(outputs))
        )

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        std = np.exp(self.log_std.detach().numpy())
        return outputs + std * rng.standard_normal(outputs.shape, dtype=np.float32)


def distribution(actions: ActionSpec, log_std: float = 0.0) -> ActionDistribution:
    """Returns the distribution of an action space; ``log_std`` is a Gaussian's first value."""
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


def tanh_gaussian(outputs: Tensor, noise: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Returns actions a = tanh(u), u = μ + σ ε, (B, dim), and their log-probabilities (B,) in nats.

    ``outputs`` (B, 2 · dim): μ, then log σ, which is clipped to ``bounds``; ``noise`` (B, dim): ε. Actions
    and densities are in units where actions lie in −1 … 1, as everywhere in this package.

    log π(a) = log N(u) − Σ log(1 − tanh² u), with log(1 − tanh² u) = 2 (log 2 − u − softplus(−2u)). This form
    has no cancellation and never takes the log of 0 (Haarnoja et al. 2018, appendix C).
    """
    mean, log_std = outputs.chunk(2, dim=1)
    log_std = log_std.clamp(*bounds)
    u = mean + log_std.exp() * noise
    slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
    log_probs = (-0.5 * noise * noise - _HALF_LOG_2PI - log_std - slope).sum(dim=1)
    return torch.tanh(u), log_probs


def _legal(logits: Floats, mask: Flags | None) -> Floats:
    return logits if mask is None else np.where(mask, logits, np.float32(ILLEGAL))
