"""Evaluation of one criterion: its function, its code in the sandbox, or its judge."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onward.errors import ConfigError
from onward.reward.sandbox import Sandbox
from onward.rubrics.evaluation.context import EvaluationContext, MissingContext, artefact_of
from onward.rubrics.evaluation.models import WorkflowRubric
from onward.rubrics.language.code_rules import code_outcome
from onward.rubrics.language.free import FunctionRule, StagedRubric
from onward.rubrics.language.judging import Judge, judged, prompt_of
from onward.rubrics.language.outcomes import NotApplicable, Outcome, failed, not_applicable, outcome_of
from onward.rubrics.language.staged import RuleRunner, StagedScore, combine, score_free


@dataclass(frozen=True)
class EvaluatedWorkflow:
    """The workflow under evaluation. Its JSON view is made once, when a criterion needs it."""

    workflow: Any

    @cached_property
    def artefact(self) -> Any:
        return artefact_of(self.workflow)


@dataclass(frozen=True)
class CriterionRunner:
    """Evaluates criteria with a sandbox, a judge and a time limit."""

    sandbox: Sandbox
    judge: Judge | None
    timeout: float

    async def outcome(
        self, criterion: WorkflowRubric, subject: EvaluatedWorkflow, context: EvaluationContext
    ) -> tuple[Outcome, str | None]:
        """Returns (outcome, the judge's answer). A failure is an outcome; only ConfigError is raised."""
        most = criterion.max_score
        missing = context.missing(criterion.required_context)
        if missing:
            return failed(f"The context item {missing[0]} was not given.", most), None
        try:
            async with asyncio.timeout(self.timeout):
                if criterion.evaluator_function is not None:
                    value = await called(criterion.evaluator_function, subject.workflow, context)
                    return outcome_of(value, most, clamp=criterion.clamp), None
                if criterion.evaluator_code is not None:
                    found = await code_outcome(
                        *(self.sandbox, criterion.evaluator_code, subject.artefact, most),
                        clamp=criterion.clamp,
                    )
                    return found, None
                prompt = prompt_of(criterion.llm_prompt or "", subject.artefact, most)
                return await judged(
                    *(self.judge, prompt, most),
                    model=criterion.llm_model,
                    seed=context.seed,
                    clamp=criterion.clamp,
                )
        except NotApplicable as reason:
            return not_applicable(str(reason), most), None
        except MissingContext as item:
            return failed(f"The context item {item} was not given.", most), None
        except TimeoutError:
            return failed(f"The criterion took longer than {self.timeout:g} s.", most), None
        except ConfigError:
            raise
        except Exception as error:
            return failed(f"{type(error).__name__}: {error}", most), None


async def staged_score(rubric: StagedRubric, subject: EvaluatedWorkflow, runner: RuleRunner) -> StagedScore:
    """Returns the score of a free rubric; a workflow that cannot be read is an error of each of its rules."""
    rules = [(stage.name, rule) for stage in rubric.stages for rule in stage.rules]
    try:
        needs_view = any(not isinstance(rule, FunctionRule) for _, rule in rules)
        artefact = subject.artefact if needs_view else None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return combine(rubric, {(stage, rule.name): failed(reason, rule.weight) for stage, rule in rules})
    return await score_free(rubric, artefact, runner, subject.workflow)


async def called(function: Callable[..., Any], workflow: Any, context: EvaluationContext) -> Any:
    """Calls a criterion's function and returns its value.

    Two parameters or more: (workflow, context). One that is not named ``workflow``: (context). Otherwise:
    (workflow).
    """
    names = list(inspect.signature(function).parameters)
    if len(names) >= 2:
        value = function(workflow, context)
    elif len(names) == 1 and names[0] != "workflow":
        value = function(context)
    else:
        value = function(workflow)
    return await value if inspect.isawaitable(value) else value
