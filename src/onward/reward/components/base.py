"""The protocol of a reward component: a trajectory and its context in, one of three answers out.

An unknown score is not a zero: a component that cannot tell says ``Unscored`` (the trajectory then
has no reward) or, when the question does not arise, ``NotApplicable`` (the others are rescaled).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from onward.contracts import Feedback, Trajectory
from onward.reward.measures.baselines import Baselines
from onward.reward.measures.judgement import Judgement

if TYPE_CHECKING:
    from onward.reward.code.report import CodeReport

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
    """1: direct evidence; 0.5: derived; 0: a default. Weighted, this is the reward's confidence."""


@dataclass(frozen=True)
class NotApplicable:
    reason: str


@dataclass(frozen=True)
class Unscored:
    reason: str
    """A short fixed word; counted under it."""
    detail: str = ""


Score = Scored | NotApplicable | Unscored


@dataclass(frozen=True)
class ScoringContext:
    """What a component may know beside the trajectory."""

    judgement: Judgement
    baselines: Baselines
    feedback: tuple[Feedback, ...] = ()
    """What was said about this trajectory or its session, in order of time."""
    code: CodeReport | Unscored | None = None
    """What the code analyser found, made before scoring; None: no code, or nobody looked."""


class Component(Protocol):
    name: str

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Score: ...
