"""Case 15: defects of Manager Agent Gym, one test for each, named after the defect."""

from __future__ import annotations

import asyncio
import io
import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from onward.reward.sandbox import Limits, Sandbox
from onward.rubrics.evaluation import (
    ContextItem,
    EvaluationError,
    EvaluationResult,
    Evaluator,
    Preference,
    PreferenceWeights,
    PreferenceWeightUpdateRequest,
    ValidationEngine,
    WorkflowRubric,
    check_evaluator,
    updated,
)
from onward.rubrics.language import Criterion, InvalidRubric, Rubric, serialise
from onward.rubrics.language.free import CodeRule, FunctionRule, Stage, StagedRubric, parse_free
from onward.rubrics.language.judging import JudgeError
from onward.rubrics.tasks import (
    DIMENSIONS,
    HELD_OUT_FAMILIES,
    TRAINING_FAMILIES,
    TaskStakeholder,
    make_task,
)
from onward.rubrics.tasks.rounding import rounded


@dataclass
class Workflow:
    name: str = "w"
    tasks: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)


def criterion(name: str, value: Any, **more: Any) -> WorkflowRubric:
    def rule(workflow: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return WorkflowRubric(name=name, evaluator_function=rule, **more)


def evaluate(
    evaluator: Any, workflow: Any = None, cadence: str | None = None, **options: Any
) -> EvaluationResult:
    engine = ValidationEngine(1, **options)
    return asyncio.run(
        engine.evaluate_timestep(workflow or Workflow(), 0, cadence, workflow_evaluators=[evaluator])
    )


def staged(**functions: Any) -> StagedRubric:
    rules = tuple(FunctionRule(name=name, weight=1.0, function=one) for name, one in functions.items())
    return StagedRubric(
        category_name="g",
        max_total_score=len(rules),
        stages=(Stage(name="s", max_points=len(rules), rules=rules),),
    )


def test_nan_score_has_full_marks() -> None:
    result = evaluate(Evaluator(name="g", rubrics=(criterion("a", math.nan, max_score=10.0),)))
    assert (result.criteria[0].status, result.weighted_preference_total) == ("error", None)


def test_nan_in_the_staged_path_ends_the_whole_evaluation() -> None:
    engine = ValidationEngine(1)
    bad, good = staged(a=lambda workflow: math.nan), Evaluator(name="h", rubrics=(criterion("a", 0.5),))
    result = asyncio.run(engine.evaluate_timestep(Workflow(), 0, None, workflow_evaluators=[bad, good]))
    assert [one.aggregated_score for one in result.evaluation_results] == [None, 0.5]
    assert result.weighted_preference_total == 0.5 and not result.is_valid


class Refusing:
    async def answer(self, prompt: str, *, model: str, seed: int) -> str:
        raise JudgeError("The provider refused the request.")


def test_failure_of_a_rule_or_a_provider_is_zero_without_an_error() -> None:
    rubrics = (
        criterion("code", RuntimeError("gone")),
        WorkflowRubric(name="judge", llm_prompt="Is it good?"),
        criterion("right", 1.0),
    )
    result = evaluate(Evaluator(name="g", rubrics=rubrics), judge=Refusing())
    found = {one.name: (one.status, one.raw, one.error) for one in result.criteria}
    assert found == {
        "code": ("error", None, "RuntimeError: gone"),
        "judge": ("error", None, "The provider refused the request."),
        "right": ("scored", 1.0, None),
    }
    assert not result.is_valid and result.error_fraction == pytest.approx(2 / 3)
    without = evaluate(Evaluator(name="g", rubrics=rubrics[1:2]))
    assert without.criteria[0].error == "There is no judge for this rule: give one."


def test_missing_evaluator_is_zero() -> None:
    weights = PreferenceWeights(
        preferences=(
            Preference(name="speed", weight=0.5),
            Preference(
                name="cost", weight=0.5, evaluator=Evaluator(name="e", rubrics=(criterion("a", 0.8),))
            ),
        )
    )
    result = asyncio.run(ValidationEngine(1).evaluate_timestep(Workflow(), 0, None, preferences=weights))
    assert result.preference_scores["speed"].score is None
    assert result.weighted_preference_total == 0.8


@pytest.mark.parametrize("how, expected", [("min", 0.2), ("max", 0.8), ("product", 0.16)])
def test_aggregation_is_ignored(how: Any, expected: float) -> None:
    evaluator = Evaluator(name="g", aggregation=how, rubrics=(criterion("a", 0.2), criterion("b", 0.8)))
    assert evaluate(evaluator).weighted_preference_total == pytest.approx(expected)


@pytest.mark.parametrize("cadence", ["each_timestep", "on_completion"])
def test_condition_both_never_runs(cadence: str) -> None:
    evaluator = Evaluator(name="g", rubrics=(criterion("a", 0.2, run_condition="both"),))
    assert evaluate(evaluator, cadence=cadence).weighted_preference_total == 0.2


def test_model_of_a_judge_is_dropped() -> None:
    class Judge:
        models: list[str] = []  # noqa: RUF012

        async def answer(self, prompt: str, *, model: str, seed: int) -> str:
            self.models.append(model)
            return '{"score": 1}'

    rubric = WorkflowRubric(name="a", llm_prompt="Is it good?", llm_model="small")
    evaluate(Evaluator(name="g", rubrics=(rubric,)), judge=Judge())
    assert Judge.models == ["small"]


@pytest.mark.parametrize("item", list(ContextItem))
def test_required_context_is_none(item: ContextItem) -> None:
    def rule(workflow: Any, context: Any) -> float:
        raise AssertionError("called without its context")

    class Bare:
        name = "bare"

    rubric = WorkflowRubric(name="a", evaluator_function=rule, required_context=frozenset({item}))
    result = evaluate(Evaluator(name="g", rubrics=(rubric,)), Bare())
    assert result.criteria[0].error == f"The context item {item.value} was not given."


def test_maximum_cannot_be_reached() -> None:
    """A maximum of 3 for a function with results from 0 to 1; and a rule whose context is never there."""
    low = Evaluator(name="g", rubrics=(criterion("sourcing", 1.0, max_score=3.0),))
    with pytest.raises(EvaluationError, match=r"workflow/g/sourcing gives the best case 1 of 3"):
        asyncio.run(check_evaluator(low, Workflow()))

    def never(workflow: Any, context: Any) -> float:
        return 1.0 if context.agent_tool_usage_by_task else 0.0

    unseen = Evaluator(name="g", rubrics=(WorkflowRubric(name="a", evaluator_function=never),))
    with pytest.raises(EvaluationError, match="context item agent_tool_usage_by_task was not given"):
        asyncio.run(check_evaluator(unseen, Workflow()))
    asyncio.run(check_evaluator(unseen, Workflow(), context={"agent_tool_usage_by_task": {"t": ["x"]}}))


def test_rubric_that_cannot_fail_is_refused() -> None:
    always = Evaluator(name="g", rubrics=(criterion("a", True),))
    with pytest.raises(EvaluationError, match="'g' cannot fail: all 2 poor cases have full marks"):
        asyncio.run(check_evaluator(always, Workflow(), [Workflow(), Workflow()]))


def test_preference_and_evaluator_of_one_name_share_a_bucket() -> None:
    preference = Preference(
        name="q", weight=1.0, evaluator=Evaluator(name="q", rubrics=(criterion("a", 1.0),))
    )
    result = asyncio.run(
        ValidationEngine(1).evaluate_timestep(
            Workflow(),
            0,
            None,
            preferences=PreferenceWeights(preferences=(preference,)),
            workflow_evaluators=[
                Evaluator(name="q", rubrics=(criterion("a", 0.0),)),
                Evaluator(name="q", rubrics=(criterion("a", 0.5),)),
            ],
        )
    )
    assert result.preference_scores["q"].score == 1.0
    assert [one.aggregated_score for one in result.evaluation_results] == [0.0, 0.5]
    assert len({one.id for one in result.criteria}) == 3


def test_update_of_weights_changes_those_of_an_earlier_time() -> None:
    first = PreferenceWeights(
        preferences=(Preference(name="a", weight=0.5), Preference(name="b", weight=0.5))
    )
    later = updated(first, PreferenceWeightUpdateRequest(timestep=5, changes={"a": 1.0}, mode="absolute"))
    assert [one.weight for one in first.preferences] == [0.5, 0.5]
    assert [one.weight for one in later.preferences] == pytest.approx([2 / 3, 1 / 3])


def test_parallel_variants_share_state() -> None:
    async def rule(workflow: Any, context: Any) -> float:
        before = workflow.name
        await asyncio.sleep(0)
        return float(before == workflow.name == context.workflow.name)

    evaluator = Evaluator(name="g", rubrics=(WorkflowRubric(name="a", evaluator_function=rule),) * 3)
    engine = ValidationEngine(1)

    async def run() -> list[EvaluationResult]:
        return await asyncio.gather(
            *(
                engine.evaluate_timestep(Workflow(f"w{place}"), place, None, workflow_evaluators=[evaluator])
                for place in range(20)
            )
        )

    results = asyncio.run(run())
    assert [one.workflow_id for one in results] == [f"w{place}" for place in range(20)]
    alone = [
        asyncio.run(
            ValidationEngine(1).evaluate_timestep(
                Workflow(f"w{place}"), place, None, workflow_evaluators=[evaluator]
            )
        )
        for place in range(20)
    ]
    assert [one.digest for one in results] == [one.digest for one in alone]
    assert {one.weighted_preference_total for one in results} == {1.0}


def grams(text: str, length: int = 4) -> set[tuple[str, ...]]:
    words = "".join(one if one.isalnum() or one == "_" else " " for one in text.lower()).split()
    return set(zip(*(words[start:] for start in range(length)), strict=False))


@pytest.mark.parametrize("family", (*TRAINING_FAMILIES, *HELD_OUT_FAMILIES))
def test_stakeholder_has_the_truth_in_its_words(family: str) -> None:
    task = make_task(family, 3)
    weights = rounded(task.weights)
    truth = serialise(
        Rubric(
            [
                Criterion(check, int(weight))
                for check, weight in zip(task.active, weights, strict=True)
                if weight
            ]
        )
    )
    for topic in DIMENSIONS:
        text = TaskStakeholder(task).ask(topic).text
        assert not grams(text) & grams(truth)
        assert not any(check.name in text for check in task.active)


CODE = "def evaluate(artefact):\n    {body}\n"


@pytest.mark.parametrize(
    "body, error",
    [
        ("return len(open('/proc/1/environ').read())", "PermissionError"),
        ("import socket; socket.create_connection(('127.0.0.1', 80)); return 1", "Error"),
        ("import subprocess; subprocess.run(['id']); return 1", "Error"),
        ("while True: pass", "exceeded its time"),
    ],
)
def test_rule_text_runs_in_this_process_without_a_limit(body: str, error: str) -> None:
    rubric = WorkflowRubric(name="a", evaluator_code=CODE.format(body=body))
    short = Sandbox(Limits(cpu_seconds=1, wall_seconds=3.0))
    result = evaluate(Evaluator(name="g", rubrics=(rubric,)), sandbox=short)
    assert result.criteria[0].status == "error"
    assert error in str(result.criteria[0].error)


def test_rule_text_changes_this_process() -> None:
    body = "import sys; sys.modules['onward'].leaked = True; sys.setrecursionlimit(77); return 1"
    limit = sys.getrecursionlimit()
    rubric = WorkflowRubric(name="a", evaluator_code=CODE.format(body=body))
    assert evaluate(Evaluator(name="g", rubrics=(rubric,))).criteria[0].status == "scored"
    assert not hasattr(sys.modules["onward"], "leaked") and sys.getrecursionlimit() == limit


def test_concurrent_rules_swap_standard_output() -> None:
    printing = CODE.format(body="print(artefact['name']); return len(artefact['name']) / 10")
    rubrics = tuple(WorkflowRubric(name=f"c{place}", evaluator_code=printing) for place in range(3))
    before, sys.stdout = sys.stdout, io.StringIO()
    mine = sys.stdout
    try:
        result = evaluate(Evaluator(name="g", rubrics=rubrics), Workflow("abc"))
        assert sys.stdout is mine and mine.getvalue() == ""
    finally:
        sys.stdout = before
    assert [one.raw for one in result.criteria] == [0.3] * 3


def test_gold_code_does_not_compile_and_scores_zero() -> None:
    broken = CODE.format(body="return 1").replace("\n", "\\n")
    with pytest.raises(InvalidRubric, match="its line breaks are escaped twice"):
        WorkflowRubric(name="a", evaluator_code=broken)


def test_failed_generation_leaves_a_placeholder() -> None:
    for text in ("", "{}", "Sorry, I cannot.", json.dumps({"category_name": "x", "stages": []})):
        with pytest.raises(InvalidRubric):
            parse_free(text)
    with pytest.raises(InvalidRubric):
        Rubric([])


def test_missing_resource_is_made_up() -> None:
    """A file that no task wrote is an error of each criterion that reads it, and no empty text."""

    class Store(Workflow):
        def read(self, name: str) -> bytes:
            raise FileNotFoundError(f"no task has written {name}")

    rubric = WorkflowRubric(name="a", evaluator_code=CODE.format(body="return 1"))
    result = evaluate(Evaluator(name="g", rubrics=(rubric,)), Store(resources={"report.md": None}))
    assert result.criteria[0].error == "FileNotFoundError: no task has written report.md"
    assert result.weighted_preference_total is None
    code = CodeRule(name="a", weight=1.0, code=rubric.evaluator_code or "")
    stage = Stage(name="s", max_points=1.0, rules=(code,))
    free = StagedRubric(category_name="free", max_total_score=1.0, stages=(stage,))
    result = evaluate(free, Store(resources={"report.md": None}))
    assert result.criteria[0].error == "FileNotFoundError: no task has written report.md"
    assert not result.is_valid and result.valid_total is None
