"""REINFORCE++: token returns, whitened over the whole update; no critic and no groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from onward.lm import advantages
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, padded_rewards, unpadded
from onward.lm.options import refuse_out_of_range
from onward.lm.trajectories import Selection


@dataclass
class ReinforcePlusPlus(Algorithm):
    """G_t = r_t + γ G_{t'}, t' the next trained token; A = (G − mean)/std over the update (2501.03262)."""

    type: ClassVar[str] = "reinforce_plus_plus"
    gamma: float = 1.0
    weighting: Literal["token", "sequence"] = "token"
    """Unit that counts once in mean and deviation: every trained token, or every trajectory."""

    def __post_init__(self) -> None:
        refuse_out_of_range(
            self, gamma=0 < self.gamma <= 1, weighting=self.weighting in ("token", "sequence")
        )

    def _needs(self) -> dict[str, bool]:
        return {"dense": True}

    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None = None
    ) -> Estimate:
        rewards, mask = padded_rewards(selection, penalty)
        found = advantages.whiten(advantages.returns(rewards, mask, self.gamma), mask, self.weighting)
        return Estimate(unpadded(selection, found))
