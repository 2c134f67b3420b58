"""Action distributions of policy networks: sampling, log-probabilities, entropies and their gradients.

Every distribution is a few formulas on arrays, with its gradient in closed form: at these sizes a graph of
operations costs several times the arithmetic. Illegal actions get a logit of −1e9. It is finite, so that a
slot without any legal action (a dead one) produces no NaN.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from onward.control.core.contract import Flags
from onward.control.core.spaces import ActionSpec
from onward.errors import ControlError

Floats = NDArray[np.float32]
ILLEGAL = -1e9
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Scores(ABC):
    """Log-probabilities and entropies of a batch of actions."""

    log_probs: Floats
    """(B,) log-probabilities of the actions, in nats."""

    @abstractmethod
    def entropies(self) -> Floats:
        """Returns entropies (B,) in nats."""

    @abstractmethod
    def back(self, at_log_probs: Floats, at_entropies: Floats | float = 0.0) -> tuple[Floats, list[Floats]]:
        """Returns a loss' gradient at the outputs (B, width) and at each parameter of the distribution.

        ``at_log_probs`` (B,) and ``at_entropies`` (B,), or one number for all: the loss' gradients there.
        """


class ActionDistribution(nn.Module):
    """Distribution over one kind of action space. Its own learned numbers (log-stds) are parameters."""

    width: int
    """Outputs that the network must have."""

    @abstractmethod
    def score(self, outputs: Floats, actions: NDArray[Any], mask: Flags | None = None) -> Scores:
        """Scores ``actions`` (B, …; see ``ActionSpec``) under ``outputs`` (B, width) within ``mask``."""

    @abstractmethod
    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        """Samples actions (N, …) from ``outputs`` (N, width)."""


class CategoricalScores(Scores):
    """Categorical scores: ∂ log p(a) / ∂ logits = one-hot(a) − p, ∂ H / ∂ logits = −p (log p + H)."""

    def __init__(self, logits: Floats, actions: NDArray[Any], mask: Flags | None) -> None:
        self._all = _log_softmax(_legal(logits, mask))
        self._taken, self._mask = (np.arange(len(actions)), actions), mask
        self.log_probs = self._all[self._taken]

    def entropies(self) -> Floats:
        return -(np.exp(self._all) * self._all).sum(axis=1)

    def back(self, at_log_probs: Floats, at_entropies: Floats | float = 0.0) -> tuple[Floats, list[Floats]]:
        probs = np.exp(self._all)
        gradient = probs * -at_log_probs[:, None]
        gradient[self._taken] += at_log_probs
        if np.any(at_entropies):
            surprise = self._all + self.entropies()[:, None]
            gradient -= np.asarray(at_entropies, np.float32)[..., None] * probs * surprise
        if self._mask is not None:
            gradient *= self._mask
        return gradient, []


class Categorical(ActionDistribution):
    """Distribution of ``discrete`` actions: softmax over logits, sampled by Gumbel-max."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        self.width = choices

    def score(self, outputs: Floats, actions: NDArray[Any], mask: Flags | None = None) -> Scores:
        return CategoricalScores(outputs, actions, mask)

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        return np.argmax(_legal(outputs, mask) + rng.gumbel(size=outputs.shape), axis=1)


class MultiCategoricalScores(Scores):
    """Sums of scores over components."""

    def __init__(self, parts: list[CategoricalScores]) -> None:
        self._parts = parts
        self.log_probs = _sum([part.log_probs for part in parts])

    def entropies(self) -> Floats:
        return _sum([part.entropies() for part in self._parts])

    def back(self, at_log_probs: Floats, at_entropies: Floats | float = 0.0) -> tuple[Floats, list[Floats]]:
        parts = [part.back(at_log_probs, at_entropies)[0] for part in self._parts]
        return np.concatenate(parts, axis=1), []


class MultiCategorical(ActionDistribution):
    """Distribution of ``multi_discrete`` actions: independent components, concatenated logits and masks."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.width = sum(sizes)
        ends = [int(end) for end in np.cumsum(sizes)]
        self._parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]

    def score(self, outputs: Floats, actions: NDArray[Any], mask: Flags | None = None) -> Scores:
        return MultiCategoricalScores(
            [
                CategoricalScores(outputs[:, part], actions[:, i], None if mask is None else mask[:, part])
                for i, part in enumerate(self._parts)
            ]
        )

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        scores = _legal(outputs, mask) + rng.gumbel(size=outputs.shape)
        return np.stack([scores[:, part].argmax(axis=1) for part in self._parts], axis=1)


class BernoulliScores(Scores):
    """Bernoulli scores: log p(a) = a x − softplus(x), since log sigmoid(x) = x − softplus(x).

    ∂ H / ∂ x = −x p (1 − p).
    """

    def __init__(self, logits: Floats, actions: NDArray[Any]) -> None:
        self._logits, self._actions = logits, actions
        self._softplus = np.logaddexp(np.float32(0), logits)
        self._probs = np.exp(logits - self._softplus)
        self.log_probs = (np.where(actions != 0, logits, np.float32(0)) - self._softplus).sum(axis=1)

    def entropies(self) -> Floats:
        return (self._softplus - self._probs * self._logits).sum(axis=1)

    def back(self, at_log_probs: Floats, at_entropies: Floats | float = 0.0) -> tuple[Floats, list[Floats]]:
        probs = self._probs
        gradient = at_log_probs[:, None] * (self._actions.astype(np.float32) - probs)
        if np.any(at_entropies):
            at = np.asarray(at_entropies, np.float32)[..., None]
            gradient -= at * self._logits * probs * (1 - probs)
        return gradient, []


class Bernoulli(ActionDistribution):
    """Distribution of ``multi_binary`` actions: independent bits; outputs are logits of 1. Ignores masks."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.width = bits

    def score(self, outputs: Floats, actions: NDArray[Any], mask: Flags | None = None) -> Scores:
        return BernoulliScores(outputs, actions)

    def sample(self, outputs: Floats, rng: np.random.Generator, mask: Flags | None = None) -> NDArray[Any]:
        # x > logit(u) with probability sigmoid(x); a logistic draw is the logit of a uniform one.
        return (outputs > rng.logistic(size=outputs.shape)).astype(np.int64)


class GaussianScores(Scores):
    """Gaussian scores, z = (a − mean) / σ.

    ∂ log p / ∂ mean = z / σ, ∂ log p / ∂ log σ = z² − 1, ∂ H / ∂ log σ = 1.
    """

    def __init__(self, means: Floats, actions: NDArray[Any], log_std: Floats) -> None:
        self._precision = np.exp(-log_std)
        self._z, self._log_std = (actions - means) * self._precision, log_std
        self.log_probs = (np.float32(-0.5) * self._z * self._z - log_std).sum(axis=1) - np.float32(
            len(log_std) * _HALF_LOG_2PI
        )

    def entropies(self) -> Floats:
        entropy = self._log_std.sum() + len(self._log_std) * (0.5 + _HALF_LOG_2PI)
        return np.full(len(self._z), entropy, np.float32)

    def back(self, at_log_probs: Floats, at_entropies: Floats | float = 0.0) -> tuple[Floats, list[Floats]]:
        at = at_log_probs[:, None]
        at_log_std = (at * (self._z * self._z - 1)).sum(axis=0)
        at_log_std += np.broadcast_to(at_entropies, len(self._z)).sum()
        return at * self._z * self._precision, [at_log_std.astype(np.float32)]


class Gaussian(ActionDistribution):
    """Distribution of ``box`` actions: outputs are means, log-stds are parameters.

    Log-stds do not depend on the observation. Samples are not clipped: the stored action is the one that was
    scored. The environment clips for itself.
    """

    def __init__(self, dim: int, log_std: float = 0.0) -> None:
        super().__init__()
        self.width = dim
        self.log_std = nn.Parameter(torch.full((dim,), log_std))

    def score(self, outputs: Floats, actions: NDArray[Any], mask: Flags | None = None) -> Scores:
        return GaussianScores(outputs, actions, self.log_std.detach().numpy())

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


class TanhGaussian:
    """Actions a = tanh(u), u = μ + σ ε, of one batch: their density, and the gradient through them.

    ``outputs`` (B, 2 · dim): μ, then log σ, which is clipped to ``bounds``; ``noise`` (B, dim): ε. Actions
    and densities are in units where actions lie in −1 … 1, as everywhere in this package.

    log π(a) = log N(u) − Σ log(1 − tanh² u), with log(1 − tanh² u) = 2 (log 2 − u − softplus(−2u)). This form
    has no cancellation and never takes the log of 0 (Haarnoja et al. 2018, appendix C).
    """

    def __init__(self, outputs: Floats, noise: Floats, bounds: tuple[float, float]) -> None:
        dim = noise.shape[1]
        raw = outputs[:, dim:]
        log_std = np.clip(raw, *bounds)
        self._free = raw == log_std
        self._shift = np.exp(log_std) * noise
        u = outputs[:, :dim] + self._shift
        self.actions = np.tanh(u)
        """(B, dim) actions."""
        slope = 2 * (math.log(2) - u - np.logaddexp(np.zeros_like(u), -2 * u))
        self.log_probs = (-0.5 * noise * noise - _HALF_LOG_2PI - log_std - slope).sum(axis=1)
        """(B,) log-probabilities, in nats."""

    def back(self, at_actions: Floats, at_log_probs: Floats) -> Floats:
        """Returns a loss' gradient at the outputs (B, 2 · dim) from those at actions and log-probs (B,).

        d a / d u = 1 − a², d log π / d u = 2 a; d u / d μ = 1, d u / d log σ = σ ε; and log π falls directly
        with log σ. ``at_actions``: (B, dim).
        """
        a, at_log_probs = self.actions, at_log_probs[:, None]
        at_u = at_actions * (1 - a * a) + 2 * at_log_probs * a
        return np.concatenate((at_u, (at_u * self._shift - at_log_probs) * self._free), axis=1)


def _legal(logits: Floats, mask: Flags | None) -> Floats:
    return logits if mask is None else np.where(mask, logits, np.float32(ILLEGAL))


def _log_softmax(logits: Floats) -> Floats:
    """Returns (B, choices) in float32 by PyTorch, which needs only one pass."""
    return torch.log_softmax(torch.from_numpy(logits), dim=1).numpy()


def _sum(parts: list[Floats]) -> Floats:
    return np.sum(parts, axis=0)
