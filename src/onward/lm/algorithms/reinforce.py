"""REINFORCE with a running baseline per task type, for any traffic, grouped or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onward.lm.advantages import RunningBaseline, asymmetric
from onward.lm.algorithm_options import ReinforceOptions
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, returns_of, spread
from onward.lm.trajectories import Selection


@dataclass
class Reinforce(ReinforceOptions, Algorithm):
    """A = r − b(task type), b the mean of other rewards; an update weighs ``decay`` times the next one."""

    baseline: RunningBaseline = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
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
