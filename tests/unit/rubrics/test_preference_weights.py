"""Models of criteria and preferences: scaled weights, changes of weights, one way for each criterion."""

from __future__ import annotations

from typing import Any

import pytest

from onward.rubrics.evaluation import (
    EvaluationError,
    Preference,
    PreferenceWeights,
    PreferenceWeightUpdateRequest,
    WorkflowRubric,
    updated,
)


def test_weights_are_scaled_and_a_model_cannot_be_changed() -> None:
    weights = PreferenceWeights(
        preferences=(Preference(name="a", weight=0.2), Preference(name="b", weight=0.6))
    )
    assert (weights.weight_of("a"), weights.weight_of("b")) == (0.25, pytest.approx(0.75))
    equal = PreferenceWeights(preferences=(Preference(name="a", weight=0), Preference(name="b", weight=0)))
    assert [one.weight for one in equal.preferences] == [0.5, 0.5]
    with pytest.raises(ValueError, match="frozen"):
        weights.preferences[0].weight = 1.0
    with pytest.raises(EvaluationError, match="name 'a'"):
        PreferenceWeights(preferences=(Preference(name="a", weight=1), Preference(name="a", weight=1)))


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"changes": {"a": 0.5}}, {"a": 1.0 / 1.5, "b": 0.3 / 1.5, "c": 0.2 / 1.5}),
        ({"changes": {"a": 0.5}, "mode": "multiplier"}, {"a": 1 / 3, "b": 0.4, "c": 4 / 15}),
        ({"changes": {"a": 0.0}, "mode": "absolute"}, {"a": 0.0, "b": 0.6, "c": 0.4}),
        ({"changes": {"a": -0.9}}, {"a": 0.0, "b": 0.6, "c": 0.4}),
        (
            {"changes": {"a": 0.7}, "mode": "absolute", "redistribution": "uniform"},
            {"a": 0.7, "b": 0.2, "c": 0.1},
        ),
        ({"changes": {"x": 0.5}, "missing": "ignore"}, {"a": 0.5, "b": 0.3, "c": 0.2}),
        (
            {"changes": {"x": 0.5}, "missing": "create_zero"},
            {"a": 0.5 / 1.5, "b": 0.3 / 1.5, "c": 0.2 / 1.5, "x": 0.5 / 1.5},
        ),
    ],
)
def test_a_change_of_weights_makes_new_ones(fields: dict[str, Any], expected: dict[str, float]) -> None:
    before = PreferenceWeights(
        preferences=tuple(
            Preference(name=name, weight=weight) for name, weight in (("a", 0.5), ("b", 0.3), ("c", 0.2))
        )
    )
    after = updated(before, PreferenceWeightUpdateRequest(timestep=5, **fields))
    assert {one.name: one.weight for one in after.preferences} == pytest.approx(expected)
    assert after.timestep == 5
    assert [one.weight for one in before.preferences] == [0.5, 0.3, 0.2]


def test_a_change_of_an_unknown_weight_is_refused() -> None:
    before = PreferenceWeights(preferences=(Preference(name="a", weight=1.0),))
    with pytest.raises(EvaluationError, match="No preference has the name 'x': use one of a"):
        updated(before, PreferenceWeightUpdateRequest(timestep=0, changes={"x": 1.0}))
    with pytest.raises(EvaluationError, match="weight of 'a' would be 2"):
        updated(before, PreferenceWeightUpdateRequest(timestep=0, changes={"a": 1.0}, normalize=False))


def test_a_criterion_has_exactly_one_way() -> None:
    with pytest.raises(EvaluationError, match="has no way to be evaluated: give exactly one of"):
        WorkflowRubric(name="a")
    with pytest.raises(EvaluationError, match="evaluator_function and llm_prompt"):
        WorkflowRubric(name="a", evaluator_function=lambda workflow: 1.0, llm_prompt="Is it good?")
