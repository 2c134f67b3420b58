"""Protocol of a reward component: it takes a trajectory and its context and returns one of three answers.

An unknown score is not a zero. A component that cannot decide returns ``Unscored``: the trajectory then has
no reward. Where the question does not arise it returns ``NotApplicable``: the other weights are rescaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from onward.contracts import Feedback, Trajectory
from onward.reward.measures.baselines import Baselines
from onward.reward.measures.judgement import Judgement
from onward.reward.unscored import Unscored

if TYPE_CHECKING:
    from onward.reward.code.report import CodeReport
    from onward.reward.components.rubric import RubricResult

Source = Literal["automated", "human", "linter", "test_results", "benchmark"]


@dataclass(frozen=True)
class Scored:
    score: float
    """Raw, in [0, 1], float64."""
    source: Source
    reasoning: str
    """One sentence that a person can check against ``raw_data``."""
    raw_data: Mapping[str, Any] = field(default_factory=dict)
    evidence: float = 1.0
    """1: direct evidence; 0.5: derived; 0: a default. Its weighted sum is the reward's confidence."""


@dataclass(frozen=True)
class NotApplicable:
    reason: str


Score = Scored | NotApplicable | Unscored


@dataclass(frozen=True)
class ScoringContext:
    """Inputs of a component beside the trajectory."""

    judgement: Judgement
    baselines: Baselines
    feedback: tuple[Feedback, ...] = ()
    """Feedback about this trajectory or its session, in order of time."""
    code: CodeReport | Unscored | None = None
    """Findings of the code analyser, which runs before scoring. None: no code, or no analysis was made."""
    rubric: RubricResult | Unscored | None = None
    """Result of the rubric engine, which runs before scoring. None: no rubric is about this task."""


class Component(Protocol):
    name: str

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Score: ...
