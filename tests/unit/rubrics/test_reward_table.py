"""The reward on a truth of five checks (.30 .25 .20 .15 .10): every figure of the published table.

Figures are rounded as printed there, so a tie such as 0.625 may lie one unit away from another rounding. A
printed total is the sum of terms that were rounded before, so it may be 0.0075 away from the exact one.
"""

from __future__ import annotations

import numpy as np
import pytest
from rubric_designs import PROBES

from onward.rubrics.measures import agreement
from onward.rubrics.reward import GATE, score
from onward.rubrics.tasks.guided import expected_score

TRUTH = np.array([0.30, 0.25, 0.20, 0.15, 0.10] + [0.0] * 6)
ONES = np.ones((12, 1))


def of(*places: int) -> np.ndarray:
    return PROBES[:, list(places)]


def equal(count: int) -> np.ndarray:
    return np.ones(count)


ROWS = {
    "exact": (of(0, 1, 2, 3, 4), TRUTH[:5], 0.0, 1.00, 1.00, 1.00, 1.75),
    "right, equal weights": (of(0, 1, 2, 3, 4), equal(5), -0.0063, 0.89, 0.94, 1.00, 1.63),
    "4 of 5 right": (of(0, 1, 2, 3), equal(4), -0.0063, 0.89, 0.95, 0.95, 1.60),
    "3 of 5 right": (of(0, 1, 2), equal(3), -0.0146, 0.74, 0.91, 0.86, 1.40),
    "5 right and 3 wrong": (of(0, 1, 2, 3, 4, 5, 6, 7), equal(8), -0.0250, 0.56, 0.75, 0.77, 1.06),
    "3 right and 2 wrong": (of(0, 1, 2, 5, 6), equal(5), -0.0313, 0.44, 0.71, 0.67, 0.96),
    "2 of 5 right": (of(0, 1), equal(2), -0.0437, 0.22, 0.82, 0.71, 0.70),
    "all 11": (PROBES, equal(11), -0.0335, 0.40, 0.64, 0.62, 0.63),
    "truth and 5 that always pass": (
        np.hstack([of(0, 1, 2, 3, 4), *[ONES] * 5]),
        np.concatenate([TRUTH[:5], np.full(5, 0.2)]),
        *(-0.0766, -0.36, 1.00, 0.67, -0.03),
    ),
    "1 of 5 right": (of(0), equal(1), -0.1562, -1.0, 0.63, 0.46, -0.78),
    "the best one five times": (of(0, 0, 0, 0, 0), equal(5), -0.1562, -1.0, 0.63, 0.46, -0.81),
    "5 wrong": (of(5, 6, 7, 8, 9), equal(5), -0.1063, -0.89, 0.00, 0.00, -0.89),
    "negated truth": (1 - of(0, 1, 2, 3, 4), TRUTH[:5], -0.2250, -1.0, -1.00, 0.00, -1.00),
}

SHAPE = {
    "5 right and 3 wrong": -1 / 4,
    "2 of 5 right": -1 / 3,
    "all 11": -1.0,
    "truth and 5 that always pass": -1.0,
    "1 of 5 right": -2 / 3,
    "the best one five times": -4 / 5,
}
"""Quality of the rows that have a fault of shape, by hand."""


@pytest.mark.parametrize("row", ROWS)
def test_every_rubric_has_the_published_figures(row: str) -> None:
    columns, weights, distance, skill, correlation, f1, total = ROWS[row]
    found = agreement(columns, weights, PROBES, TRUTH)
    assert -found.squared == pytest.approx(distance, abs=0.51e-4)
    assert max(-1.0, found.skill) == pytest.approx(skill, abs=0.51e-2)
    assert found.correlation == pytest.approx(correlation, abs=0.51e-2)
    assert found.f1 == pytest.approx(f1, abs=0.51e-2)
    reward = score(columns, weights, PROBES, TRUTH).total
    assert reward == pytest.approx(total, abs=0.75e-2)
    terms = max(-1.0, found.skill) + 0.5 * found.f1 + 0.25 * max(0.0, found.correlation)
    assert reward == pytest.approx(terms + 0.25 * SHAPE.get(row, 0.0))


CONSTANT = {
    "always pass and always fail": (np.hstack([ONES, 0 * ONES]), -0.0563, 0.00, 0.00),
    "a check and its negation": (np.hstack([of(0), 1 - of(0)]), -0.0563, 0.00, 0.37),
    "always pass": (ONES, -0.3063, -1.0, 0.00),
    "always fail": (0 * ONES, -0.3063, -1.0, 0.00),
}


@pytest.mark.parametrize("row", CONSTANT)
def test_a_rubric_with_one_score_for_all_is_gated_though_its_distance_is_small(row: str) -> None:
    columns, distance, skill, f1 = CONSTANT[row]
    weights = equal(columns.shape[1])
    found = agreement(columns, weights, PROBES, TRUTH)
    assert -found.squared == pytest.approx(distance, abs=0.51e-4)
    assert max(-1.0, found.skill) == pytest.approx(skill, abs=0.51e-2)
    assert found.correlation == 0.0
    assert found.f1 == pytest.approx(f1, abs=0.51e-2)
    reward = score(columns, weights, PROBES, TRUTH)
    assert reward.total == GATE == -2.0
    assert reward.gate


def vector(places: list[int], weights: list[float] | None = None) -> np.ndarray:
    made = np.zeros(11)
    made[places] = weights or 1.0
    return made


GUIDED = {
    "exact": (TRUTH, 0.0, 0.92),
    "4 of 5 right": (vector([0, 1, 2, 3]), -0.0075, None),
    "3 of 5 right": (vector([0, 1, 2]), -0.0407, 0.81),
    "3 right and 2 wrong": (vector([0, 1, 2, 5, 6]), -0.0411, 0.70),
    "all 11": (np.ones(11), -0.0351, 0.53),
    "5 wrong": (vector([5, 6, 7, 8, 9]), -0.4109, 0.25),
}


@pytest.mark.parametrize("row", GUIDED)
def test_a_guided_output_has_the_published_figures(row: str) -> None:
    """The published ones are means of simulated outputs. The expected score is exact; the squared difference
    of the two scores of one output is simulated here too."""
    weights, distance, utility = GUIDED[row]
    draw = np.random.default_rng(0)
    count = 40_000
    order = np.argsort(-(weights + draw.random((count, 11)) * 1e-6), axis=1)
    holds = draw.random((count, 11)) < 0.25
    picked = min(4, int((weights > 0).sum()))
    np.put_along_axis(holds, order[:, :picked], True, axis=1)
    truth_scores, scores = holds @ TRUTH, holds @ (weights / weights.sum())
    assert -np.mean((scores - truth_scores) ** 2) == pytest.approx(distance, abs=5e-3)
    assert expected_score(weights, TRUTH) == pytest.approx(truth_scores.mean(), abs=0.004)
    if utility is not None:
        assert expected_score(weights, TRUTH) == pytest.approx(utility, abs=1e-2)


def test_one_good_output_ranks_three_very_different_rubrics_the_same() -> None:
    """All but one check of the truth hold: the truth's score is .85."""
    output = np.ones(11)
    output[3] = 0
    assert output @ TRUTH == pytest.approx(0.85)
    for places in ([0, 1, 2], [5, 6, 7, 8, 9]):
        assert -((output[places].mean() - output @ TRUTH) ** 2) == pytest.approx(-0.0225)
    assert -((1.0 - output @ TRUTH) ** 2) == pytest.approx(-0.0225)


def test_the_plain_distance_ranks_a_constant_above_an_honest_rubric() -> None:
    constant = agreement(CONSTANT["always pass and always fail"][0], equal(2), PROBES, TRUTH)
    five_wrong = agreement(of(5, 6, 7, 8, 9), equal(5), PROBES, TRUTH)
    honest = agreement(of(0), equal(1), PROBES, TRUTH)
    assert constant.squared < five_wrong.squared < honest.squared
