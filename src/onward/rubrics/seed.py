"""Names of the quick start for training a rubric manager (S4), each in one place.

Differences from the gym that S4 was written for: ``cadence=None`` evaluates everything there is (the old
engine evaluated nothing; ``ValidationEngine(legacy=True)`` does as it did), time step and cadence may be
left out, and a score that could not be computed is None, never 0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from onward.rubrics import evaluation
from onward.rubrics.backends.local import VLLMInterface
from onward.rubrics.decomposition import RubricDecompositionManagerAgent, decompose_preference_to_evaluator
from onward.rubrics.evaluation import EvaluationResult, Evaluator, PreferenceWeights, RunCondition
from onward.rubrics.gym.clarification import CommunicationService
from onward.rubrics.gym.loading import load_workflow
from onward.rubrics.gym.phases import (
    AnyRubric,
    DualEvaluationPhase,
    ExecutionPhase,
    InitialRubricGenerationPhase,
)
from onward.rubrics.gym.softmax_policy import SoftmaxPolicy
from onward.rubrics.gym.stakeholder import Stakeholder
from onward.rubrics.gym.workers import Worker
from onward.rubrics.gym.workflow import Workflow
from onward.rubrics.language.free import StagedRubric
from onward.rubrics.seed_training import (
    AlignmentReward,
    EpisodeSummary,
    LoopSettings,
    Rollout,
    RubricRewardFunction,
    collect_rollout,
    load_ground_truth_rubrics,
    load_training_workflows,
    stakeholder_of,
    train_one_episode,
    train_rubric_manager,
)

__all__ = [
    "AlignmentReward",
    "CommunicationService",
    "DualEvaluationPhase",
    "EpisodeSummary",
    "ExecutionPhase",
    "InitialRubricGenerationPhase",
    "LoopSettings",
    "Rollout",
    "RubricDecompositionManagerAgent",
    "RubricRewardFunction",
    "SoftmaxPolicy",
    "Stakeholder",
    "VLLMInterface",
    "ValidationEngine",
    "Worker",
    "collect_rollout",
    "create_rubric_based_scorer",
    "decompose_preference_to_evaluator",
    "load_ground_truth_rubrics",
    "load_training_workflows",
    "load_workflow",
    "stakeholder_of",
    "train_one_episode",
    "train_rubric_manager",
]


class ValidationEngine(evaluation.ValidationEngine):
    """The evaluation engine, with time step 0 and no cadence (everything is evaluated) by default."""

    async def evaluate_timestep(
        self,
        workflow: Any,
        timestep: int = 0,
        cadence: RunCondition | str | None = None,
        communications: Sequence[Any] | None = None,
        manager_actions: Sequence[Any] | None = None,
        preferences: PreferenceWeights | None = None,
        workflow_evaluators: Iterable[Evaluator | StagedRubric] | None = None,
        **more: Any,
    ) -> EvaluationResult:
        """Evaluates a workflow and returns the result (``evaluation.ValidationEngine``)."""
        return await super().evaluate_timestep(
            workflow, timestep, cadence, communications, manager_actions, preferences, workflow_evaluators,
            **more,
        )  # fmt: skip


def create_rubric_based_scorer(
    rubric: AnyRubric, engine: evaluation.ValidationEngine | None = None
) -> Callable[[Workflow], Awaitable[float | None]]:
    """Returns a function that scores a workflow's files by ``rubric``: 0 to 1, None without a score."""
    judge = engine or evaluation.ValidationEngine(seed=42)

    async def score(workflow: Workflow) -> float | None:
        result = await judge.evaluate_timestep(workflow, 0, None, workflow_evaluators=[rubric])
        return result.weighted_preference_total

    return score
