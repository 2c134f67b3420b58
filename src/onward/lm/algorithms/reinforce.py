"""REINFORCE with a running baseline per task type, for any traffic, grouped or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from onward.lm.advantages import RunningBaseline, asymmetric
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, returns_of, spread
from onward.lm.options import refuse_out_of_range
from onward.lm.trajectories import Selection


@dataclass
class Reinforce(Algorithm):
    """A = r − b(task type), b the mean of other rewards; an update weighs ``decay`` times the next one."""

    type: ClassVar[str] = "reinforce"
    decay: float = 0.9
    negative_weight: float = 1.0
    """Factor on advantages below the baseline (1: plain REINFORCE)."""
    baseline: RunningBaseline = field(init=False)

    def __post_init__(self) -> None:
        refuse_out_of_range(self, decay=0 <= self.decay <= 1, negative_weight=0 <= self.negative_weight <= 1)
        self.baseline = RunningBaseline(self.decay)

    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None = None
    ) -> Estimate:
        everybody = [*selection.trajectories, *selection.observers]
        rewards = returns_of(selection, penalty) + [float(one.reward or 0.0) for one in selection.observers]
        found = self.baseline.advantages(rewards, [one.task_type for one in everybody])
        return spread(selection, asymmetric(found[: len(selection.trajectories)], self.negative_weight))

    def state(self) -> dict[str, Any]:
        return self.baseline.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.baseline = RunningBaseline.from_state(state)
