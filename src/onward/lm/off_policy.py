"""Off-policy evaluation: the mean return of a policy, from attempts of another policy. Pure, no torch.

Self-normalised importance sampling per trajectory or per decision, with truncated weights, an interval over
tasks, and the effective sample size. Invariants: attempts at one task are one observation, since they share
its difficulty. Below ``FEWEST`` effective tasks there is a sentence and no number: a few heavy weights would
otherwise pass the luck of single attempts off as the policy's merit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.errors import TrainingError
from onward.lm.student import t_quantile

FEWEST = 10
"""Fewest effective tasks of a number. The variance of fewer is not known well enough for an interval."""
_PSEUDO = 2
"""Observations at either end of the range that the interval is computed with, beside those that were made."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LoggedAttempt:
    """One attempt: per decision (a sampled answer) log π − log μ of all its tokens, and its reward.

    With one reward at the end, the earlier ones are 0. ``task`` names what was tried.
    """

    task: Hashable
    log_ratios: Sequence[float]
    rewards: Sequence[float]


@dataclass(frozen=True)
class Estimate:
    """A mean return with its 95 % interval, or the reason why there is none (``value`` None)."""

    attempts: int
    tasks: int
    effective: float
    """Effective number of tasks: (Σ W)² / Σ W² over the tasks' total weights, or the tasks times the mean
    weight if that is less. The mean is 1 but for chance: less of it is work of π that no attempt shows."""
    truncated: float
    """Share of the attempts whose weight was truncated."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    def facts(self) -> dict[str, Any]:
        """Returns the fields as JSON, without those that are None."""
        return {name: value for name, value in vars(self).items() if value is not None}


def estimate(
    attempts: Sequence[LoggedAttempt], *, per_decision: bool = False, bounds: tuple[float, float] = (0.0, 1.0)
) -> Estimate:
    """Estimates the mean return of π on the tasks of ``attempts``. Raises TrainingError (DATA) for an attempt
    without decisions, or with another number of rewards, or a number that is not finite.

    Per trajectory, V = Σ wᵢ rᵢ / Σ wᵢ with wᵢ = exp(Σ log ratios). ``per_decision`` weights each reward with
    the ratios up to its own decision alone (Precup et al. 2000), which varies less where rewards come early.
    Weights are truncated at √n times their mean (Ionides 2008): the bias vanishes as n grows, the variance
    stays finite. The interval is Student's, of the linearised estimator summed by task, with the effective
    number of tasks less one as degrees of freedom. ``bounds`` are the least and the greatest return: two
    pseudo-observations at each (Agresti and Coull 1998) keep attempts that all ended alike from having an
    interval of no width.
    """
    if not attempts:
        return Estimate(0, 0, 0.0, 0.0, reason="no attempt was held out")
    weights, rewards, truncated, seen = weighted(attempts, per_decision)
    task_of = _task_numbers(attempts)
    tasks = int(task_of.max()) + 1
    effective = min(_effective(_by_task(column, task_of)) for column in weights.T)
    effective = min(effective, seen * tasks)
    facts = Estimate(len(attempts), tasks, effective, truncated)
    if effective < FEWEST:
        return replace(facts, reason=_too_few(effective, tasks))
    scaled = weights / weights.mean(0)
    value = float((scaled * rewards).mean(0).sum())
    parts = (scaled * (rewards - (scaled * rewards).mean(0))).sum(1)
    low, high = interval_of(attempts, parts, value, effective, bounds)
    return replace(facts, value=value, low=low, high=high)


def interval_of(
    attempts: Sequence[LoggedAttempt],
    parts: Floats,
    value: float,
    effective: float,
    bounds: tuple[float, float],
) -> tuple[float, float]:
    """Returns the interval of an estimate with these linearised ``parts``, one for each attempt."""
    error = _standard_error(_by_task(parts, _task_numbers(attempts)), len(attempts))
    return _interval(value, error, effective, bounds)


def _task_numbers(attempts: Sequence[LoggedAttempt]) -> NDArray[np.int64]:
    names = {task: number for number, task in enumerate(dict.fromkeys(one.task for one in attempts))}
    return np.array([names[one.task] for one in attempts], np.int64)


def _too_few(effective: float, tasks: int) -> str:
    if tasks < FEWEST:
        return f"{tasks} tasks were held out and an estimate needs {FEWEST}: hold out more, or collect more"
    return (
        f"the policy is too far from the one that sampled: {tasks} held-out tasks weigh as much as "
        f"{effective:.1f}, and an estimate needs {FEWEST}: hold out more, or take fewer or smaller steps"
    )


def weighted(attempts: Sequence[LoggedAttempt], per_decision: bool) -> tuple[Floats, Floats, float, float]:
    """Returns truncated weights, up to a factor, and rewards, both (attempts, decisions), the truncated
    share, and the mean weight before that (1 at most). Per trajectory there is one decision. An attempt that
    ended keeps its last weight."""
    longest = max(len(one.log_ratios) for one in attempts) if per_decision else 1
    logs = np.zeros((len(attempts), longest))
    rewards = np.zeros((len(attempts), longest))
    for row, one in enumerate(attempts):
        if not len(one.log_ratios) or len(one.log_ratios) != len(one.rewards):
            raise TrainingError(
                "DATA",
                f"Attempt {row} has {len(one.log_ratios)} decisions and {len(one.rewards)} rewards: give one "
                f"reward for each decision, and one at least.",
            )
        if not per_decision:
            logs[row, 0], rewards[row, 0] = sum(one.log_ratios), sum(one.rewards)
            continue
        ended = len(one.log_ratios)
        logs[row, :ended] = np.cumsum(one.log_ratios)
        logs[row, ended:] = logs[row, ended - 1]
        rewards[row, :ended] = one.rewards
    if not (np.isfinite(logs).all() and np.isfinite(rewards).all()):
        raise TrainingError("DATA", "An attempt has a log-prob or a reward that is not finite: leave it out.")
    # relative to the greatest, since a limit of its own would make attempts equal that all lie beyond it
    greatest = logs.max(0)
    weights = np.exp(logs - greatest)
    seen = float(np.exp(np.minimum(0.0, greatest + np.log(weights.mean(0)))).min())
    most = np.sqrt(len(attempts)) * weights.mean(0)
    return np.minimum(weights, most), rewards, float((weights > most).any(1).mean()), seen


def _by_task(values: Floats, task_of: NDArray[np.int64]) -> Floats:
    return np.bincount(task_of, values).astype(np.float64)


def _effective(weights: Floats) -> float:
    return float(weights.sum() ** 2 / (weights**2).sum())


def _standard_error(by_task: Floats, attempts: int) -> float:
    tasks = len(by_task)
    return float(np.sqrt(tasks / (tasks - 1) * (by_task**2).sum()) / attempts)


def _interval(
    value: float, error: float, effective: float, bounds: tuple[float, float]
) -> tuple[float, float]:
    least, most = min(*bounds, value), max(*bounds, value)
    count = effective + 2 * _PSEUDO
    centre = (effective * value + _PSEUDO * (least + most)) / count
    spread = effective * (error**2 * effective + (value - centre) ** 2)
    spread += _PSEUDO * ((least - centre) ** 2 + (most - centre) ** 2)
    half = t_quantile(effective - 1) * float(np.sqrt(spread)) / count
    return max(least, min(value, centre - half)), min(most, max(value, centre + half))
