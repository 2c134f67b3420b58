"""Aggregation of the scores of a group: every way, its range, empty groups, faults."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rubric_workflows import criterion, evaluate

from onward.rubrics.evaluation import (
    EvaluationError,
    Evaluator,
)
from onward.rubrics.evaluation.aggregation import aggregate

GROUP = (criterion("a", 1.0, max_score=2.0), criterion("b", 0.4), criterion("c", 3.0, max_score=3.0))
"""Normalized .5, .4 and 1; weights 2, 1 and 3."""


@pytest.mark.parametrize(
    "how, expected",
    [
        ("weighted_average", (2 * 0.5 + 0.4 + 3) / 6),
        ("mean", 1.9 / 3),
        ("min", 0.4),
        ("max", 1.0),
        ("product", 0.2),
        ("harmonic_mean", 3 / (2 + 2.5 + 1)),
        (lambda scores: sorted(scores)[1], 0.5),
    ],
)
def test_every_aggregation_is_applied(how: Any, expected: float) -> None:
    result = evaluate(*GROUP, how=how)
    assert result.evaluation_results[0].aggregated_score == pytest.approx(expected)
    assert result.weighted_preference_total == pytest.approx(expected)
    name = how if isinstance(how, str) else "<lambda>"
    assert result.evaluation_results[0].aggregation_strategy == name


def test_a_harmonic_mean_with_a_zero_is_zero() -> None:
    assert (
        evaluate(criterion("a", 0.0), criterion("b", 1.0), how="harmonic_mean").weighted_preference_total == 0
    )


def test_an_empty_group_has_no_score() -> None:
    for how in ("weighted_average", "mean", "min", "max", "product", "harmonic_mean"):
        assert aggregate(how, [], []) is None
    assert evaluate().weighted_preference_total is None


def test_a_fault_takes_weight_away_and_the_score_stays_in_range() -> None:
    assert evaluate(
        criterion("good", True, weight=4.0), criterion("fault", True, weight=-1.0)
    ).weighted_preference_total == pytest.approx(0.75)
    assert (
        evaluate(
            criterion("good", False, weight=4.0), criterion("fault", True, weight=-1.0)
        ).weighted_preference_total
        == 0
    )
    with pytest.raises(EvaluationError, match="negative weight"):
        Evaluator(name="g", aggregation="min", rubrics=(criterion("fault", True, weight=-1.0),))
    with pytest.raises(EvaluationError, match="No criterion of 'g' has a positive weight"):
        Evaluator(name="g", rubrics=(criterion("fault", True, weight=-1.0),))


@pytest.mark.parametrize("value", [2.0, -0.1, math.nan, math.inf])
def test_an_aggregation_out_of_range_is_an_error(value: float) -> None:
    result = evaluate(*GROUP, how=lambda scores: value)
    assert result.evaluation_results[0].aggregated_score is None
    assert "return 0 to 1" in str(result.evaluation_results[0].error)
    assert not result.is_valid
    assert result.weighted_preference_total is None


def test_the_harmonic_mean_of_scores_near_zero_is_a_number() -> None:
    tiny = 1.1125369292536007e-308
    assert aggregate("harmonic_mean", [tiny, tiny], [1, 1]) == tiny
    assert aggregate("harmonic_mean", [5e-324, 1.0], [1, 1]) == 1e-323
    assert aggregate("harmonic_mean", [0.5, 1.0], [1, 1]) == pytest.approx(2 / 3)


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0.1, 5)),
        min_size=1,
        max_size=6,
    )
)
def test_every_aggregation_lies_between_the_least_and_the_greatest(pairs: list[tuple[float, float]]) -> None:
    scores, weights = [score for score, _ in pairs], [weight for _, weight in pairs]
    low, high = min(scores) - 1e-9, max(scores) + 1e-9
    for how in ("weighted_average", "mean", "min", "max", "harmonic_mean"):
        value = aggregate(how, scores, weights)
        assert value is not None and low <= value <= high
