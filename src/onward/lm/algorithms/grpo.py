"""GRPO and Dr. GRPO: several attempts at a task, each compared with the group's mean."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from onward.lm import advantages
from onward.lm.algorithm_options import GrpoOptions
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, over_groups
from onward.lm.trajectories import Selection


@dataclass
class Grpo(GrpoOptions, Algorithm):
    """A = (r − μ)/(σ + ε) over the group (2402.03300), σ with n−1; without σ it is Dr. GRPO (2503.20783)."""

    def _needs(self) -> dict[str, bool]:
        return {"groups": True, "drop_uniform": self.drop_uniform}

    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None = None
    ) -> Estimate:
        formula = partial(advantages.grpo, normalise_std=self.normalise_std, eps=self.eps)
        return over_groups(selection, penalty, formula)
