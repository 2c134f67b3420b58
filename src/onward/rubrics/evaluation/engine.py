"""The evaluation engine: scores a workflow by preferences and evaluators at a time step.

``legacy=True`` is the engine of Manager Agent Gym with its quirks (``legacy``). Invariants: an error is never
a number; a result follows from the workflow, the rubrics and the seed alone, at any concurrency.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onward.clock import Clock, SystemClock
from onward.reward.sandbox import Sandbox
from onward.rubrics.evaluation.aggregation import AggregationError, aggregate
from onward.rubrics.evaluation.context import EvaluationContext, context_items
from onward.rubrics.evaluation.groups import Group, groups_of, part_of_id, seed_of
from onward.rubrics.evaluation.legacy import legacy_evaluation
from onward.rubrics.evaluation.models import (
    EvaluationError,
    Evaluator,
    PreferenceWeights,
    RunCondition,
    WorkflowRubric,
)
from onward.rubrics.evaluation.results import (
    CriterionResult,
    EvaluationResult,
    GroupResult,
    PreferenceScore,
)
from onward.rubrics.evaluation.running import CriterionRunner, EvaluatedWorkflow, staged_score
from onward.rubrics.language.code_rules import RULE_LIMITS
from onward.rubrics.language.free import StagedRubric
from onward.rubrics.language.judging import Judge
from onward.rubrics.language.outcomes import Outcome
from onward.rubrics.language.staged import RuleRunner


class ValidationEngine:
    """Evaluates workflows. One engine may be used from many tasks of one event loop."""

    def __init__(
        self,
        seed: int,
        max_concurrent_rubrics: int = 100,
        log_preference_progress: bool = False,
        selected_timesteps: Iterable[int] | None = None,
        reward_aggregator: Callable[[EvaluationResult], Any] | None = None,
        reward_projection: Callable[[Any], float] | None = None,
        *,
        judge: Judge | None = None,
        judge_model: str = "o3",
        sandbox: Sandbox | None = None,
        strict: bool = False,
        most_errors: float = 0.0,
        timeout: float = 120.0,
        legacy: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """``selected_timesteps``: time steps at which everything is evaluated. ``judge_model``: model of the
        judge rules of free rubrics; a criterion names its own. ``strict``: an error raises EvaluationError.
        ``most_errors``: share of errors up to which a result is valid. ``timeout``: seconds for a criterion.
        """
        if max_concurrent_rubrics < 1:
            raise EvaluationError(f"max_concurrent_rubrics is {max_concurrent_rubrics}: use 1 or more.")
        self.seed = seed
        self.preference_progress: list[dict[str, float | None]] = []
        """Scores by preference of each evaluation, with ``log_preference_progress``."""
        self._log_progress = log_preference_progress
        self._selected = frozenset(selected_timesteps or ())
        self._aggregator = reward_aggregator or (lambda result: result.weighted_preference_total)
        self._projection = reward_projection or (lambda value: value)
        self._strict, self._most_errors, self._legacy = strict, most_errors, legacy
        self._judge_model = judge_model
        self._clock: Clock = clock or SystemClock()
        self._most_at_once = max_concurrent_rubrics
        self._runner = CriterionRunner(sandbox or Sandbox(RULE_LIMITS), judge, timeout)
        self._rewards: dict[int, float | None] = {}

    @property
    def reward_vector(self) -> list[float | None]:
        """Reward by time step. A time step without a valid evaluation has None (``legacy``: 0.0)."""
        gap = 0.0 if self._legacy else None
        return [self._rewards.get(step, gap) for step in range(max(self._rewards, default=-1) + 1)]

    async def evaluate_timestep(
        self,
        workflow: Any,
        timestep: int,
        cadence: RunCondition | str | None,
        communications: Sequence[Any] | None = None,
        manager_actions: Sequence[Any] | None = None,
        preferences: PreferenceWeights | None = None,
        workflow_evaluators: Iterable[Evaluator | StagedRubric] | None = None,
        *,
        context: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> EvaluationResult:
        """Evaluates a workflow and returns the result.

        ``cadence`` chooses the criteria by ``run_condition``; None evaluates all and keeps no reward.
        ``context``: further context items by name (``ContextItem``). ``force``: evaluates all.
        """
        moment = None if cadence is None else RunCondition(cadence)
        groups = groups_of(preferences, workflow_evaluators)
        items = context_items(workflow, communications, manager_actions, context)
        is_selected = force or timestep in self._selected
        at_once = asyncio.Semaphore(self._most_at_once)
        if self._legacy:
            result = await legacy_evaluation(
                *(groups, preferences, workflow, timestep, moment, items),
                is_selected=is_selected,
                runner=self._runner,
                at_once=at_once,
            )
        else:
            every = is_selected or moment is None
            subject = EvaluatedWorkflow(workflow)
            found = await asyncio.gather(
                *(
                    self._group(group, subject, timestep, moment, items, every=every, at_once=at_once)
                    for group in groups
                )
            )
            result = self._result(workflow, timestep, preferences, list(zip(groups, found, strict=True)))
        if moment is not None:
            value = self._aggregator(result) if result.is_valid else None
            self._rewards[timestep] = None if value is None else self._projection(value)
        if self._log_progress:
            scores = {name: one.score for name, one in result.preference_scores.items()}
            self.preference_progress.append(scores)
        return result

    async def _group(
        self,
        group: Group,
        subject: EvaluatedWorkflow,
        timestep: int,
        moment: RunCondition | None,
        items: Mapping[str, Any],
        *,
        every: bool,
        at_once: asyncio.Semaphore,
    ) -> GroupResult:
        if isinstance(group.evaluator, StagedRubric):
            return await self._staged(group, group.evaluator, subject, timestep, at_once)
        due = [
            (id_, criterion)
            for id_, criterion in group.criteria()
            if every or criterion.run_condition in (moment, RunCondition.BOTH)
        ]
        results = await asyncio.gather(
            *(
                self._criterion(
                    *(id_, criterion, subject, at_once),
                    EvaluationContext(
                        *(subject.workflow, timestep, moment, seed_of((self.seed, id_, timestep)), items)
                    ),
                )
                for id_, criterion in due
            )
        )
        scored = [
            (result.normalized, criterion.share)
            for result, (_, criterion) in zip(results, due, strict=True)
            if result.normalized is not None
        ]
        error = None
        try:
            total = aggregate(
                group.evaluator.aggregation, [score for score, _ in scored], [share for _, share in scored]
            )
        except AggregationError as wrong:
            total, error = None, str(wrong)
        ordered = tuple(sorted(results, key=lambda result: result.id))
        return GroupResult(group.id, group.name, ordered, total, group.evaluator.strategy, error)

    async def _criterion(
        self,
        id_: str,
        criterion: WorkflowRubric,
        subject: EvaluatedWorkflow,
        at_once: asyncio.Semaphore,
        context: EvaluationContext,
    ) -> CriterionResult:
        async with at_once:
            began = self._clock.monotonic()
            outcome, answer = await self._runner.outcome(criterion, subject, context)
            seconds = self._clock.monotonic() - began
        return _result(id_, criterion.name, outcome, answer, seconds)

    async def _staged(
        self,
        group: Group,
        rubric: StagedRubric,
        subject: EvaluatedWorkflow,
        timestep: int,
        at_once: asyncio.Semaphore,
    ) -> GroupResult:
        runner = RuleRunner(
            self._runner.sandbox,
            self._runner.judge,
            self._judge_model,
            seed_of((self.seed, group.id, timestep)),
            self._runner.timeout,
            at_once,
        )
        found = await staged_score(rubric, subject, runner)
        results = [
            _result(f"{group.id}/{part_of_id(stage)}/{part_of_id(rule)}", rule, outcome, None, 0.0)
            for (stage, rule), outcome in found.rules.items()
        ]
        ordered = tuple(sorted(results, key=lambda result: result.id))
        return GroupResult(group.id, group.name, ordered, found.normalized, "staged", found.error or None)

    def _result(
        self,
        workflow: Any,
        timestep: int,
        preferences: PreferenceWeights | None,
        found: Sequence[tuple[Group, GroupResult]],
    ) -> EvaluationResult:
        by_preference = {group.name: one for group, one in found if group.kind == "preference"}
        scores = {
            one.name: _preference_score(one.name, one.weight, by_preference.get(one.name))
            for one in (preferences.preferences if preferences is not None else ())
        }
        evaluators = [one for group, one in found if group.kind == "workflow"]
        results = [result for _, one in found for result in one.rubric_scores]
        states = [result.status for result in results]
        failed = sum(
            one.error is not None for group, one in found if not isinstance(group.evaluator, StagedRubric)
        )
        error_fraction = (states.count("error") + failed) / max(1, len(states) + failed)
        if self._strict and error_fraction > 0:
            raise EvaluationError(_first_error([one for _, one in found]))
        return EvaluationResult(
            workflow_id=str(getattr(workflow, "id", None) or getattr(workflow, "name", "")),
            timestep=timestep,
            preference_scores=scores,
            evaluation_results=tuple(sorted(evaluators, key=lambda one: one.id)),
            weighted_preference_total=_total(scores.values(), evaluators),
            coverage_fraction=states.count("scored") / len(states) if states else 0.0,
            error_fraction=error_fraction,
            is_valid=error_fraction <= self._most_errors,
            metrics={state: float(states.count(state)) for state in ("scored", "error", "not_applicable")},
            timestamp=self._clock.now(),
        )


def _result(id_: str, name: str, outcome: Outcome, answer: str | None, seconds: float) -> CriterionResult:
    return CriterionResult(
        id=id_,
        name=name,
        status=outcome.status,
        raw=outcome.raw,
        max_score=outcome.max_score,
        normalized=outcome.normalized,
        message=outcome.message,
        error=outcome.error or None,
        raw_output=answer,
        duration=seconds,
    )


def _preference_score(name: str, weight: float, group: GroupResult | None) -> PreferenceScore:
    if group is None:
        return PreferenceScore(name, None, weight, (), "")
    return PreferenceScore(name, group.aggregated_score, weight, (group,), group.aggregation_strategy)


def _total(scores: Iterable[PreferenceScore], evaluators: Sequence[GroupResult]) -> float | None:
    """Returns the weighted mean over the preferences that have a score; without preferences the mean over the
    evaluators. A preference without a score is left out, with its weight."""
    given = list(scores)
    if given:
        pairs = [(one.score, one.weight) for one in given if one.score is not None]
    else:
        pairs = [(one.aggregated_score, 1.0) for one in evaluators if one.aggregated_score is not None]
    total = sum(weight for _, weight in pairs)
    return sum(score * weight for score, weight in pairs) / total if total > 0 else None


def _first_error(groups: Sequence[GroupResult]) -> str:
    for group in groups:
        for result in group.rubric_scores:
            if result.status == "error":
                return f"The criterion {result.id} has no score: {result.error}"
    return next(f"The group {group.id} has no score: {group.error}" for group in groups if group.error)
