"""GRPO and Dr. GRPO: several attempts at a task, each compared with the group's mean."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from onward.lm import advantages
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, over_groups
from onward.lm.options import refuse_out_of_range
from onward.lm.trajectories import Selection


@dataclass
class Grpo(Algorithm):
    """A = (r − μ)/(σ + ε) over the group (2402.03300), σ with n−1; without σ it is Dr. GRPO (2503.20783)."""

    type: ClassVar[str] = "grpo"
    normalise_std: bool = True
    """Divides by σ. Without it, hard and easy tasks weigh in proportion to their spread."""
    eps: float = 1e-6
    drop_uniform: bool = True
    """Leaves out groups in which all attempts succeed, or none: σ would only amplify shaping there."""

    def __post_init__(self) -> None:
        refuse_out_of_range(self, eps=self.eps >= 0)

    def _needs(self) -> dict[str, bool]:
        return {"groups": True, "drop_uniform": self.drop_uniform}

    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None = None
    ) -> Estimate:
        formula = partial(advantages.grpo, normalise_std=self.normalise_std, eps=self.eps)
        return over_groups(selection, penalty, formula)
