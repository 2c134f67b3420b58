"""Interval of a paired difference of success, honest for few items and where no item differs. Pure.

A bootstrap of items that are all equal has no width, so three equal items would show as much as three
hundred. The score interval has every difference under which the observed counts are not unlikely. Of two
models whose true difference is at a limit of -0.05, the lower end is above it in about 3 % of all comparisons
at most, from 3 items on (``tests/unit/suites/test_paired.py``). At wider limits few items let more pass: up
to 4 % at -0.1 and 6 % at -0.3.

Sources: T. Tango, Statistics in Medicine 17 (1998) 891-908; for the mean over suites G. Zou and A. Donner,
Statistics in Medicine 27 (2008) 1693-1702.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959963984540054
"""Normal quantile of a two-sided interval of 95 %."""
MOST_ITEMS = 10**7
_HALVINGS = 60

Counts = tuple[float, float, float]
"""Items that only the candidate solves, items that only current solves, and all items. Planning may give
fractions."""


def score(counts: Counts, difference: float) -> float:
    """Returns Tango's score statistic of ``difference``: about standard normal if it is the true one."""
    better, worse, items = counts
    gap = better - worse - items * difference
    linear = (2 * items - better + worse) * difference - better - worse
    constant = -worse * difference * (1.0 - difference)
    root = math.sqrt(max(0.0, linear**2 - 8.0 * items * constant))
    lost = (root - linear) / (4.0 * items)  # the likeliest share of items that only current solves
    variance = items * (2.0 * lost + difference * (1.0 - difference))
    if variance <= 1e-12:
        return 0.0 if abs(gap) < 1e-9 else math.copysign(math.inf, gap)
    return gap / math.sqrt(variance)


def lower_end(counts: Counts) -> float:
    """Returns the lower end of the 95 % interval of the difference."""
    better, worse, items = counts
    low, high = -1.0, (better - worse) / items
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if score(counts, middle) > Z95 else (low, middle)
    return low


def interval(counts: Counts) -> tuple[float, float]:
    """Returns the 95 % interval of the difference."""
    better, worse, items = counts
    return lower_end(counts), -lower_end((worse, better, items))


def mean_interval(parts: Sequence[Counts]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean of several suites' differences, each with the same weight. Of one
    suite it is that suite's own."""
    differences = [(better - worse) / items for better, worse, items in parts]
    ends = [interval(one) for one in parts]
    mean = sum(differences) / len(parts)
    below = math.hypot(*(found - low for found, (low, _) in zip(differences, ends, strict=True)))
    above = math.hypot(*(high - found for found, (_, high) in zip(differences, ends, strict=True)))
    return mean - below / len(parts), mean + above / len(parts)


def least_items(limit: float) -> int:
    """Returns how many items it takes if none differs, so that the lower end is not below ``limit`` (below
    0): z² (1 / -limit - 1)."""
    return max(1, math.ceil(Z95**2 * (1.0 / -limit - 1.0))) if limit < 0 else MOST_ITEMS


def items_needed(counts: Counts, limit: float) -> int | None:
    """Returns about how many items it takes until the lower end is not below ``limit``, if the shares of
    items that differ stay as they are; None where no number helps, since the difference is not above it."""
    better, worse, items = counts
    if (better - worse) / items <= limit:
        return None
    low, high = 1, MOST_ITEMS
    while low < high:
        middle = (low + high) // 2
        enough = lower_end((better / items * middle, worse / items * middle, middle)) >= limit
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


def differing_share(items: int, limit: float) -> float | None:
    """Returns the largest share of items on which two equal models may differ, so that the lower end is not
    below ``limit``; None if not even one of 0 is."""
    if lower_end((0, 0, items)) < limit:
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        half = middle * items / 2.0
        low, high = (middle, high) if lower_end((half, half, items)) >= limit else (low, middle)
    return low
