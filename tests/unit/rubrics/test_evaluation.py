"""The evaluation engine: cadence, context, three states, totals, order, purity."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from rubric_workflows import Workflow, criterion, evaluate

from onward.clock import ManualClock
from onward.rubrics.evaluation import (
    ContextItem,
    EvaluationError,
    Evaluator,
    NotApplicable,
    Preference,
    PreferenceWeights,
    RunCondition,
    ValidationEngine,
    WorkflowRubric,
)
from onward.rubrics.language.free import FunctionRule, Stage, StagedRubric
from onward.rubrics.reward import spec_total


def test_the_seeds_two_evaluations_give_its_two_rewards() -> None:
    """As the quick start calls them: keyword arguments, no cadence, no preferences."""

    async def score(value: float) -> float | None:
        rubric = Evaluator(name="rubric", rubrics=(criterion("only", value),))
        result = await ValidationEngine(seed=42).evaluate_timestep(
            workflow=Workflow(),
            workflow_evaluators=[rubric],
            timestep=0,
            cadence=None,
            communications=None,
            manager_actions=None,
        )
        return result.weighted_preference_total

    synthetic, truth = asyncio.run(score(0.72)), asyncio.run(score(0.85))
    assert spec_total(synthetic, truth) == pytest.approx(-0.0169)
    assert spec_total(synthetic, truth, distance="absolute") == pytest.approx(-0.13)


class Scored:
    score = 0.25
    reason = "by an object"


@pytest.mark.parametrize(
    "value, raw",
    [
        (True, 10.0),
        (False, 0.0),
        (7, 7.0),
        ("2.5", 2.5),
        ((4.0, "reason"), 4.0),
        ((4.0,), 4.0),
        ([True, "reason"], 10.0),
        (Scored(), 0.25),
    ],
)
def test_every_form_of_a_returned_score_is_read(value: Any, raw: float) -> None:
    result = evaluate(criterion("a", value, max_score=10.0)).criteria[0]
    assert (result.status, result.raw, result.normalized) == ("scored", raw, raw / 10)
    assert (result.score, result.normalized_score) == (raw, raw / 10)


@pytest.mark.parametrize(
    "value, error",
    [
        (None, "returned None: return a number or a bool"),
        ("good", "returned 'good'"),
        (math.nan, "returned nan: return a finite number"),
        (-math.inf, "returned -inf"),
        (1.5, "returned 1.5: return 0 to 1"),
        (-0.5, "returned -0.5"),
        ((1.0, "a", "b"), "return a number or a bool"),
        (RuntimeError("no file"), "RuntimeError: no file"),
    ],
)
def test_anything_else_is_an_error_without_a_number(value: Any, error: str) -> None:
    result = evaluate(criterion("a", value), criterion("b", 0.5))
    assert result.criteria[0].status == "error"
    assert result.criteria[0].raw is None and result.criteria[0].normalized is None
    assert error in str(result.criteria[0].error)
    assert result.weighted_preference_total == 0.5
    assert (result.coverage_fraction, result.error_fraction, result.is_valid) == (0.5, 0.5, False)
    assert result.valid_total is None


def test_a_score_is_clamped_where_the_criterion_says_so() -> None:
    assert evaluate(criterion("a", 1.5, clamp=True)).criteria[0].raw == 1.0
    assert evaluate(criterion("a", -1.5, clamp=True)).criteria[0].raw == 0.0
    assert evaluate(criterion("a", math.nan, clamp=True)).criteria[0].status == "error"


def test_a_criterion_that_does_not_apply_is_no_error() -> None:
    result = evaluate(criterion("a", NotApplicable("there is no invoice")), criterion("b", 0.5))
    assert result.criteria[0].status == "not_applicable"
    assert result.criteria[0].message == "there is no invoice"
    assert result.weighted_preference_total == 0.5
    assert (result.error_fraction, result.is_valid) == (0.0, True)
    assert dict(result.metrics) == {"scored": 1.0, "error": 0.0, "not_applicable": 1.0}


def test_strict_raises_and_names_the_criterion() -> None:
    with pytest.raises(EvaluationError, match="The criterion workflow/g/a has no score: RuntimeError: gone"):
        evaluate(criterion("a", RuntimeError("gone")), engine=ValidationEngine(1, strict=True))


def test_a_share_of_errors_may_be_accepted() -> None:
    engine = ValidationEngine(1, most_errors=0.5)
    assert evaluate(criterion("a", RuntimeError()), criterion("b", 1.0), engine=engine).is_valid
    assert not evaluate(criterion("a", RuntimeError()), engine=engine).is_valid


MOMENTS = [RunCondition.EACH_TIMESTEP, RunCondition.ON_COMPLETION]


@pytest.mark.parametrize("role", ["preference", "workflow"])
@pytest.mark.parametrize(
    "cadence, force, selected, expected",
    [
        ("each_timestep", False, [], ["both", "each"]),
        ("on_completion", False, [], ["both", "end"]),
        ("both", False, [], ["both"]),
        ("each_timestep", True, [], ["both", "each", "end"]),
        ("each_timestep", False, [0], ["both", "each", "end"]),
        (None, False, [], ["both", "each", "end"]),
    ],
)
def test_the_cadence_chooses_the_same_criteria_in_both_roles(
    role: str, cadence: str | None, force: bool, selected: list[int], expected: list[str]
) -> None:
    evaluator = Evaluator(
        name="g",
        rubrics=(
            criterion("each", 1.0),
            criterion("end", 1.0, run_condition="on_completion"),
            criterion("both", 1.0, run_condition="both"),
        ),
    )
    weights = PreferenceWeights(preferences=(Preference(name="p", weight=1.0, evaluator=evaluator),))
    result = asyncio.run(
        ValidationEngine(1, selected_timesteps=selected).evaluate_timestep(
            Workflow(),
            0,
            cadence,
            preferences=weights if role == "preference" else None,
            workflow_evaluators=[evaluator] if role == "workflow" else None,
            force=force,
        )
    )
    assert [one.name for one in result.criteria] == expected


MESSAGES = [{"sender": "ann", "thread": "t1", "text": "a"}, {"sender": "bo", "thread": "t1", "text": "b"}]
GIVEN = {
    "preference_history": ["p"],
    "agent_tool_usage_by_task": {"t": []},
    "agent_public_states": {"ann": "idle"},
    "stakeholder_profile": "owner",
}
FULL = Workflow(tasks={"t": {"outputs": ["f"]}}, resources={"f": "file"}, messages=MESSAGES)


@pytest.mark.parametrize(
    "item, value",
    [
        ("manager_actions", ["noop"]),
        ("communications_by_sender", {"ann": MESSAGES[:1], "bo": MESSAGES[1:]}),
        ("communications_by_thread", {"t1": MESSAGES}),
        ("preference_history", ["p"]),
        ("stakeholder_profile", "owner"),
        ("resources_by_task", {"t": ["file"]}),
        ("agent_tool_usage_by_task", {"t": []}),
        ("agent_public_states", {"ann": "idle"}),
    ],
)
def test_every_context_item_reaches_the_criterion(item: str, value: object) -> None:
    seen = []

    def rule(workflow: Any, context: Any) -> float:
        seen.append((workflow, getattr(context, item)))
        return 1.0

    needing = WorkflowRubric(
        name="a", evaluator_function=rule, required_context=frozenset({ContextItem(item)})
    )
    evaluator = Evaluator(name="g", rubrics=(needing,))
    run = ValidationEngine(1).evaluate_timestep(
        FULL, 3, None, MESSAGES, ["noop"], workflow_evaluators=[evaluator], context=GIVEN
    )
    assert asyncio.run(run).criteria[0].status == "scored"
    assert seen == [(FULL, value)]


@pytest.mark.parametrize("item", [item.value for item in ContextItem])
def test_a_missing_context_item_is_an_error_that_names_it(item: str) -> None:
    class Bare:
        name = "bare"

    def never(workflow: Any, context: Any) -> float:
        raise AssertionError

    def reads(context: Any) -> Any:
        return getattr(context, item) or 1.0

    evaluator = Evaluator(
        name="g",
        rubrics=(
            WorkflowRubric(
                name="a", evaluator_function=never, required_context=frozenset({ContextItem(item)})
            ),
            WorkflowRubric(name="b", evaluator_function=reads),
        ),
    )
    result = asyncio.run(
        ValidationEngine(1).evaluate_timestep(Bare(), 0, None, workflow_evaluators=[evaluator])
    )
    assert [one.status for one in result.criteria] == ["error", "error"]
    assert {one.error for one in result.criteria} == {f"The context item {item} was not given."}


def test_the_arity_of_a_function_decides_what_it_gets() -> None:
    seen: list[str] = []

    async def both(first: Any, second: Any) -> float:
        seen.append(f"{first.name} {second.timestep}")
        return 1.0

    def one(workflow: Any) -> float:
        seen.append(workflow.name)
        return 1.0

    def other(context: Any) -> float:
        seen.append(f"{context.workflow.name} {context.cadence}")
        return 1.0

    functions = {"a": both, "b": one, "c": other}
    evaluator = Evaluator(
        name="g",
        rubrics=tuple(WorkflowRubric(name=name, evaluator_function=rule) for name, rule in functions.items()),
    )
    run = ValidationEngine(1).evaluate_timestep(
        Workflow(), 5, "each_timestep", workflow_evaluators=[evaluator]
    )
    asyncio.run(run)
    assert seen == ["airline 5", "airline", "airline each_timestep"]


def preference(name: str, weight: float, *criteria: WorkflowRubric) -> Preference:
    return Preference(name=name, weight=weight, evaluator=Evaluator(name=name, rubrics=criteria))


def test_the_total_is_the_mean_over_the_preferences_that_have_a_score() -> None:
    weights = PreferenceWeights(
        preferences=(
            preference("speed", 0.2, criterion("a", 1.0)),
            preference("cost", 0.3, criterion("a", 0.5)),
            preference("quality", 0.4, criterion("a", RuntimeError())),
            Preference(name="none", weight=0.1),
        )
    )
    result = asyncio.run(ValidationEngine(1).evaluate_timestep(Workflow(), 0, None, preferences=weights))
    assert result.weighted_preference_total == pytest.approx((0.2 * 1 + 0.3 * 0.5) / 0.5)
    assert result.preference_scores["quality"].score is None
    assert result.preference_scores["none"].score is None
    assert result.preference_scores["cost"].weight == pytest.approx(0.3)
    groups = result.preference_scores["cost"].ruberic_group_results
    assert groups == result.preference_scores["cost"].rubric_group_results
    assert groups[0].aggregated_score == 0.5


def test_results_are_sorted_and_equal_at_any_concurrency() -> None:
    async def rule(workflow: Any, context: Any) -> float:
        await asyncio.sleep((context.seed % 5) / 1000)
        return context.seed / 2**31

    evaluators = [
        Evaluator(
            name=name,
            rubrics=tuple(
                WorkflowRubric(name=f"c{place % 7}", evaluator_function=rule) for place in range(10)
            ),
        )
        for name in ("b", "a", "b")
    ]
    digests, ids = set(), set()
    for most in (1, 3, 100):
        result = asyncio.run(
            ValidationEngine(7, most).evaluate_timestep(Workflow(), 0, None, workflow_evaluators=evaluators)
        )
        digests.add(result.digest)
        ids.add(tuple(one.id for one in result.criteria))
    assert len(digests) == len(ids) == 1
    found = list(ids.pop())
    assert found == sorted(found) and len(set(found)) == 30
    other = asyncio.run(
        ValidationEngine(8).evaluate_timestep(Workflow(), 0, None, workflow_evaluators=evaluators)
    )
    assert other.digest not in digests


def test_rewards_by_time_step_have_no_number_for_a_gap_or_an_invalid_result() -> None:
    engine = ValidationEngine(1, reward_projection=lambda value: 10 * value)

    async def run() -> None:
        for step, value in ((1, 0.5), (3, RuntimeError()), (4, 1.0)):
            evaluator = Evaluator(name="g", rubrics=(criterion("a", value),))
            await engine.evaluate_timestep(Workflow(), step, "each_timestep", workflow_evaluators=[evaluator])
        await engine.evaluate_timestep(Workflow(), 9, None, workflow_evaluators=[])

    asyncio.run(run())
    assert engine.reward_vector == [None, 5.0, None, None, 10.0]


def test_an_aggregator_of_the_result_makes_the_reward_and_progress_is_kept() -> None:
    engine = ValidationEngine(1, 2, True, reward_aggregator=lambda result: result.coverage_fraction)
    weights = PreferenceWeights(preferences=(preference("speed", 1.0, criterion("a", 0.3)),))
    asyncio.run(engine.evaluate_timestep(Workflow(), 0, "each_timestep", preferences=weights))
    assert engine.reward_vector == [1.0]
    assert engine.preference_progress == [{"speed": 0.3}]


def test_time_and_duration_do_not_change_a_result() -> None:
    clock = ManualClock()

    async def rule(workflow: Any) -> float:
        await clock.advance(2.0)
        return 1.0

    engine = ValidationEngine(1, clock=clock)
    first = evaluate(WorkflowRubric(name="a", evaluator_function=rule), engine=engine)
    second = evaluate(WorkflowRubric(name="a", evaluator_function=rule), engine=engine)
    assert first.criteria[0].duration == 2.0
    assert first.timestamp != second.timestamp
    assert first == second and first.digest == second.digest


def test_a_free_rubric_stands_where_an_evaluator_may() -> None:
    rubric = StagedRubric(
        category_name="staged",
        max_total_score=4.0,
        stages=(
            Stage(
                name="gate",
                max_points=4.0,
                rules=(
                    FunctionRule(
                        name="named", weight=1.0, function=lambda workflow: workflow.name == "airline"
                    ),
                    FunctionRule(name="goal", weight=3.0, function=lambda workflow: 1.5),
                ),
            ),
        ),
    )
    weights = PreferenceWeights(preferences=(Preference(name="p", weight=1.0, evaluator=rubric),))
    result = asyncio.run(
        ValidationEngine(1).evaluate_timestep(
            Workflow(), 0, "on_completion", preferences=weights, workflow_evaluators=[rubric]
        )
    )
    assert result.weighted_preference_total == pytest.approx(2.5 / 4)
    assert result.evaluation_results[0].aggregated_score == pytest.approx(2.5 / 4)
    assert result.evaluation_results[0].aggregation_strategy == "staged"
    assert [one.id for one in result.evaluation_results[0].rubric_scores] == [
        "workflow/staged/gate/goal",
        "workflow/staged/gate/named",
    ]
