"""The reward of a rubric: golden episode, gate, properties over many truths, failures of the environment."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rubric_designs import PROBES, Task, random_truth

from onward.envs.failures import EnvironmentFailure
from onward.errors import ConfigError
from onward.rubrics.check import Check
from onward.rubrics.language import Criterion, InvalidRubric, Rubric, parse
from onward.rubrics.measures import agreement
from onward.rubrics.reward import (
    GATE,
    ROBUST,
    SPEC,
    RubricRewardSettings,
    UnfitTaskError,
    counted,
    reward_of,
    score,
    spec_total,
)
from onward.rubrics.tasks import HELD_OUT_FAMILIES, TRAINING_FAMILIES, make_task

EPISODE = {
    Check("sum_matches", "total"): 9,
    Check("cites_resource", "1"): 9,
    Check("value_equals_input", "amount"): 6,
    Check("threshold_flagged", "10%"): 3,
    Check("row_count", "all"): 3,
    Check("signoff_present", "controller"): 3,
    Check("has_section", "summary"): 0,
    Check("max_words", "200"): 0,
    Check("pii_masked", "iban"): 0,
    Check("id_format", ""): 0,
    Check("next_step_present", ""): 0,
}
NAMES = tuple(EPISODE)
TASK = Task(NAMES, np.array(list(EPISODE.values())) / 33)
SUM, CITES, VALUE, THRESHOLD, ROWS, SIGNOFF = NAMES[:6]


def rubric(**weights: int) -> Rubric:
    return Rubric([Criterion(check, weights[check.name]) for check in NAMES if check.name in weights])


WITHOUT_QUESTION = rubric(
    sum_matches=5, value_equals_input=4, threshold_flagged=2, row_count=2, signoff_present=2
)
WITH_ANSWER = rubric(
    sum_matches=5,
    cites_resource=5,
    value_equals_input=3,
    threshold_flagged=2,
    row_count=2,
    signoff_present=2,
)


@pytest.mark.parametrize(
    "given, questions, squared, skill, correlation, f1, total",
    [
        (WITHOUT_QUESTION, 0, 0.02266, 0.561, 0.797, 0.842, 1.181),
        (WITH_ANSWER, 1, 0.00034, 0.993, 0.997, 1.000, 1.743),
        (WITH_ANSWER, 3, 0.00034, 0.993, 0.997, 1.000, 1.643),
    ],
)
def test_the_golden_episode(
    given: Rubric, questions: int, squared: float, skill: float, correlation: float, f1: float, total: float
) -> None:
    reward = reward_of(given, TASK, questions)
    assert reward.measures["truth_variance"] == pytest.approx(0.0517, abs=5e-5)
    assert reward.measures["squared"] == pytest.approx(squared, abs=5e-6)
    assert reward.measures["skill"] == pytest.approx(skill, abs=5e-4)
    assert reward.measures["correlation"] == pytest.approx(correlation, abs=5e-4)
    assert reward.measures["f1"] == pytest.approx(f1, abs=5e-4)
    assert reward.total == pytest.approx(total, abs=5e-4)
    assert sum(reward.terms.values()) == pytest.approx(reward.total)


def test_the_seeds_two_scores_and_its_worked_out_reward() -> None:
    assert spec_total(0.72, 0.85) == pytest.approx(-0.0169)
    assert spec_total(0.72, 0.85, distance="absolute") == pytest.approx(-0.13)
    total = spec_total(0.72, 0.85, quality=0.1, efficiency=-0.05, coverage=0.8)
    assert total == pytest.approx(0.833, abs=5e-4)
    assert spec_total(None, 0.85) is None
    assert spec_total(0.72, None) is None


def test_the_seeds_form_adds_plain_terms() -> None:
    reward = reward_of(WITHOUT_QUESTION, TASK, 1, SPEC)
    assert reward.terms["alignment"] == pytest.approx(-0.02266, abs=5e-6)
    assert reward.terms["coverage"] == pytest.approx(24 / 33)
    assert reward.terms["quality"] == pytest.approx(0.1)
    assert reward.terms["questions"] == pytest.approx(-0.05)
    assert reward.terms["correlation"] == 0.0
    absolute = reward_of(WITHOUT_QUESTION, TASK, 1, RubricRewardSettings(form="spec", distance="absolute"))
    truth = PROBES @ TASK.weights
    shares = np.array([5, 0, 4, 2, 2, 2, 0, 0, 0, 0, 0]) / 15
    assert absolute.terms["alignment"] == pytest.approx(-np.abs(PROBES @ shares - truth).mean())


def test_an_invalid_text_has_the_lowest_reward_and_says_why() -> None:
    with pytest.raises(InvalidRubric) as caught:
        parse("[]", NAMES)
    reward = reward_of(caught.value, TASK)
    assert reward.total == GATE
    assert reward.gate == str(caught.value)
    assert reward_of(None, TASK).total == GATE
    assert reward_of(None, TASK, settings=SPEC).total == GATE


def test_a_check_that_the_task_lacks_is_the_policys_fault() -> None:
    strange = Rubric([Criterion(Check("unit_present", unit), 1) for unit in ("h", "kg", "%")])
    reward = reward_of(strange, TASK)
    assert reward.total == GATE
    assert "unit_present(h)" in reward.gate


@pytest.mark.parametrize(
    "weights, word",
    [
        (np.zeros(3), "sum to more than 0"),
        (np.array([1.0, 1.0, -2.0]), "sum to more than 0"),
        (np.array([1000.0, 2.0, -1001.0]), "a weight below 0"),
        (np.array([1.0, np.nan, 1.0]), "finite"),
        (np.array([1.0, np.inf, 1.0]), "finite"),
        (np.array([]), "no criterion"),
    ],
)
def test_weights_that_give_no_score_are_gated(weights: np.ndarray, word: str) -> None:
    reward = score(PROBES[:, : len(weights)], weights, PROBES, TASK.weights)
    assert reward.total == GATE
    assert word in reward.gate


def test_constants_and_repeats_each_take_their_share_of_the_quality() -> None:
    """Two of five always pass: 2/5, and the second repeats the first: 1/5."""
    columns = np.hstack([PROBES[:, :3], np.ones((12, 2))])
    quality = score(columns, np.ones(5), PROBES, TASK.weights).measures["quality"]
    assert quality == pytest.approx(-(2 / 5 + 1 / 5))
    once = np.hstack([PROBES[:, :3], np.ones((12, 1))])
    assert score(once, np.ones(4), PROBES, TASK.weights).measures["quality"] == pytest.approx(-1 / 4)


def test_a_rubric_that_hardly_discriminates_is_gated() -> None:
    """Variance a quarter of the squared share of the one check that varies: 1e-6 lies between the two."""
    columns = np.hstack([PROBES[:, :1], np.ones((12, 1))])
    for share, is_gated in ((0.0019, True), (0.0021, False)):
        reward = score(columns, np.array([share, 1 - share]), PROBES, TASK.weights)
        assert (reward.total == GATE) is is_gated


def test_a_truth_that_varies_too_little_is_unfit_though_it_has_many_scores() -> None:
    """Twelve probes and a truth that lies on one check that always passes, but for 3 % of its weight."""
    columns = np.hstack([np.ones((12, 1)), PROBES[:, :2]])
    with pytest.raises(UnfitTaskError, match=r"4 distinct scores with a variance of 0\.0001"):
        score(PROBES[:, :3], np.ones(3), columns, np.array([0.97, 0.02, 0.01]))


def test_the_error_is_scaled_by_no_less_than_the_floor() -> None:
    columns, weights = np.hstack([np.ones((12, 1)), PROBES[:, :2]]), np.array([0.97, 0.02, 0.01])
    found = agreement(PROBES[:, :1], np.ones(1), columns, weights)
    assert found.truth_variance < 0.01
    assert found.skill == pytest.approx(1 - found.squared / 0.01)


@pytest.mark.parametrize(
    "fields",
    [{"question_price": 0.2}, {"alignment_weight": 3.0}, {"form": "spec", "quality_weight": 2.5}],
)
def test_settings_under_which_an_invalid_rubric_may_win_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a valid rubric could have less than the -2 of an invalid one"):
        RubricRewardSettings(**fields)


def test_no_rubric_with_nine_questions_lies_below_the_gate() -> None:
    dear = RubricRewardSettings(question_price=0.09)
    wrong = rubric(has_section=1, max_words=5, pii_masked=1)
    absolute = replace(SPEC, distance="absolute")
    for form in (ROBUST, dear, SPEC, absolute):
        reward = reward_of(wrong, TASK, 9, form)
        assert reward.total is not None and reward.total > GATE


def test_the_lowest_valid_reward_lies_above_the_gate() -> None:
    worst = np.hstack([1 - PROBES[:, [0, 1, 2, 3, 4, 5]], np.ones((12, 5))])
    weights = np.concatenate([TASK.weights[:6], np.zeros(5)])
    reward = score(worst, weights, PROBES, TASK.weights, questions=3)
    assert reward.total == pytest.approx(-1 - 0.25 - 2 * 0.05)
    assert reward.total is not None and reward.total > GATE


def test_a_failure_of_the_environment_is_not_a_number() -> None:
    class Broken(Task):
        def probes(self) -> np.ndarray:
            raise EnvironmentFailure("env_error", "The resource store has no file of the order.")

    failed = reward_of(WITH_ANSWER, Broken(NAMES, TASK.weights))
    assert failed.total is None
    assert "resource store" in failed.failure
    rewards = [reward_of(WITH_ANSWER, TASK), failed, reward_of(None, TASK)]
    assert counted(rewards).tolist() == [True, False, True]


def test_a_task_whose_truth_cannot_rank_is_left_out() -> None:
    """Eleven equal weights: every output of the design has 6 checks, or 0, so there are two scores."""
    flat = reward_of(WITH_ANSWER, Task(NAMES, np.full(11, 1 / 11)))
    assert flat.total is None
    assert "2 distinct scores with a variance of 0.0227" in flat.failure

    class Constant(Task):
        def probes(self) -> np.ndarray:
            return np.ones((12, 11), dtype=bool)

    left_out = reward_of(WITH_ANSWER, Constant(NAMES, TASK.weights))
    assert left_out.total is None
    assert "1 distinct scores" in left_out.failure


def test_a_useful_rubric_is_worth_more_under_guidance() -> None:
    guided = RubricRewardSettings(utility_weight=1.0)
    wrong = rubric(has_section=1, max_words=1, pii_masked=1, id_format=1)
    assert reward_of(wrong, TASK, settings=guided).terms["utility"] == pytest.approx(0.25)
    right = reward_of(WITH_ANSWER, TASK, settings=guided).terms["utility"]
    # The three checks above 2 are sure; three are tied for one place at a share of 1/3 each.
    assert right == pytest.approx(24 / 33 + 9 / 33 * (1 / 3 + 2 / 3 * 0.25))


TRUTHS = [
    make_task(family, seed).weights
    for family in (*TRAINING_FAMILIES, *HELD_OUT_FAMILIES)
    for seed in range(2)
]
"""Truths of the shipped families. None has a check of more than 40 % of the weight."""
DRAWN = [random_truth(seed) for seed in range(30)]
"""Truths drawn without the code of the tasks."""


def test_no_truth_has_a_check_above_two_fifths_of_the_weight() -> None:
    assert max(truth.max() for truth in TRUTHS) <= 0.4 + 1e-12
    assert min(np.count_nonzero(truth) for truth in TRUTHS) >= 4


def total(places: list[int], weights: np.ndarray, truth: np.ndarray) -> float:
    value = score(PROBES[:, places], weights, PROBES, truth).total
    assert value is not None
    return value


def test_every_degenerate_rubric_lies_below_every_honest_one() -> None:
    """Honest: at least three right checks of equal weight that have at least 60 % of the truth's weight."""
    assert least_margin([*TRUTHS, *DRAWN]) > 0.1


@pytest.mark.long
def test_every_degenerate_rubric_lies_below_every_honest_one_over_fifty_seeds() -> None:
    families = (*TRAINING_FAMILIES, *HELD_OUT_FAMILIES)
    assert least_margin([make_task(family, seed).weights for family in families for seed in range(50)]) > 0.1


def least_margin(truths: list[np.ndarray]) -> float:
    """Returns the least distance of an honest rubric's reward to a degenerate one's, over the truths."""
    margins = []
    for truth in truths:
        right = [place for place in range(11) if truth[place] > 0]
        wrong = [place for place in range(11) if truth[place] == 0]
        honest = [
            total(list(chosen), np.ones(len(chosen)), truth)
            for size in range(3, len(right) + 1)
            for chosen in combinations(right, size)
            if truth[list(chosen)].sum() >= 0.6
        ]
        degenerate = [
            score(columns, weights, PROBES, truth).total
            for columns, weights in _degenerate(truth, right, wrong)
        ]
        assert honest and all(value is not None for value in degenerate)
        margins.append(min(honest) - max(value for value in degenerate if value is not None))
    return min(margins)


def _degenerate(truth: np.ndarray, right: list[int], wrong: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    ones = np.ones((12, 1))
    best = int(truth.argmax())
    found = [
        (np.hstack([PROBES[:, right], *[ones] * 5]), np.concatenate([truth[right], np.full(5, 0.2)])),
        (PROBES[:, [best] * 5], np.ones(5)),
        (PROBES[:, wrong[:5]], np.ones(len(wrong[:5]))),
        (1 - PROBES[:, right], truth[right]),
        (np.hstack([ones, 0 * ones]), np.ones(2)),
        (np.hstack([PROBES[:, [best]], 1 - PROBES[:, [best]]]), np.ones(2)),
        (ones, np.ones(1)),
        (0 * ones, np.ones(1)),
    ]
    return found + [(PROBES[:, [place]], np.ones(1)) for place in range(11)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 63), st.permutations(range(7)), st.floats(0.01, 100.0))
def test_order_and_scale_of_the_weights_have_no_effect(seed: int, order: list[int], scale: float) -> None:
    places = np.random.default_rng(seed).permutation(11)[:7]
    weights = np.random.default_rng(seed + 1).integers(1, 6, 7).astype(float)
    first = total(list(places), weights, TRUTHS[seed])
    second = total(list(places[order]), weights[order] * scale, TRUTHS[seed])
    assert first == pytest.approx(second, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 63), st.data())
def test_a_right_check_in_place_of_a_wrong_one_raises_the_reward(seed: int, data: st.DataObject) -> None:
    truth = TRUTHS[seed]
    right = [place for place in range(11) if truth[place] > 0]
    wrong = [place for place in range(11) if truth[place] == 0]
    new = data.draw(st.sampled_from(right))
    old = data.draw(st.sampled_from(wrong))
    others = data.draw(
        st.lists(
            st.sampled_from([place for place in range(11) if place not in (new, old)]),
            min_size=2,
            max_size=6,
            unique=True,
        )
    )
    weights = np.array(
        data.draw(st.lists(st.integers(1, 5), min_size=len(others) + 1, max_size=len(others) + 1)), float
    )
    before, after = total([old, *others], weights, truth), total([new, *others], weights, truth)
    assert after > before


def test_the_distance_on_the_design_is_the_distance_of_the_weights() -> None:
    for seed in range(50):
        draw = np.random.default_rng(seed)
        weights = draw.random(11)
        found = score(PROBES, weights, PROBES, TRUTHS[seed]).measures
        shares = weights / weights.sum()
        assert found["squared"] == pytest.approx(((shares - TRUTHS[seed]) ** 2).sum() / 4)
        assert found["truth_variance"] == pytest.approx((TRUTHS[seed] ** 2).sum() / 4)


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"question_price": -0.1}, "question_price is -0.1: use 0 or a greater finite number"),
        ({"alignment_weight": float("nan")}, "alignment_weight is nan"),
        ({"form": "other"}, "the form 'other' and the distance 'squared': use robust or "),
    ],
)
def test_settings_that_make_no_reward_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RubricRewardSettings(**fields)
    assert reason in str(caught.value)


def test_the_robust_form_is_the_default() -> None:
    assert RubricRewardSettings() == ROBUST
    assert reward_of(WITH_ANSWER, TASK).total == reward_of(WITH_ANSWER, TASK, settings=ROBUST).total
