"""REINFORCE++: token returns, whitened over the whole update; no critic and no groups."""

from __future__ import annotations

from dataclasses import dataclass

from onward.lm import advantages
from onward.lm.algorithm_options import ReinforcePlusPlusOptions
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, padded_rewards, unpadded
from onward.lm.trajectories import Selection


@dataclass
class ReinforcePlusPlus(ReinforcePlusPlusOptions, Algorithm):
    """G_t = r_t + γ G_{t'}, t' the next trained token; A = (G − mean)/std over the update (2501.03262)."""

    def _needs(self) -> dict[str, bool]:
        return {"dense": True}

    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None = None
    ) -> Estimate:
        rewards, mask = padded_rewards(selection, penalty)
        found = advantages.whiten(advantages.returns(rewards, mask, self.gamma), mask, self.weighting)
        return Estimate(unpadded(selection, found))
