"""The score of a free rubric on an artefact: stages in order, gates, and what a failed gate leaves."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onward.errors import ConfigError
from onward.reward.sandbox import Sandbox
from onward.rubrics.language.code_rules import RULE_LIMITS, code_outcome
from onward.rubrics.language.free import CodeRule, JudgeRule, Rule, StagedRubric
from onward.rubrics.language.judging import Judge, judged, prompt_of
from onward.rubrics.language.outcomes import NotApplicable, Outcome, failed, not_applicable, outcome_of


@dataclass(frozen=True)
class StagedScore:
    """Result of a free rubric. ``normalized`` is None if a rule that decides could not be evaluated."""

    normalized: float | None
    points: float | None
    rules: Mapping[tuple[str, str], Outcome]
    """(stage, rule) → outcome of the rules that were counted, those behind a failed gate left out."""
    passed: Mapping[str, bool]
    """Stage → whether it reached its least score."""
    error: str = ""


@dataclass(frozen=True)
class RuleRunner:
    """Evaluates rules: code in the sandbox, prompts by the judge, functions in this process."""

    sandbox: Sandbox
    judge: Judge | None = None
    model: str = ""
    seed: int = 0
    timeout: float | None = None
    """Seconds for one rule."""
    at_once: asyncio.Semaphore | None = None
    """Limit of the rules that run at the same time."""

    async def outcome(self, rule: Rule, artefact: Any, subject: Any = None) -> Outcome:
        """Returns the outcome of a rule. ``subject``: the object that a function gets, if it is not the
        artefact itself. Points are clamped to the rule's weight."""
        most = rule.weight
        try:
            async with self.at_once or contextlib.nullcontext(), asyncio.timeout(self.timeout):
                return await self._evaluated(rule, artefact, artefact if subject is None else subject)
        except NotApplicable as reason:
            return not_applicable(str(reason), most)
        except TimeoutError:
            return failed(f"The rule took longer than {self.timeout or 0:g} s.", most)
        except ConfigError:
            raise
        except Exception as error:
            return failed(f"{type(error).__name__}: {error}", most)

    async def _evaluated(self, rule: Rule, artefact: Any, subject: Any) -> Outcome:
        most = rule.weight
        if isinstance(rule, CodeRule):
            return await code_outcome(self.sandbox, rule.code, artefact, most, clamp=True)
        if isinstance(rule, JudgeRule):
            prompt = prompt_of(rule.judge_prompt, artefact, most, rule.expectation)
            return (await judged(self.judge, prompt, most, model=self.model, seed=self.seed, clamp=True))[0]
        value = rule.function(subject)
        return outcome_of(await value if inspect.isawaitable(value) else value, most, clamp=True)


async def score_free(
    rubric: StagedRubric, artefact: Any, runner: RuleRunner | None = None, subject: Any = None
) -> StagedScore:
    """Returns the score of a free rubric on an artefact, a JSON value."""
    runner = runner or RuleRunner(Sandbox(RULE_LIMITS))
    keys = [(stage.name, rule.name) for stage in rubric.stages for rule in stage.rules]
    rules = [rule for stage in rubric.stages for rule in stage.rules]
    outcomes = await asyncio.gather(*(runner.outcome(rule, artefact, subject) for rule in rules))
    return combine(rubric, dict(zip(keys, outcomes, strict=True)))


def combine(rubric: StagedRubric, outcomes: Mapping[tuple[str, str], Outcome]) -> StagedScore:
    """Returns the score of a rubric from the outcomes of its rules. Pure.

    A rule that does not apply leaves its stage, whose points then come from the others. An error leaves the
    rubric without a score, unless a gate failed before it.
    """
    total, most = 0.0, rubric.max_total_score
    counted: dict[tuple[str, str], Outcome] = {}
    passed: dict[str, bool] = {}
    for stage in rubric.stages:
        found = {(stage.name, rule.name): outcomes[stage.name, rule.name] for rule in stage.rules}
        counted |= found
        errors = [f"{key[1]}: {one.error}" for key, one in found.items() if one.status == "error"]
        if errors:
            return StagedScore(None, None, counted, passed, errors[0])
        scored = [one for one in found.values() if one.raw is not None]
        if not scored:
            most -= stage.max_points
            continue
        share = math.fsum(one.raw or 0.0 for one in scored) / math.fsum(one.max_score for one in scored)
        points = share * stage.max_points
        passed[stage.name] = points >= stage.min_score_to_pass - 1e-9
        if stage.is_required and not passed[stage.name]:
            if stage.on_failure_action == "zero_category":
                total = stage.on_failure_score
                break
            if stage.on_failure_action == "skip_remaining":
                total += points if stage.keep_partial else 0.0
                break
        total += points
    if most <= 0:
        return StagedScore(None, None, counted, passed, "No rule of the rubric applies.")
    total = min(total, most)
    return StagedScore(total / most, total, counted, passed)
