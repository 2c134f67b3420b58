"""Results of an evaluation, in the shapes of Manager Agent Gym, with three states kept apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from onward.rubrics.language.outcomes import Status


@dataclass(frozen=True)
class CriterionResult:
    """The result of one criterion. ``raw`` and ``normalized`` are None unless it is scored."""

    id: str
    name: str
    status: Status
    raw: float | None
    max_score: float
    normalized: float | None
    message: str = ""
    error: str | None = None
    raw_output: str | None = None
    """The judge's whole answer, if a judge was asked."""
    duration: float = field(default=0.0, compare=False)
    """Seconds."""

    @property
    def score(self) -> float | None:
        return self.raw

    @property
    def normalized_score(self) -> float | None:
        return self.normalized


@dataclass(frozen=True)
class GroupResult:
    """The result of one evaluator. ``aggregated_score`` is None if none of its criteria was scored."""

    id: str
    evaluator_name: str
    rubric_scores: tuple[CriterionResult, ...]
    aggregated_score: float | None
    aggregation_strategy: str
    error: str | None = None


@dataclass(frozen=True)
class PreferenceScore:
    """The score of one preference."""

    name: str
    score: float | None
    weight: float
    rubric_group_results: tuple[GroupResult, ...]
    aggregation_strategy: str

    @property
    def ruberic_group_results(self) -> tuple[GroupResult, ...]:
        """Spelling of Manager Agent Gym."""
        return self.rubric_group_results


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation at a time step."""

    workflow_id: str
    timestep: int
    preference_scores: Mapping[str, PreferenceScore]
    evaluation_results: tuple[GroupResult, ...]
    weighted_preference_total: float | None
    """Weighted mean over the preferences that have a score; without preferences the mean over the evaluators.
    None if nothing has a score."""
    coverage_fraction: float
    """Scored criteria / evaluated criteria."""
    error_fraction: float
    """Errors / evaluated criteria."""
    is_valid: bool
    """True if there are at most as many errors as the engine accepts. An invalid one has no reward."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    timestamp: datetime | None = field(default=None, compare=False)

    @property
    def valid_total(self) -> float | None:
        """The total of a valid result, for a reward. None for an invalid one: it is never a number."""
        return self.weighted_preference_total if self.is_valid else None

    @property
    def criteria(self) -> tuple[CriterionResult, ...]:
        """Results of all criteria, by id."""
        groups = [
            *(group for score in self.preference_scores.values() for group in score.rubric_group_results),
            *self.evaluation_results,
        ]
        results = [result for group in groups for result in group.rubric_scores]
        return tuple(sorted(results, key=lambda result: result.id))

    @property
    def digest(self) -> str:
        """SHA-256 of all that follows from the workflow, the rubrics and the seed: no time, no duration."""
        parts = [
            self.workflow_id,
            self.timestep,
            self.weighted_preference_total,
            [[one.id, one.status, one.raw, one.max_score, one.message, one.error] for one in self.criteria],
            [[one.id, one.aggregated_score, one.error] for one in self.evaluation_results],
            [[name, one.score, one.weight] for name, one in self.preference_scores.items()],
        ]
        return hashlib.sha256(json.dumps(parts, allow_nan=True).encode()).hexdigest()


RubricResult = CriterionResult
RubricGroupResult = GroupResult
