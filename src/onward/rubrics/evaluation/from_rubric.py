"""A rubric of the finite language as an evaluator of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.rubrics.check import Check
from onward.rubrics.evaluation.models import Evaluator, RunCondition, WorkflowRubric
from onward.rubrics.language import Criterion, Rubric


def evaluator_of(rubric: Rubric, name: str, holds: Callable[[Any, Check], bool]) -> Evaluator:
    """Returns an evaluator with one criterion for each of the rubric's. ``holds(workflow, check)``: whether a
    check holds for the output of a workflow."""
    return Evaluator(name=name, rubrics=tuple(_criterion(criterion, holds) for criterion in rubric.criteria))


def _criterion(criterion: Criterion, holds: Callable[[Any, Check], bool]) -> WorkflowRubric:
    return WorkflowRubric(
        name=str(criterion.check),
        max_score=float(criterion.weight),
        evaluator_function=lambda workflow: bool(holds(workflow, criterion.check)),
        run_condition=RunCondition.BOTH,
    )
