"""Tests of a paired comparison: exact McNemar, Holm, the rule of a lost skill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

_GRID = 400
"""Rates at which the worst case of ``lost_from`` is searched."""


def sign_test(better: int, worse: int) -> float:
    """Returns the two-sided exact p-value that better and worse are equally likely; 1 if nothing differs."""
    n = better + worse
    tail = sum(math.comb(n, k) for k in range(min(better, worse) + 1)) / 2**n
    return min(1.0, 2.0 * tail)


def worse_p(better: int, worse: int) -> float:
    """Returns the one-sided exact McNemar p-value: P(X ≥ ``worse``), X ~ Binomial(better + worse, ½); 1 if
    none is worse. A small value means that the candidate loses more items than chance explains."""
    n = better + worse
    return sum(math.comb(n, k) for k in range(worse, n + 1)) / 2**n


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the adjusted p-values of Holm: those below a level α keep the chance of any false rejection
    among all of them at α, however they depend on each other."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


@cache
def lost_from(items: int, level: float) -> int | None:
    """Returns the number of successes of current from which a candidate without any has lost the skill.

    It is the smallest m with P(candidate 0, current ≥ m) ≤ ``level`` for two equal models, whatever their
    rate; None if even m = ``items`` is too likely.
    """
    rates = [step / _GRID for step in range(1, _GRID)]
    for least in range(1, items + 1):
        worst = max((1.0 - p) ** items * _at_least(items, least, p) for p in rates)
        if worst <= level:
            return least
    return None


def _at_least(n: int, least: int, p: float) -> float:
    return sum(math.comb(n, k) * p**k * (1.0 - p) ** (n - k) for k in range(least, n + 1))
