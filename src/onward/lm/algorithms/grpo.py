"""GRPO and Dr. GRPO: several attempts at a task, each compared with the group's mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onward.lm import advantages
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, returns_of, spread
from onward.lm.options import refuse_out_of_range
from onward.lm.trajectories import Selection, group_key


@dataclass
class Grpo(Algorithm):
    """A = (r − μ)/(σ + ε) over the group (2402.03300), σ with n−1; without σ it is Dr. GRPO (2503.20783)."""

    type: ClassVar[str] = "grpo"
    normalise_std: bool = True
    """Divide by σ. Without it hard and easy tasks weigh as their spread says."""
    eps: float = 1e-6
    drop_uniform: bool = True
    """Leave out groups in which all attempts succeed, or none: what σ would blow up there is shaping."""

    def __post_init__(self) -> None:
        refuse_out_of_range(self, eps=self.eps >= 0)

    def _needs(self) -> dict[str, bool]:
        return {"groups": True, "drop_uniform": self.drop_uniform}

    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None = None
    ) -> Estimate:
        everybody = [*selection.trajectories, *selection.observers]
        rewards = returns_of(selection, penalty) + [float(one.reward or 0.0) for one in selection.observers]
        keys = [group_key(one) for one in everybody]
        found = advantages.grpo(rewards, keys, normalise_std=self.normalise_std, eps=self.eps)
        return spread(selection, found[: len(selection.trajectories)])
