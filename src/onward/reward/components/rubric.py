"""Rubric: a trajectory scored by a rubric document, criterion by criterion.

This module has the interface alone: rubrics are a layer above. An engine is made where a role starts
(``onward.rubrics.trajectories``). It works before scoring, as the code analyser does, since rules run in a
sandbox and judges are on the network; its result comes with the context. A program may also pass its own
``Rubric`` to ``RubricScore``.

What a model has judged is an opinion: it is marked so, and lowers the confidence of the reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from onward.contracts import Trajectory
from onward.reward.components.base import NotApplicable, Scored, ScoringContext
from onward.reward.unscored import Unscored

_SHOWN = 300
"""Characters of a reason that a reward stores."""


@dataclass(frozen=True)
class RubricResult:
    score: float
    """Weighted share of the criteria that are met, in [0, 1]."""
    criteria: Mapping[str, float] = field(default_factory=dict)
    """Criterion → its own score in [0, 1]."""
    unknown: tuple[str, ...] = ()
    """Criteria that could not be checked: with any of these the trajectory is unscored, never zero."""
    rubric_id: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Criterion → its share of the score."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Criterion → what was found, where that is known."""
    opinions: tuple[str, ...] = ()
    """Criteria that a model has judged."""
    writer: Mapping[str, str] = field(default_factory=dict)
    """``version`` and ``digest`` of the released writer that wrote the rubric; empty for any other."""


class Rubric(Protocol):
    """A rubric that is ready for use. The same trajectory always gets the same result."""

    rubric_id: str

    def score(self, trajectory: Trajectory) -> RubricResult | None:
        """Scores a trajectory. Returns None where the rubric does not cover this kind of task."""
        ...


class RubricEngine(Protocol):
    """Every rubric of the settings, ready for use."""

    async def result(self, trajectory: Trajectory) -> RubricResult | None:
        """Scores a trajectory by the first rubric that covers it; None where none does."""
        ...

    async def stop(self) -> None:
        """Ends the processes that the rubrics have started."""
        ...


class RubricScore:
    name = "rubric"

    def __init__(self, rubric: Rubric | None = None) -> None:
        """``rubric`` None: the result of the engine, in the context, is used."""
        self._rubric = rubric

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Scored | NotApplicable | Unscored:
        result = context.rubric if self._rubric is None else self._rubric.score(trajectory)
        if isinstance(result, Unscored):
            return result
        if result is None:
            name = None if self._rubric is None else self._rubric.rubric_id
            return NotApplicable(f"rubric {name} is not about this task" if name else "no rubric is about it")
        name = result.rubric_id or (self._rubric.rubric_id if self._rubric is not None else "")
        if result.unknown:
            return Unscored("rubric_unknown", ", ".join(result.unknown))
        if not math.isfinite(result.score) or not 0.0 <= result.score <= 1.0:
            return Unscored("component_error", f"rubric {name} gave no score in [0, 1]")
        held = sum(value == 1.0 for value in result.criteria.values())
        raw_data: dict[str, Any] = {"rubric_id": name, "criteria": dict(result.criteria)}
        if result.weights:
            raw_data["weights"] = dict(result.weights)
        if result.reasons:
            raw_data["reasons"] = {one: reason[:_SHOWN] for one, reason in result.reasons.items()}
        if result.opinions:
            raw_data["opinions"] = list(result.opinions)
        if result.writer:
            raw_data["writer"] = dict(result.writer)
            name += f" by {result.writer['version']}"
        opinion = f" A model judged {len(result.opinions)}: an opinion." if result.opinions else ""
        return Scored(
            score=result.score,
            source="automated" if result.opinions else "benchmark",
            reasoning=f"{held} of {len(result.criteria)} criteria of rubric {name} hold.{opinion}",
            raw_data=raw_data,
            evidence=_evidence(result),
        )


def _evidence(result: RubricResult) -> float:
    """Returns 1 for a result by program, 0.5 for opinions, by their share of the score."""
    if not result.opinions:
        return 1.0
    judged = math.fsum(result.weights.get(name, 0.0) for name in result.opinions)
    return 1.0 - 0.5 * min(1.0, judged if result.weights else 1.0)
