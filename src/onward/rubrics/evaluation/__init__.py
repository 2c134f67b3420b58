"""Evaluation of workflows by rubrics, with the names and result shapes of Manager Agent Gym."""

from onward.rubrics.evaluation.checking import check_evaluator
from onward.rubrics.evaluation.context import EvaluationContext, MissingContext, WorkflowLike, artefact_of
from onward.rubrics.evaluation.engine import ValidationEngine
from onward.rubrics.evaluation.models import (
    ContextItem,
    EvaluationError,
    Evaluator,
    Preference,
    PreferenceWeights,
    PreferenceWeightUpdateRequest,
    RunCondition,
    WorkflowRubric,
    updated,
)
from onward.rubrics.evaluation.results import (
    CriterionResult,
    EvaluationResult,
    GroupResult,
    PreferenceScore,
    RubricGroupResult,
    RubricResult,
)
from onward.rubrics.language.outcomes import NotApplicable

RubricCriteria = WorkflowRubric
PreferenceSnapshot = PreferenceWeights
AdditionalContextItem = ContextItem

__all__ = [
    "AdditionalContextItem",
    "ContextItem",
    "CriterionResult",
    "EvaluationContext",
    "EvaluationError",
    "EvaluationResult",
    "Evaluator",
    "GroupResult",
    "MissingContext",
    "NotApplicable",
    "Preference",
    "PreferenceScore",
    "PreferenceSnapshot",
    "PreferenceWeightUpdateRequest",
    "PreferenceWeights",
    "RubricCriteria",
    "RubricGroupResult",
    "RubricResult",
    "RunCondition",
    "ValidationEngine",
    "WorkflowLike",
    "WorkflowRubric",
    "artefact_of",
    "check_evaluator",
    "updated",
]
