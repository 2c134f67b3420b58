"""Random network distillation (Burda et al. 2018, 1810.12894): a bonus for states not yet learned.

The target network is random and never learns. The predictor learns to copy it. It is two layers deeper, so
its error comes from unseen states and not from lack of capacity. Only the state after a step counts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onward.control.core.config import BonusConfig
from onward.control.core.contract import EnvSpec
from onward.control.explore.bonus import flat_width
from onward.control.explore.learned import LearnedBonus
from onward.control.networks.nets import MLP


class RandomDistillation(LearnedBonus):
    """Bonus r⁺ = mean over outputs of (f̂(s') − f(s'))², f random and fixed. Its return crosses episodes."""

    kind = "rnd"
    episodic = False

    def _networks(
        self, spec: EnvSpec, config: BonusConfig, draws: torch.Generator
    ) -> tuple[list[nn.Module], list[nn.Module]]:
        inputs, width = flat_width(spec.layout), config.bonus_features
        gain = math.sqrt(2)
        self.target = MLP([inputs, width, width], "relu", gain=gain, generator=draws)
        self.predictor = MLP([inputs, *[width] * 4], "relu", gain=gain, generator=draws)
        return [self.target], [self.predictor]

    def _errors(self, before: Tensor, actions: NDArray[Any], after: Tensor) -> Tensor:
        return (self.predictor(after) - self.target(after)).square().mean(dim=-1)

    def _loss(self, before: Tensor, actions: NDArray[Any], after: Tensor) -> Tensor:
        return self._errors(before, actions, after).mean()
