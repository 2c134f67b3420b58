"""Rubric: a trajectory scored by a rubric document with deterministic checks.

This module is the interface only. ``Rubric`` is the protocol of an engine, and without an engine the
component does not apply. An engine is used by adding ``RubricScore(rubric)`` to the components passed to
``scoring.score``. Rubrics judged by a model belong in a component of their own, since their score is an
opinion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from onward.contracts import Trajectory
from onward.reward.components.base import NotApplicable, Scored, ScoringContext, Unscored


@dataclass(frozen=True)
class RubricResult:
    score: float
    """Weighted share of the criteria that are met, in [0, 1]."""
    criteria: Mapping[str, float] = field(default_factory=dict)
    """Criterion → its own score in [0, 1]."""
    unknown: tuple[str, ...] = ()
    """Criteria that could not be checked: with any of these the trajectory is unscored, never zero."""


class Rubric(Protocol):
    """A rubric document that is ready for use. The same trajectory always gets the same result."""

    rubric_id: str

    def score(self, trajectory: Trajectory) -> RubricResult | None:
        """Scores a trajectory. Returns None where the rubric does not cover this kind of task."""
        ...


class RubricScore:
    name = "rubric"

    def __init__(self, rubric: Rubric | None = None) -> None:
        self._rubric = rubric

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Scored | NotApplicable | Unscored:
        if self._rubric is None:
            return NotApplicable("there is no rubric")
        result = self._rubric.score(trajectory)
        if result is None:
            return NotApplicable(f"rubric {self._rubric.rubric_id} is not about this task")
        if result.unknown:
            return Unscored("rubric_unknown", ", ".join(result.unknown))
        if not math.isfinite(result.score) or not 0.0 <= result.score <= 1.0:
            return Unscored("component_error", f"rubric {self._rubric.rubric_id} gave no score in [0, 1]")
        held = sum(value == 1.0 for value in result.criteria.values())
        raw_data: dict[str, Any] = {"rubric_id": self._rubric.rubric_id, "criteria": dict(result.criteria)}
        return Scored(
            score=result.score,
            source="benchmark",
            reasoning=f"{held} of {len(result.criteria)} criteria of rubric {self._rubric.rubric_id} hold.",
            raw_data=raw_data,
        )
