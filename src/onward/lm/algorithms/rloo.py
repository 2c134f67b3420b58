"""RLOO: several attempts at a task, each compared with the mean of the others."""

from __future__ import annotations

from dataclasses import dataclass

from onward.lm import advantages
from onward.lm.algorithm_options import RlooOptions
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, over_groups
from onward.lm.trajectories import Selection


@dataclass
class Rloo(RlooOptions, Algorithm):
    """A = r − mean(others of the group) (2402.14740); n/(n−1) times GRPO without σ."""

    def _needs(self) -> dict[str, bool]:
        return {"groups": True, "drop_uniform": self.drop_uniform}

    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None = None
    ) -> Estimate:
        return over_groups(selection, penalty, advantages.rloo)
