"""Measures of agreement between a rubric and the truth over a set of designed outputs. Numpy alone.

Both are given as columns, outputs × criteria, of 0 and 1, with one weight for each criterion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_VARIANCE = 0.01
"""Floor of the truth's variance, by which the squared error is scaled."""
LEAST_SPREAD = 1e-6
"""Variance of a rubric's scores below which it does not discriminate between outputs."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of a rubric with the truth."""

    squared: float
    """Mean squared difference of the two scores."""
    absolute: float
    """Mean absolute difference of the two scores."""
    skill: float
    """1 − squared / variance of the truth: 1 is perfect, 0 is a constant at the truth's mean."""
    correlation: float
    """Pearson's correlation of the two scores; 0 if one of them is constant."""
    precision: float
    """Share of the rubric's weight on criteria that behave as one of the truth."""
    recall: float
    """Share of the truth's weight on criteria that the rubric has, by behaviour."""
    f1: float
    spread: float
    """Variance of the rubric's scores."""
    truth_variance: float


def agreement(
    columns: np.ndarray, weights: np.ndarray, truth_columns: np.ndarray, truth_weights: np.ndarray
) -> Agreement:
    """Compares a rubric with the truth on the same outputs; the scale of the weights is of no effect."""
    given, truth = weights / weights.sum(), truth_weights / truth_weights.sum()
    scores, truth_scores = columns @ given, truth_columns @ truth
    difference = scores - truth_scores
    squared, variance = float(np.mean(difference**2)), float(truth_scores.var())
    precision, recall = _overlap(_classes(columns, given), _classes(truth_columns, truth))
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return Agreement(
        squared=squared,
        absolute=float(np.mean(np.abs(difference))),
        skill=1 - squared / max(variance, LEAST_VARIANCE),
        correlation=_correlation(scores, truth_scores),
        precision=precision,
        recall=recall,
        f1=f1,
        spread=float(scores.var()),
        truth_variance=variance,
    )


def shape_fault(columns: np.ndarray) -> float:
    """Returns the quality of a rubric's shape: 0 is the best, −1 the worst.

    Counted are criteria under 3 or over 7, the share of repeats and the share of constants. A repeat has the
    same results as an earlier criterion on every output, whatever its text.
    """
    count = columns.shape[1]
    distinct = len({column.tobytes() for column in np.ascontiguousarray(columns.T)})
    constant = sum(1 for column in columns.T if np.all(column == column[0]))
    fault = max(0, 3 - count) / 3 + max(0, count - 7) / 4 + (count - distinct) / count + constant / count
    return max(-1.0, -fault)


def _classes(columns: np.ndarray, weights: np.ndarray) -> dict[bytes, float]:
    """Returns the criteria by their behaviour: results on every output → sum of the weights.

    A criterion without weight takes no part.
    """
    found: dict[bytes, float] = {}
    for column, weight in zip(np.ascontiguousarray(columns.T, dtype=np.float64), weights, strict=True):
        if weight > 0:
            found[column.tobytes()] = found.get(column.tobytes(), 0.0) + float(weight)
    return found


def _overlap(given: dict[bytes, float], truth: dict[bytes, float]) -> tuple[float, float]:
    common = given.keys() & truth.keys()
    return sum(given[key] for key in sorted(common)), sum(truth[key] for key in sorted(common))


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    scale = float(np.sqrt(first.var() * second.var()))
    if scale < 1e-12:
        return 0.0
    return float(np.mean((first - first.mean()) * (second - second.mean())) / scale)
