"""Aggregation of the scores of an evaluator. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onward.rubrics.evaluation.models import Aggregation


class AggregationError(ValueError):
    """An aggregation function that returned no score from 0 to 1."""


def aggregate(
    how: Aggregation | Callable[[Sequence[float]], float], scores: Sequence[float], weights: Sequence[float]
) -> float | None:
    """Returns the score of a group from its normalized scores; None for an empty group.

    Weights count in the weighted average alone: Σ w·n / Σ of the positive w, moved into 0 to 1. Raises
    AggregationError for a function that returns anything but a number from 0 to 1.
    """
    if not scores:
        return None
    if not isinstance(how, str):
        return _checked(how, scores)
    if how == "weighted_average":
        positive = math.fsum(weight for weight in weights if weight > 0)
        if positive <= 0:
            return None
        total = math.fsum(weight * score for weight, score in zip(weights, scores, strict=True))
        return min(1.0, max(0.0, total / positive))
    if how == "mean":
        return math.fsum(scores) / len(scores)
    if how == "min":
        return min(scores)
    if how == "max":
        return max(scores)
    if how == "product":
        return math.prod(scores)
    least = min(scores)  # the reciprocal of a score near zero may be no number
    return 0.0 if least == 0 else len(scores) * least / math.fsum(least / score for score in scores)


def _checked(how: Callable[[Sequence[float]], float], scores: Sequence[float]) -> float:
    name = getattr(how, "__name__", type(how).__name__)
    try:
        value = float(how(list(scores)))
    except Exception as error:
        raise AggregationError(f"The aggregation {name} failed: {type(error).__name__}: {error}") from error
    if not math.isfinite(value) or not 0 <= value <= 1:
        raise AggregationError(f"The aggregation {name} returned {value:g}: return 0 to 1.")
    return value
