"""Intrinsic curiosity module (Pathak et al. 2017, 1705.05363): a bonus for steps with an unpredicted outcome.

The features are trained by the inverse model alone, which predicts the action that led from s to s'. So they
contain what the agent can influence and no noise that it cannot. The forward model does not train the
features: they would shrink until everything is predictable.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from onward.control.core.config import BonusConfig
from onward.control.core.contract import EnvSpec
from onward.control.core.spaces import ActionSpec
from onward.control.explore.bonus import flat_width
from onward.control.explore.learned import LearnedBonus
from onward.control.networks.nets import MLP

FORWARD_SHARE = 0.2
"""β of the paper: the forward model's part of the loss; the inverse model has the rest."""


class IntrinsicCuriosity(LearnedBonus):
    """Bonus r⁺ = ½·mean over features of (φ̂(φ(s), a) − φ(s'))²."""

    kind = "icm"
    episodic = True

    def _networks(
        self, spec: EnvSpec, config: BonusConfig, draws: torch.Generator
    ) -> tuple[list[nn.Module], list[nn.Module]]:
        inputs, width, self.actions = flat_width(spec.layout), config.bonus_features, spec.actions
        wide = action_width(spec.actions)
        self.features = MLP([inputs, width, width], "relu", generator=draws)
        self.forward_model = MLP([width + wide, width, width], "relu", generator=draws)
        self.inverse_model = MLP([2 * width, width, wide], "relu", generator=draws)
        return [], [self.features, self.forward_model, self.inverse_model]

    def _errors(self, before: Tensor, actions: NDArray[Any], after: Tensor) -> Tensor:
        return self._forward_errors(self.features(before), actions, self.features(after))

    def _forward_errors(self, before: Tensor, actions: NDArray[Any], after: Tensor) -> Tensor:
        told = torch.from_numpy(action_rows(self.actions, actions))
        return 0.5 * (self.forward_model(torch.cat([before, told], dim=-1)) - after).square().mean(dim=-1)

    def _loss(self, before: Tensor, actions: NDArray[Any], after: Tensor) -> Tensor:
        start, end = self.features(before), self.features(after)
        forward = self._forward_errors(start.detach(), actions, end.detach()).mean()
        guess = self.inverse_model(torch.cat([start, end], dim=-1))
        inverse = action_loss(self.actions, guess, actions)
        return FORWARD_SHARE * forward + (1 - FORWARD_SHARE) * inverse


def action_width(spec: ActionSpec) -> int:
    """Returns the length of one row of ``action_rows``."""
    return sum(spec.sizes) if spec.kind in ("discrete", "multi_discrete") else spec.dim


def action_rows(spec: ActionSpec, actions: NDArray[Any]) -> NDArray[np.float32]:
    """Encodes actions (M, …) as float32 (M, width): one-hot per component, bits, or clipped to −1 … 1."""
    if spec.kind == "box":
        return np.clip(actions, -1.0, 1.0, dtype=np.float32)
    if spec.kind == "multi_binary":
        return actions.astype(np.float32)
    components = actions.reshape(len(actions), len(spec.sizes))
    starts = np.cumsum((0, *spec.sizes[:-1]))
    rows = np.zeros((len(actions), sum(spec.sizes)), dtype=np.float32)
    np.put_along_axis(rows, components + starts, 1.0, axis=1)
    return rows


def action_loss(spec: ActionSpec, guess: Tensor, actions: NDArray[Any]) -> Tensor:
    """Returns the loss of ``guess`` (M, width) against the actions: cross-entropy summed over components, or
    squared error for ``box`` actions."""
    if spec.kind == "box":
        return F.mse_loss(guess, torch.from_numpy(action_rows(spec, actions)))
    if spec.kind == "multi_binary":
        wanted = torch.from_numpy(action_rows(spec, actions))
        return F.binary_cross_entropy_with_logits(guess, wanted, reduction="sum") / len(actions)
    components = torch.from_numpy(np.asarray(actions, dtype=np.int64).reshape(len(actions), len(spec.sizes)))
    losses = [
        F.cross_entropy(part, components[:, at])
        for at, part in enumerate(guess.split(list(spec.sizes), dim=-1))
    ]
    return torch.stack(losses).sum()
