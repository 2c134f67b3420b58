"""The evaluation of Manager Agent Gym with its quirks, for the comparison of recorded scores.

Quirks: ``both`` never runs; an error counts 0.0; NaN has full marks; True is 1.0 whatever the maximum; the
declared aggregation is a label; weights of preferences without a score stay in the sum; a preference and an
evaluator of one name share their results; every judge is asked as one model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from onward.errors import ConfigError
from onward.rubrics.evaluation.context import EvaluationContext
from onward.rubrics.evaluation.groups import Group
from onward.rubrics.evaluation.models import Evaluator, PreferenceWeights, RunCondition, WorkflowRubric
from onward.rubrics.evaluation.results import (
    CriterionResult,
    EvaluationResult,
    GroupResult,
    PreferenceScore,
)
from onward.rubrics.evaluation.running import CriterionRunner, EvaluatedWorkflow, called
from onward.rubrics.language.judging import JudgeError, last_verdict, prompt_of
from onward.rubrics.language.outcomes import unpacked

_MODEL = "o3"
_WORKFLOW_STRATEGY = "weighted_by_max"


async def legacy_evaluation(
    groups: Sequence[Group],
    preferences: PreferenceWeights | None,
    workflow: Any,
    timestep: int,
    moment: RunCondition | None,
    items: Mapping[str, Any],
    *,
    is_selected: bool,
    runner: CriterionRunner,
    at_once: asyncio.Semaphore,
) -> EvaluationResult:
    """Returns the result in the old shapes. Criteria come in the order in which they ended."""
    subject = EvaluatedWorkflow(workflow)
    context = EvaluationContext(workflow, timestep, moment, 0, items, is_lenient=True)
    buckets: dict[str, list[CriterionResult]] = {}

    async def run(group: Group, id_: str, criterion: WorkflowRubric) -> None:
        async with at_once:
            result = await _criterion(id_, criterion, subject, context, runner)
        buckets.setdefault(group.name, []).append(result)

    due = [
        (group, id_, criterion)
        for group in groups
        for id_, criterion in group.criteria()
        if moment is not None
        and (group.kind == "workflow" or is_selected or criterion.run_condition == moment)
    ]
    async with asyncio.TaskGroup() as tasks:
        for group, id_, criterion in due:
            tasks.create_task(run(group, id_, criterion))
    scores = {
        one.name: _preference(one.name, one.weight, one.evaluator, buckets.get(one.name, []))
        for one in (preferences.preferences if preferences is not None else ())
        if isinstance(one.evaluator, Evaluator)
    }
    evaluators = tuple(
        _group(group.id, group.name, buckets.get(group.name, []), _WORKFLOW_STRATEGY)
        for group in groups
        if group.kind == "workflow"
    )
    return EvaluationResult(
        workflow_id=str(getattr(workflow, "id", None) or getattr(workflow, "name", "")),
        timestep=timestep,
        preference_scores=scores,
        evaluation_results=evaluators,
        weighted_preference_total=sum(one.weight * (one.score or 0.0) for one in scores.values()),
        coverage_fraction=1.0,
        error_fraction=0.0,
        is_valid=True,
    )


async def _criterion(
    id_: str,
    criterion: WorkflowRubric,
    subject: EvaluatedWorkflow,
    context: EvaluationContext,
    runner: CriterionRunner,
) -> CriterionResult:
    most = criterion.max_score
    raw, message, error, answer = 0.0, "", None, None
    try:
        if criterion.evaluator_function is not None:
            value = await called(criterion.evaluator_function, subject.workflow, context)
            number, message = unpacked(value)
            raw = float(number)
        elif criterion.llm_prompt is not None:
            prompt = prompt_of(criterion.llm_prompt, subject.artefact, most)
            if runner.judge is None:
                raise JudgeError("There is no judge.")
            answer = await runner.judge.answer(prompt, model=_MODEL, seed=context.seed)
            verdict = last_verdict(answer)
            raw, message = (verdict.points(most), verdict.reason) if verdict is not None else (0.0, "")
        else:
            error = "Code as text has no old form."
    except ConfigError:
        raise
    except Exception as wrong:
        error = None if criterion.llm_prompt is not None else f"{type(wrong).__name__}: {wrong}"
    clamped = max(0.0, min(most, raw))
    return CriterionResult(
        id_, criterion.name, "scored", clamped, most, clamped / most, message, error, answer
    )


def _group(id_: str, name: str, results: Sequence[CriterionResult], strategy: str) -> GroupResult:
    most = sum(one.max_score for one in results)
    score = sum(one.raw or 0.0 for one in results) / most if results else 0.0
    return GroupResult(id_, name, tuple(results), score, strategy)


def _preference(
    name: str, weight: float, evaluator: Evaluator, results: Sequence[CriterionResult]
) -> PreferenceScore:
    group = _group(f"preference/{name}", name, results, evaluator.strategy)
    return PreferenceScore(name, group.aggregated_score, weight, (group,), evaluator.strategy)
