"""Statistics over seeds: interquartile mean, variation, bootstrap intervals, score ratios.

One seed gives one number, the mean return of its greedy episodes. Every interval is over seeds, never over
episodes of one agent. docs/control.md holds the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onward.errors import ControlError

FEWEST_SEEDS = 5
"""Fewest seeds of an interval; one over fewer seeds has no meaning and is refused."""
SOLVE_LIMIT = 10_000
"""Training episodes within which a task must be solved; ``training_episodes`` defines when it is."""


class Estimate(NamedTuple):
    """A figure with the bounds of its 95 % bootstrap interval over seeds."""

    value: float
    low: float
    high: float


def iqm(values: ArrayLike) -> float:
    """Returns the interquartile mean, without the ⌊n/4⌋ smallest and largest values (Agarwal et al. 2021)."""
    return float(_iqm(_given(values)[None])[0])


def variation(values: ArrayLike, random: float | None = None) -> float:
    """Returns the coefficient of variation over seeds, std (n − 1) / |mean|.

    For a mean below 0 it is that of value − random. ``random``: score of the random policy in the same
    environment. Raises ControlError where it is needed and missing: near 0 a negative scale makes the plain
    quotient meaningless.
    """
    return float(_variation(_shifted(_given(values), random)[None])[0])


def iqm_interval(values: ArrayLike, draws: int = 10_000, seed: int = 0) -> Estimate:
    """Returns ``iqm`` with its interval. Raises ControlError with fewer than 5 seeds."""
    return _estimate(_given(values), _iqm, draws, seed)


def variation_interval(
    values: ArrayLike, random: float | None = None, draws: int = 10_000, seed: int = 0
) -> Estimate:
    """Returns ``variation`` with its interval. Raises ControlError with fewer than 5 seeds."""
    return _estimate(_shifted(_given(values), random), _variation, draws, seed)


def score_ratio(score: float, source: float, random: float) -> float:
    """Returns (score − random) / (source − random), the learning that is left; NaN if nothing was learned."""
    learned = source - random
    return (score - random) / learned if learned > 0 else float("nan")


def _given(values: ArrayLike) -> NDArray[np.float64]:
    given = np.asarray(values, np.float64).ravel()
    if not len(given) or not np.isfinite(given).all():
        raise ControlError(f"Statistics were asked of {given.tolist()}: give one finite number per seed.")
    return given


def _shifted(values: NDArray[np.float64], random: float | None) -> NDArray[np.float64]:
    if values.mean() >= 0:
        return values
    if random is None:
        raise ControlError(
            f"The variation of scores with mean {values.mean():.4g} is taken above the random policy: "
            "give its score as random."
        )
    return values - random


def _iqm(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Computes the interquartile mean of each row."""
    count = rows.shape[1]
    cut = count // 4
    return np.sort(rows, axis=1)[:, cut : count - cut].mean(axis=1)


def _variation(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    if rows.shape[1] < 2:
        raise ControlError("The variation of one seed is not defined: give at least 2.")
    spread, mean = rows.std(axis=1, ddof=1), np.abs(rows.mean(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread == 0, 0.0, spread / mean)


def _estimate(
    values: NDArray[np.float64],
    figure: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    draws: int,
    seed: int,
) -> Estimate:
    """Computes the percentile bootstrap: ``draws`` resamples of the seeds with replacement."""
    if len(values) < FEWEST_SEEDS:
        raise ControlError(
            f"An interval over {len(values)} seeds says nothing: train at least {FEWEST_SEEDS} seeds."
        )
    picked = np.random.default_rng(seed).integers(len(values), size=(draws, len(values)))
    low, high = np.percentile(figure(values[picked]), [2.5, 97.5])
    return Estimate(float(figure(values[None])[0]), float(low), float(high))
