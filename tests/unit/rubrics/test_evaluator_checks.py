"""Checks of an evaluator on examples, ids that no two criteria share, and the view of a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from rubric_workflows import Workflow, criterion

from onward.rubrics.evaluation import (
    EvaluationError,
    EvaluationResult,
    Evaluator,
    NotApplicable,
    Preference,
    PreferenceWeights,
    PreferenceWeightUpdateRequest,
    ValidationEngine,
    WorkflowRubric,
    artefact_of,
    check_evaluator,
)
from onward.rubrics.language.free import FunctionRule, Stage, StagedRubric

BEST, POOR = SimpleNamespace(name="best", rows=2, errors=0), SimpleNamespace(name="poor", rows=0, errors=3)
ROWS = WorkflowRubric(name="rows", max_score=4.0, evaluator_function=lambda workflow: workflow.rows * 2)
FAULT = WorkflowRubric(name="errors", weight=-1.0, evaluator_function=lambda workflow: workflow.errors > 0)


def check(evaluator: Evaluator | StagedRubric, *others: Any) -> None:
    asyncio.run(check_evaluator(evaluator, BEST, others))


def evaluate(*evaluators: Evaluator | StagedRubric, **more: Any) -> EvaluationResult:
    run = ValidationEngine(1).evaluate_timestep(POOR, 0, None, workflow_evaluators=evaluators, **more)
    return asyncio.run(run)


def fails(workflow: Any) -> float:
    raise KeyError("x")


def stands_aside(workflow: Any) -> float:
    raise NotApplicable("there is no invoice")


def staged(scores: Sequence[float]) -> float:
    return 2.0


def test_a_fault_that_the_best_case_does_not_have_is_no_lost_maximum() -> None:
    check(Evaluator(name="g", rubrics=(ROWS, FAULT)), POOR)
    always = WorkflowRubric(name="errors", weight=-1.0, evaluator_function=lambda workflow: True)
    with pytest.raises(EvaluationError, match=r"workflow/g/errors takes points from the best case"):
        check(Evaluator(name="g", rubrics=(ROWS, always)), POOR)


@pytest.mark.parametrize(
    "rule, how, reason",
    [
        (stands_aside, "mean", r"a fails on the best case: it does not apply \(there is no invoice\)"),
        (fails, "mean", "a fails on the best case: KeyError: 'x'"),
        (
            lambda workflow: True,
            lambda scores: 2.0,
            "'g' has no full marks on the best case: The aggregation",
        ),
        (
            lambda workflow: True,
            lambda scores: 0.5,
            "'g' has no full marks on the best case: its total is 0.5",
        ),
        (lambda workflow: True, "mean", "'g' cannot fail: all 1 poor cases have full marks"),
        (lambda workflow: workflow.rows == 2 or fails(workflow), "mean", "no score for any of 1 poor"),
    ],
)
def test_an_evaluator_that_no_example_shows_to_work_is_refused(rule: Any, how: Any, reason: str) -> None:
    only = WorkflowRubric(name="a", evaluator_function=rule)
    with pytest.raises(EvaluationError, match=reason):
        check(Evaluator(name="g", aggregation=how, rubrics=(only,)), POOR)


def test_a_poor_case_without_a_score_does_not_hide_one_with_full_marks() -> None:
    rule = WorkflowRubric(
        name="a", evaluator_function=lambda workflow: workflow is not POOR or fails(workflow)
    )
    with pytest.raises(EvaluationError, match="cannot fail"):
        check(Evaluator(name="g", rubrics=(rule,)), POOR, SimpleNamespace(name="other"))


def test_names_with_slashes_and_numbers_have_ids_of_their_own() -> None:
    def named(*names: str) -> tuple[WorkflowRubric, ...]:
        return tuple(
            WorkflowRubric(name=name, evaluator_function=lambda workflow: workflow.rows) for name in names
        )

    result = evaluate(
        Evaluator(name="g", rubrics=named("a", "a", "a#2", "b/c", "%23")),
        Evaluator(name="g", rubrics=named("a")),
        Evaluator(name="g#2", rubrics=named("a")),
        Evaluator(name="g/b", rubrics=named("c")),
    )
    ids = [one.id for one in result.criteria]
    assert len(set(ids)) == len(ids) == 8
    assert len({one.id for one in result.evaluation_results}) == 4


def test_the_name_of_an_aggregation_does_not_hide_its_error() -> None:
    """``staged`` is the label of free rubrics, and here the name of a function that returns 2."""
    result = evaluate(Evaluator(name="g", aggregation=staged, rubrics=(ROWS,)))
    assert (result.is_valid, result.error_fraction) == (False, 0.5)


def test_code_beyond_its_maximum_is_an_error_and_is_clamped_on_demand() -> None:
    code = "def evaluate(artefact):\n    return 7\n"
    strict = WorkflowRubric(name="a", max_score=2.0, evaluator_code=code)
    clamped = WorkflowRubric(name="b", max_score=2.0, evaluator_code=code, clamp=True)
    first, second = evaluate(Evaluator(name="g", rubrics=(strict, clamped))).criteria
    assert (first.status, first.error) == ("error", "The rule returned 7: return 0 to 2.")
    assert (second.status, second.raw) == ("scored", 2.0)


def test_results_of_a_group_are_in_the_order_of_their_ids() -> None:
    names = ("c", "a", "b")
    rubrics = tuple(WorkflowRubric(name=name, evaluator_function=lambda workflow: True) for name in names)
    group = evaluate(Evaluator(name="g", rubrics=rubrics)).evaluation_results[0]
    assert [one.name for one in group.rubric_scores] == ["a", "b", "c"]


def test_messages_of_which_one_has_no_thread_are_no_context() -> None:
    seen: list[Any] = []
    reads = WorkflowRubric(
        name="a", evaluator_function=lambda workflow, context: seen.append(context.communications_by_thread)
    )
    result = evaluate(
        Evaluator(name="g", rubrics=(reads,)),
        communications=[{"sender": "ann", "thread": "t"}, {"sender": "bo"}],
    )
    assert result.criteria[0].error == "The context item communications_by_thread was not given."
    assert seen == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_change_of_weights_by_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        PreferenceWeightUpdateRequest(timestep=0, changes={"a": value})


def test_free_rubrics_keep_the_limit_of_rules_at_once() -> None:
    running, most = 0, 0

    async def rule(workflow: Any) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return 1.0

    rules = tuple(FunctionRule(name=f"r{place}", weight=1.0, function=rule) for place in range(5))
    rubric = StagedRubric(
        category_name="s", max_total_score=5.0, stages=(Stage(name="s", max_points=5.0, rules=rules),)
    )
    weights = PreferenceWeights(preferences=(Preference(name="p", weight=1.0, evaluator=rubric),))
    engine = ValidationEngine(1, 2)
    run = engine.evaluate_timestep(POOR, 0, None, preferences=weights, workflow_evaluators=[rubric])
    assert asyncio.run(run).weighted_preference_total == 1.0
    assert most == 2


def test_the_view_of_a_workflow_is_json() -> None:
    class Files(Workflow):
        def read(self, name: str) -> bytes:
            return {"a.md": b"text", "b.png": b"\xff\xfe\xff"}[name]

    view = artefact_of(Files(resources={"a.md": 1, "b.png": 2}, tasks={"t": criterion("a", 1.0)}))
    assert view["resources"] == {"a.md": "text", "b.png": None}
    assert (view["name"], view["goal"]) == ("airline", "launch")
    assert view["tasks"]["t"]["name"] == "a"


def test_a_slow_criterion_is_an_error() -> None:
    async def slow(workflow: Any) -> float:
        await asyncio.sleep(60)
        return 1.0

    group = Evaluator(name="g", rubrics=(WorkflowRubric(name="a", evaluator_function=slow),))
    run = ValidationEngine(1, timeout=0.01).evaluate_timestep(POOR, 0, None, workflow_evaluators=[group])
    result = asyncio.run(run)
    assert result.criteria[0].error == "The criterion took longer than 0.01 s."
