"""Accuracy and rubrics: programmatic answers by hand."""

import pytest
from reward_documents import trajectory, turn

from onward.reward import NotApplicable, ScoringContext, Unscored
from onward.reward.components import Accuracy, RubricResult, RubricScore
from onward.reward.measures.baselines import Baselines
from onward.reward.measures.judgement import judge


def score(answer, expected, component=None, *, tool=None):
    item = trajectory(turns=[turn(1, tool=tool, output=answer)])
    if expected is not None:
        item.task_context.__pydantic_extra__ = {"expected": expected}
    return (component or Accuracy()).score(item, ScoringContext(judge(item), Baselines()))


@pytest.mark.parametrize(
    "answer, wanted, more, right",
    [
        ("Berlin", "Berlin", {}, 1.0),
        (" Berlin\n", "Berlin", {}, 1.0),
        ("berlin", "Berlin", {}, 0.0),
        ("42", 42, {}, 1.0),
        ("It is in Berlin.", "berlin", {"match": "contains"}, 1.0),
        ("Berliners", "berlin", {"match": "contains"}, 0.0),
        ("a.c", "a.c", {"match": "contains"}, 1.0),
        ("abc", "a.c", {"match": "contains"}, 0.0),
        ("17 · 23 = 391", 391, {"match": "number"}, 1.0),
        ("391, or perhaps 392", 391, {"match": "number"}, 0.0),
        ("1,234.5 EUR", 1234.5, {"match": "number"}, 1.0),
        ("−4e2", -400, {"match": "number"}, 1.0),
        ("3.14", 3.14159, {"match": "number", "tolerance": 0.01}, 1.0),
        ("3.10", 3.14159, {"match": "number", "tolerance": 0.01}, 0.0),
        ("no idea", 391, {"match": "number"}, 0.0),
        ("7 " * 300_000 + "and so 391", 391, {"match": "number"}, 1.0),
        ("391" + "." * 20_000, 391, {"match": "number"}, 0.0),
        ('{"b": [1, 2.0], "a": true}', {"a": True, "b": [1, 2]}, {"match": "json"}, 1.0),
        ('```json\n{"a": 1}\n```', {"a": 1}, {"match": "json"}, 1.0),
        ('{"a": true}', {"a": 1}, {"match": "json"}, 0.0),
        ("[" * 5000, [], {"match": "json"}, 0.0),
        ("b, A", ["a", "b"], {"match": "set"}, 1.0),
        ("- a\n- c", ["a", "b"], {"match": "set"}, 1 / 3),
        ('["a", "b", "c"]', ["a", "b"], {"match": "set"}, 2 / 3),
        ("nothing", ["a", "b"], {"match": "set"}, 0.0),
    ],
)
def test_an_answer_against_the_expected_one(answer, wanted, more, right):
    got = score(answer, {"answer": wanted, **more})
    assert got.score == pytest.approx(right) and got.source == "benchmark"


@pytest.mark.parametrize(
    "expected",
    [
        None,
        "Berlin",
        {},
        {"answer": "x", "match": "eval"},
        {"answer": "x", "match": ["exact"]},
        {"match": "json"},
        {"answer": "4", "match": "number"},
        {"answer": float("inf"), "match": "number"},
        {"answer": True, "match": "number"},
        {"answer": 4, "match": "number", "tolerance": "1"},
        {"answer": "", "match": "contains"},
        {"answer": "a,b", "match": "set"},
        {"answer": [], "match": "set"},
        {"answer": None},
    ],
)
def test_without_an_expectation_that_can_be_used_it_does_not_apply(expected):
    assert isinstance(score("Berlin", expected), NotApplicable)


def test_no_final_answer_is_a_wrong_one():
    assert score("Berlin", {"answer": "Berlin"}, tool="search").score == 0.0


class Rubric:
    rubric_id = "r1"

    def __init__(self, result):
        self.result = result

    def score(self, trajectory):
        return self.result


def test_a_rubric_scores_or_says_that_it_cannot():
    def rated(result):
        return score("x", None, RubricScore(Rubric(result)))

    good = rated(RubricResult(0.75, {"cites": 1.0, "short": 0.5}))
    assert (good.score, good.raw_data["rubric_id"]) == (0.75, "r1") and good.reasoning.startswith("1 of 2 ")
    assert isinstance(score("x", None, RubricScore()), NotApplicable)
    assert isinstance(rated(None), NotApplicable)
    assert rated(RubricResult(0.5, unknown=("cites",))) == Unscored("rubric_unknown", "cites")
    for wrong in (float("nan"), float("inf"), -0.1, 1.1):
        assert rated(RubricResult(wrong)).reason == "component_error"
