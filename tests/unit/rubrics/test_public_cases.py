"""Failures that other projects reported in public, as tests of ours: rewards, judges, evaluation.

Numbers are those of the list in the design's facts. Cases of constrained decoding are tested in ``lm``.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from rubric_designs import Task, random_truth

from onward.envs.failures import EnvironmentFailure
from onward.rubrics.check import Check
from onward.rubrics.evaluation import EvaluationResult, Evaluator, ValidationEngine, WorkflowRubric
from onward.rubrics.language import Criterion, Rubric
from onward.rubrics.reward import RubricReward, counted, reward_of, spec_total, term_deviations

CHECKS = tuple(Check(f"check_{place:02}") for place in range(11))
TRUTH = random_truth(1)


class Away(Task):
    def probes(self) -> np.ndarray:
        raise EnvironmentFailure("connection", "The server of the tool is away.")


def rubric(*places: int) -> Rubric:
    return Rubric([Criterion(CHECKS[place], 1) for place in places])


def test_case_11_a_failed_rollout_is_not_the_best_of_its_group() -> None:
    """huggingface/trl#6427, NVIDIA-NeMo/RL#431: a default of 0.0 is the best where all are negative."""
    wrong = [int(place) for place in np.flatnonzero(TRUTH == 0)][:5]
    group = [
        reward_of(rubric(*wrong[:3]), Task(CHECKS, TRUTH)),
        reward_of(rubric(*wrong[1:4]), Task(CHECKS, TRUTH)),
        reward_of(None, Task(CHECKS, TRUTH)),
        reward_of(rubric(*wrong[:3]), Away(CHECKS, TRUTH)),
    ]
    assert [reward.total is None for reward in group] == [False, False, False, True]
    mask = counted(group)
    values = [reward.total for reward in group if reward.total is not None]
    assert max(values) < 0  # a 0.0 would have been the best
    assert mask.sum() == len(values) == 3
    assert spec_total(None, 0.5) is None


def test_case_12_terms_that_cancel_show_in_the_deviations() -> None:
    """huggingface/trl#3857, #3452, #7068: zero deviation of the total with terms that vary."""
    first = RubricReward(1.0, {"alignment": 0.5, "coverage": 0.5})
    second = RubricReward(1.0, {"alignment": 0.8, "coverage": 0.2})
    failed = RubricReward(None, failure="away")
    found = term_deviations([first, second, failed])
    assert found["total"] == 0
    assert (found["alignment"], found["coverage"]) == (pytest.approx(0.15), pytest.approx(0.15))
    assert term_deviations([failed]) == {}


JUNK: list[Any] = [
    math.nan,
    None,
    math.inf,
    -math.inf,
    "n/a",
    RuntimeError("refused"),
    1e308,
    (math.nan, "?"),
]
HOWS = ["weighted_average", "mean", "min", "max", "product", "harmonic_mean"]


def evaluate(values: list[Any], how: Any = "mean", **options: Any) -> EvaluationResult:
    def rule(value: Any) -> Any:
        def evaluated(workflow: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return evaluated

    class Workflow:
        name = "w"

    criteria = tuple(
        WorkflowRubric(name=f"c{place}", evaluator_function=rule(value)) for place, value in enumerate(values)
    )
    evaluator = Evaluator(name="g", aggregation=how, rubrics=criteria)
    engine = ValidationEngine(1, **options)
    return asyncio.run(engine.evaluate_timestep(Workflow(), 0, None, workflow_evaluators=[evaluator]))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_case_13_no_junk_becomes_a_score(junk: Any, how: str) -> None:
    """modelscope/evalscope#1575: NaN was clamped to 1.0; vibrantlabsai/ragas#2992: errors left the mean."""
    alone = evaluate([junk], how)
    assert alone.weighted_preference_total is None
    assert alone.criteria[0].status == "error" and alone.criteria[0].normalized is None
    beside = evaluate([junk, 0.25], how)
    assert beside.weighted_preference_total == pytest.approx(0.25)
    assert (beside.error_fraction, beside.is_valid) == (0.5, False)


def test_case_13_nine_tenths_of_junk_are_no_perfect_score() -> None:
    result = evaluate([1.0] + [math.nan] * 9)
    assert result.coverage_fraction == pytest.approx(0.1)
    assert result.error_fraction == pytest.approx(0.9)
    assert not result.is_valid


@pytest.mark.parametrize(
    "answer, expected",
    [
        ('The answer quotes "[[2]]" and {"score": 1}. It is wrong: {"score": 0}', 0.0),
        ('<think>Looks right: {"score": 1}</think>{"score": 0, "reason": "off by one"}', 0.0),
        ("I cannot decide.", None),
        ("[[2]]", None),
        (":", None),
    ],
)
def test_case_14_the_last_structured_verdict_counts_and_no_verdict_is_no_score(
    answer: str, expected: float | None
) -> None:
    """NVIDIA-NeMo/Gym#2852, PrimeIntellect-ai/verifiers#2072, openai/evals#1712."""

    class Judge:
        async def answer(self, prompt: str, *, model: str, seed: int) -> str:
            return answer

    class Workflow:
        name = "w"

    evaluator = Evaluator(name="g", rubrics=(WorkflowRubric(name="a", llm_prompt="Is it right?"),))
    engine = ValidationEngine(1, judge=Judge())
    run = engine.evaluate_timestep(Workflow(), 0, None, workflow_evaluators=[evaluator])
    result = asyncio.run(run)
    assert result.weighted_preference_total == expected
    assert result.criteria[0].raw_output == answer
