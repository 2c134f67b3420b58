"""The interval of a paired difference: exact coverage, a slow reference, values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from onward.suites import paired
from onward.suites.paired import Counts

SHARES = (0.0, 0.005, 0.01, 0.03, 0.05, 0.1, 0.2, 0.4)


def outcomes(items: int, won: float, lost: float) -> Iterator[tuple[int, int, float]]:
    """(better, worse, chance) of each result of ``items`` independent pairs."""
    for better in range(items + 1 if won else 1):
        for worse in range(items + 1 - better if lost else 1):
            ways = math.comb(items, better) * math.comb(items - better, worse)
            yield (
                better,
                worse,
                ways * won**better * lost**worse * (1 - won - lost) ** (items - better - worse),
            )


def reference(counts: Counts) -> float:
    """The lower end by its definition: the smallest difference that a score test does not reject, with the
    other parameter at its likeliest value, both searched on a grid."""
    better, worse, items = counts
    for difference in np.arange(-0.999, (better - worse) / items, 0.001):
        lost = np.linspace(max(0.0, -difference), (1.0 - difference) / 2, 4001)[1:-1]
        won = lost + difference
        equal = np.maximum(1.0 - lost - won, 1e-300)
        with np.errstate(divide="ignore"):
            likely = worse * np.log(lost) + (items - better - worse) * np.log(equal)
            likely += better * np.log(np.maximum(won, 1e-300)) if better else 0.0
        best = int(np.argmax(likely))
        variance = (lost[best] + won[best] - difference**2) / items
        if ((better - worse) / items - difference) / math.sqrt(variance) <= 1.959964:
            return float(difference)
    return (better - worse) / items


@pytest.mark.parametrize(
    "counts",
    [(0, 0, 3), (0, 0, 73), (1, 0, 2), (0, 1, 40), (5, 1, 7), (15, 15, 100), (2, 7, 60), (20, 0, 20)],
)
def test_the_lower_end_is_that_of_a_grid_search(counts: Counts) -> None:
    assert paired.lower_end(counts) == pytest.approx(reference(counts), abs=0.0025)


def test_where_no_item_differs_it_has_the_width_of_wilsons_interval_of_no_success() -> None:
    width = 3.841459 / (10 + 3.841459)  # z² / (n + z²)
    assert paired.interval((0, 0, 10)) == (pytest.approx(-width), pytest.approx(width))


@pytest.mark.parametrize("items", [3, 10, 20])
def test_it_covers_the_true_difference_whatever_the_shares(items: int) -> None:
    """Every result of ``items`` pairs, weighted with its chance: the coverage is exact, not simulated."""
    ends = {
        (better, worse): paired.interval((better, worse, items))
        for better in range(items + 1)
        for worse in range(items + 1 - better)
    }
    covered = []
    for won in SHARES:
        for lost in SHARES:
            covered.append(0.0)
            for better, worse, chance in outcomes(items, won, lost):
                low, high = ends[better, worse]
                covered[-1] += chance * (low - 1e-9 <= won - lost <= high + 1e-9)
    assert min(covered) > 0.92
    assert np.mean(covered) > 0.95


@pytest.mark.parametrize("items", [3, 10, 40, 73, 100])
def test_a_model_that_is_worse_by_the_limit_passes_in_at_most_three_of_a_hundred_runs(items: int) -> None:
    for won in SHARES:
        passed = sum(
            chance
            for better, worse, chance in outcomes(items, won, won + 0.05)
            if paired.score((better, worse, items), -0.05) >= paired.Z95
        )
        assert passed <= 0.03, won


@pytest.mark.parametrize("shares", [(0.1, 0.2, 0.15, 0.1), (0.0, 0.05, 0.0, 0.05), (0.3, 0.1, 0.02, 0.01)])
def test_the_mean_of_two_suites_is_covered_although_one_is_small(shares: tuple[float, ...]) -> None:
    """Every result of suites with 8 and 30 items, weighted with its chance."""
    parts = []
    for items, won, lost in ((8, *shares[:2]), (30, *shares[2:])):
        counts = list(outcomes(items, won, lost))
        found = np.array([(b - w) / items for b, w, _ in counts])
        ends = np.array([paired.interval((b, w, items)) for b, w, _ in counts])
        parts.append(
            (found, found - ends[:, 0], ends[:, 1] - found, np.array([chance for *_, chance in counts]))
        )
    (found, below, above, chance), (other, lower, upper, weight) = parts
    mean = (found[:, None] + other) / 2
    low = mean - np.hypot(below[:, None], lower) / 2
    high = mean + np.hypot(above[:, None], upper) / 2
    true = (shares[0] - shares[1] + shares[2] - shares[3]) / 2
    covered = (chance[:, None] * weight * ((low <= true) & (true <= high))).sum()
    assert covered > 0.94


def test_one_suite_has_its_own_interval_and_of_several_the_squared_widths_are_added() -> None:
    one = paired.interval((3, 3, 50))
    assert paired.mean_interval([(3, 3, 50)]) == pytest.approx(one)
    low, high = paired.mean_interval([(3, 3, 50), (3, 3, 50)])
    assert (low, high) == (pytest.approx(one[0] / math.sqrt(2)), pytest.approx(one[1] / math.sqrt(2)))
    small = paired.interval((2, 1, 8))
    low, high = paired.mean_interval([(3, 3, 50), (2, 1, 8)])
    assert low == pytest.approx(1 / 16 - math.hypot(one[0], 1 / 8 - small[0]) / 2)
    assert high == pytest.approx(1 / 16 + math.hypot(one[1], small[1] - 1 / 8) / 2)


def test_the_items_that_it_takes() -> None:
    assert paired.least_items(-0.05) == 73  # 3.8415 · 19 = 72.99
    assert paired.items_needed((0, 0, 3), -0.05) == 73
    assert paired.items_needed((0, 1, 20), -0.05) is None, "the difference is at the limit"
    assert paired.differing_share(72, -0.05) is None
    share = paired.differing_share(400, -0.05)
    assert share == pytest.approx(400 * (0.05 / 1.96) ** 2, rel=0.02), "the plain formula, for many items"
    assert paired.items_needed((13, 13, 100), -0.05) == pytest.approx(1.96**2 * 0.26 / 0.05**2, rel=0.02)
