"""The engine of Manager Agent Gym: each quirk with figures worked out by hand from its description."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from onward.rubrics.evaluation import (
    ContextItem,
    EvaluationResult,
    Evaluator,
    Preference,
    PreferenceWeights,
    ValidationEngine,
    WorkflowRubric,
)


class Workflow:
    name = "w"


def criterion(name: str, value: Any, most: float = 1.0, **more: Any) -> WorkflowRubric:
    def rule(workflow: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return WorkflowRubric(name=name, evaluator_function=rule, max_score=most, **more)


def evaluate(
    *preferences: Preference,
    evaluators: tuple[Evaluator, ...] = (),
    cadence: str | None = "each_timestep",
    **options: Any,
) -> EvaluationResult:
    engine = ValidationEngine(1, legacy=True, **options)
    weights = PreferenceWeights(preferences=preferences)
    return asyncio.run(engine.evaluate_timestep(Workflow(), 2, cadence, [], [], weights, list(evaluators)))


def preference(
    name: str, *criteria: WorkflowRubric, weight: float = 1.0, how: Any = "weighted_average"
) -> Preference:
    return Preference(
        name=name, weight=weight, evaluator=Evaluator(name=name, aggregation=how, rubrics=criteria)
    )


def test_the_score_is_points_over_maxima_whatever_the_aggregation() -> None:
    result = evaluate(preference("q", criterion("a", 1.0, 2.0), criterion("b", 0.0, 3.0), how="min"))
    score = result.preference_scores["q"]
    assert score.score == pytest.approx(1 / 5)
    assert score.aggregation_strategy == "min"
    assert result.weighted_preference_total == pytest.approx(1 / 5)


@pytest.mark.parametrize(
    "value, most, raw",
    [
        (math.nan, 10.0, 10.0),
        (True, 10.0, 1.0),
        (False, 10.0, 0.0),
        (12.0, 10.0, 10.0),
        (-3.0, 10.0, 0.0),
        ((4.0, "why"), 10.0, 4.0),
    ],
)
def test_a_value_is_clamped_as_the_old_engine_did(value: Any, most: float, raw: float) -> None:
    result = evaluate(preference("q", criterion("a", value, most))).criteria[0]
    assert (result.raw, result.normalized) == (raw, raw / most)


def test_an_error_counts_as_zero() -> None:
    result = evaluate(preference("q", criterion("a", RuntimeError("gone")), criterion("b", 1.0)))
    assert result.weighted_preference_total == 0.5
    assert result.criteria[0].error == "RuntimeError: gone"
    assert result.error_fraction == 0.0 and result.is_valid


class Judge:
    def __init__(self, text: str) -> None:
        self.text, self.models = text, []

    async def answer(self, prompt: str, *, model: str, seed: int) -> str:
        self.models.append(model)
        return self.text


@pytest.mark.parametrize(
    "answer, raw",
    [
        ('{"score": 3}', 3.0),
        ('{"score": true}', 4.0),
        ('{"score": false}', 0.0),
        ('{"score": "high"}', 4.0),
        ('{"score": "medium"}', 2.64),
        ('{"score": "low"}', 1.32),
        ('{"score": 9}', 4.0),
        ("I refuse", 0.0),
    ],
)
def test_a_judge_is_always_one_model_and_its_failure_leaves_no_error(answer: str, raw: float) -> None:
    judge = Judge(answer)
    rubric = WorkflowRubric(name="a", llm_prompt="Good?", llm_model="other", max_score=4.0)
    result = evaluate(preference("q", rubric), judge=judge)
    assert result.criteria[0].raw == pytest.approx(raw)
    assert result.criteria[0].error is None
    assert judge.models == ["o3"]


@pytest.mark.parametrize(
    "cadence, selected, in_preference, in_workflow",
    [
        ("each_timestep", [], {"each"}, {"each", "end", "both"}),
        ("on_completion", [], {"end"}, {"each", "end", "both"}),
        ("on_completion", [2], {"each", "end", "both"}, {"each", "end", "both"}),
        (None, [], set(), set()),
    ],
)
def test_both_never_runs_and_evaluators_always_do(
    cadence: str | None, selected: list[int], in_preference: set[str], in_workflow: set[str]
) -> None:
    criteria = (
        criterion("each", 1.0),
        criterion("end", 1.0, run_condition="on_completion"),
        criterion("both", 1.0, run_condition="both"),
    )
    result = evaluate(
        preference("q", *criteria),
        evaluators=(Evaluator(name="e", rubrics=criteria),),
        cadence=cadence,
        selected_timesteps=selected,
    )
    groups = result.preference_scores["q"].ruberic_group_results
    assert {one.name for group in groups for one in group.rubric_scores} == in_preference
    assert {one.name for one in result.evaluation_results[0].rubric_scores} == in_workflow
    assert result.evaluation_results[0].aggregation_strategy == "weighted_by_max"


def test_a_preference_without_a_score_lowers_the_possible_total() -> None:
    result = evaluate(
        preference("q", criterion("a", 1.0), weight=0.5),
        Preference(name="none", weight=0.25),
        preference("later", criterion("a", 1.0, run_condition="on_completion"), weight=0.25),
    )
    assert result.weighted_preference_total == 0.5
    assert result.preference_scores["later"].score == 0.0
    assert "none" not in result.preference_scores


def test_a_preference_and_an_evaluator_of_one_name_share_results() -> None:
    result = evaluate(
        preference("q", criterion("a", 1.0)),
        evaluators=(Evaluator(name="q", rubrics=(criterion("b", 0.0),)),),
    )
    assert result.preference_scores["q"].score == 0.5
    assert result.evaluation_results[0].aggregated_score == 0.5


def test_a_missing_context_item_is_passed_on_as_none() -> None:
    seen = []

    def rule(workflow: Any, context: Any) -> float:
        seen.append(context.communications_by_thread)
        return 1.0

    rubric = WorkflowRubric(
        name="a", evaluator_function=rule, required_context=frozenset({ContextItem.COMMUNICATIONS_BY_THREAD})
    )

    async def run() -> None:
        weights = PreferenceWeights(preferences=(preference("q", rubric),))
        await ValidationEngine(1, legacy=True).evaluate_timestep(
            Workflow(), 0, "each_timestep", None, None, weights
        )

    asyncio.run(run())
    assert seen == [None]


def test_results_come_in_the_order_in_which_they_ended_and_gaps_are_zero() -> None:
    def after(seconds: float) -> Any:
        async def rule(workflow: Any) -> float:
            await asyncio.sleep(seconds)
            return 0.5

        return rule

    engine = ValidationEngine(1, legacy=True)
    rubrics = (
        WorkflowRubric(name="a", evaluator_function=after(0.05)),
        WorkflowRubric(name="b", evaluator_function=after(0.0)),
    )
    weights = PreferenceWeights(
        preferences=(Preference(name="q", weight=1.0, evaluator=Evaluator(name="q", rubrics=rubrics)),)
    )
    result = asyncio.run(engine.evaluate_timestep(Workflow(), 2, "each_timestep", [], [], weights))
    group = result.preference_scores["q"].ruberic_group_results[0]
    assert [one.name for one in group.rubric_scores] == ["b", "a"]
    assert engine.reward_vector == [0.0, 0.0, 0.5]
