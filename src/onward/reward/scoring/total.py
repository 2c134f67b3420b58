"""Combines component scores into the totals of a reward, which are never mixed.

``raw_total`` = Σ wᵢ·rawᵢ is absolute; ``total_reward`` = Σ wᵢ·normᵢ only ranks inside one window. The weights
of components that do not apply are shared among the others in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onward.reward.components.base import Scored


@dataclass(frozen=True)
class Total:
    raw_total: float
    total_reward: float
    weights: dict[str, float]
    """Rescaled weights of the scored components; they sum to 1."""
    confidence: float
    """Share of the weight that was scored from direct evidence."""


def combine(
    scores: Mapping[str, Scored], normalised: Mapping[str, float], weights: Mapping[str, float]
) -> Total | None:
    """Returns the totals, all in [0, 1]. Returns None when no scored component has a weight: there is no
    reward then.

    Sums are correctly rounded (fsum), so the order of components is irrelevant.
    """
    given = {name: weights.get(name, 0.0) for name in scores}
    whole = math.fsum(given.values())
    if whole <= 0.0:
        return None
    shared = {name: weight / whole for name, weight in given.items()}
    return Total(
        raw_total=_unit(math.fsum(shared[name] * scores[name].score for name in scores)),
        total_reward=_unit(math.fsum(shared[name] * normalised[name] for name in scores)),
        weights=shared,
        confidence=_unit(math.fsum(shared[name] * scores[name].evidence for name in scores)),
    )


def _unit(value: float) -> float:
    """Clips to [0, 1]: rounding may leave a sum of weights slightly above 1."""
    return min(1.0, max(0.0, value))
