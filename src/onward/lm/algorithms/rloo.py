"""RLOO: several attempts at a task, each compared with the mean of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onward.lm import advantages
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, returns_of, spread
from onward.lm.trajectories import Selection, group_key


@dataclass
class Rloo(Algorithm):
    """A = r − mean(others of the group) (2402.14740); n/(n−1) times GRPO without σ."""

    type: ClassVar[str] = "rloo"
    drop_uniform: bool = True
    """Leave out groups in which all attempts succeed, or none."""

    def _needs(self) -> dict[str, bool]:
        return {"groups": True, "drop_uniform": self.drop_uniform}

    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None = None
    ) -> Estimate:
        everybody = [*selection.trajectories, *selection.observers]
        rewards = returns_of(selection, penalty) + [float(one.reward or 0.0) for one in selection.observers]
        found = advantages.rloo(rewards, [group_key(one) for one in everybody])
        return spread(selection, found[: len(selection.trajectories)])
