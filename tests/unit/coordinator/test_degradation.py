"""The degradation test against a slow sum over all starts, and what its budget promises."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from onward.contracts.buckets import PolicyWatch
from onward.coordinator import degradation
from onward.coordinator.degradation import baseline_sessions, begun, e_number_of, observe, trailing_mean

ALPHA, DROP = 0.045, 0.10
BETS = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9]) / (1 + DROP)
Draw = Callable[[random.Random, float], float]


def new() -> PolicyWatch:
    return PolicyWatch(watch_id="w", sequence=0)


def fed(watch: PolicyWatch, values: list[float], step=observe) -> PolicyWatch:
    numbered = [(watch.sequence + 1 + n, value) for n, value in enumerate(values)]
    return step(watch, numbered, alpha=ALPHA, drop=DROP, at="2026-01-05T09:00:00.000Z")


def spread(draw: random.Random, mean: float) -> float:
    """A raw total with standard deviation 0.2."""
    k = mean * (1 - mean) / 0.04 - 1
    return draw.betavariate(mean * k, (1 - mean) * k)


def all_or_nothing(draw: random.Random, mean: float) -> float:
    """The noisiest raw total that there can be."""
    return float(draw.random() < mean)


def slow_e(baseline: float, values: list[float]) -> float:
    """The capital of the bets, one start after the other, as the docstring of the module says it."""
    total = 0.0
    for k, first in enumerate(range(0, len(values), 100), start=1):
        gaps = baseline - DROP - np.array(values[first:])
        total += np.mean([np.prod(1 + bet * gaps) for bet in BETS]) / (k * (k + 1))
    return total


@pytest.mark.parametrize(("number", "later"), [(1, 0.6), (37, 0.45), (100, 0.5), (101, 0.5), (450, 0.52)])
def test_the_e_value_is_the_sum_over_all_starts(number, later):
    draw = random.Random(number)
    values = [spread(draw, later) for _ in range(number)]
    watch = fed(fed(new(), [0.6] * 190, begun), values)
    assert watch.baseline == pytest.approx(0.6, abs=1e-12) and watch.sessions == number
    assert e_number_of(watch) == pytest.approx(slow_e(0.6, values), rel=1e-9)


def test_the_baseline_takes_as_many_sessions_as_half_the_budget_needs():
    # exp(-2 · 190 · 0.01) = 0.0224 ≤ 0.0225 < exp(-2 · 189 · 0.01) = 0.0228
    assert baseline_sessions(0.045, 0.10) == 190
    assert baseline_sessions(0.045, 0.05) == 759
    assert baseline_sessions(0.01, 0.10) == 265


def test_the_error_of_a_baseline_keeps_its_half_of_the_budget_wherever_a_canary_ends():
    """A canary ends by its evidence, so at the worst moment after the 190 sessions."""
    draws = np.random.default_rng(19).random((4000, 760)) < 0.5
    means = np.cumsum(draws, axis=1)[:, 189:] / np.arange(190, 761)
    share = np.mean(means.max(axis=1) - 0.5 > DROP)
    assert 0 < share <= ALPHA / 2


def test_it_is_frozen_at_the_last_of_these_and_never_moves():
    watch = fed(new(), [0.5] * 189, begun)
    assert (watch.baseline, watch.collected, watch.sessions) == (None, 189, 0)
    watch = fed(watch, [1.0, 0.2, 0.2])
    assert watch.baseline == pytest.approx((0.5 * 189 + 1.0) / 190) and watch.collected == 190
    assert (watch.sessions, watch.trailing, watch.sequence) == (2, [0.2, 0.2], 192)
    assert fed(watch, [0.9] * 500).baseline == watch.baseline


def test_a_reader_that_stops_between_any_two_sessions_comes_to_the_same_state():
    draw = random.Random(5)
    values = [spread(draw, 0.5) for _ in range(320)]
    whole = fed(fed(new(), values[:190], begun), values[190:])
    parts = fed(new(), values[:190], begun)
    for value in values[190:]:
        parts = PolicyWatch.load(fed(parts, [value]).dump())
    assert parts == whole


def test_one_bad_hour_is_not_enough_but_a_fall_is_and_a_recovery_ends_it():
    draw = random.Random(3)
    watch = fed(new(), [spread(draw, 0.6) for _ in range(190)], begun)
    watch = fed(watch, [0.0] * 5)
    assert watch.degraded_since is None and trailing_mean(watch) == 0.0
    watch = fed(watch, [spread(draw, 0.25) for _ in range(80)])
    assert watch.degraded_since is not None
    watch = fed(watch, [spread(draw, 0.6) for _ in range(2000)])
    assert watch.degraded_since is None


def test_it_does_not_fire_before_thirty_sessions_however_bad_they_are():
    watch = fed(new(), [1.0] * 190, begun)
    assert fed(watch, [0.0] * 29).degraded_since is None
    assert fed(watch, [0.0] * 30).degraded_since is not None


def test_a_raw_total_beyond_its_bounds_counts_as_the_bound():
    watch = fed(fed(new(), [1.5] * 190, begun), [-3.0])
    assert (watch.baseline, watch.trailing) == (1.0, [0.0])


def first_alarm(seed: int, draw: Draw, fall: float, after: int, sessions: int) -> int | None:
    """Sessions from the fall to the alarm; None without one."""
    source = random.Random(seed)
    watch = fed(new(), [draw(source, 0.6) for _ in range(190)], begun)
    for n in range(after + sessions):
        watch = fed(watch, [draw(source, 0.6 - (fall if n >= after else 0.0))])
        if watch.degraded_since is not None:
            return n + 1 - after
    return None


def test_equal_policies_raise_no_alarm_and_a_fall_is_found():
    assert [first_alarm(seed, spread, 0.0, 0, 400) for seed in range(5)] == [None] * 5
    delays = [first_alarm(seed, spread, 0.3, 150, 400) for seed in range(5)]
    assert all(delay is not None and 0 < delay < 200 for delay in delays)


@pytest.mark.long
@pytest.mark.parametrize("draw", [spread, all_or_nothing])
def test_false_alarms_and_delays_are_those_of_the_docs(draw: Draw) -> None:
    """The table of docs/triggers.md."""
    equal = [first_alarm(seed, draw, 0.0, 0, 3000) for seed in range(100)]
    share = sum(alarm is not None for alarm in equal) / len(equal)
    print(f"\n{draw.__name__}: alarms of equal policies in 3000 sessions: {share:.2f}")
    assert share <= ALPHA
    for fall, after in ((0.05, 0), (0.15, 0), (0.15, 2000), (0.3, 0), (0.3, 2000)):
        found = [first_alarm(seed, draw, fall, after, 4000) for seed in range(50)]
        delays = sorted(math.inf if delay is None or delay < 1 else delay for delay in found)
        number, median = sum(map(math.isfinite, delays)), statistics.median(delays)
        print(
            f"  fall {fall} after {after}: {number} of 50 found; median {median:.0f}, 90 % {delays[44]:.0f}"
        )
        if fall == 0.3:
            assert number == 50


def test_the_state_holds_finite_numbers_also_after_a_life_of_good_sessions():
    watch = fed(fed(new(), [0.5] * 190, begun), [1.0] * 1500)
    assert all(math.isfinite(log) for log in watch.logs)
    assert degradation.e_number_of(watch) < 1
