"""Doubly robust off-policy estimate: importance sampling, corrected by a model of the values. Pure, no torch.

It is right if either the weights or the values are right, and varies less than weights alone where the values
are good. Invariants: the same refusals and the same interval as ``off_policy``; a model of zeros gives that
estimate again.

Source: the weighted doubly robust estimator of Thomas and Brunskill (2016), after Jiang and Li (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onward.errors import TrainingError
from onward.lm import off_policy
from onward.lm.off_policy import Estimate, Floats, LoggedAttempt


@dataclass(frozen=True)
class Values:
    """A model's values at the decisions of one attempt, under the policy that is estimated: ``states`` before
    each decision, ``actions`` of what was decided."""

    states: Sequence[float]
    actions: Sequence[float]


def estimate(
    attempts: Sequence[LoggedAttempt], values: Sequence[Values], *, bounds: tuple[float, float] = (0.0, 1.0)
) -> Estimate:
    """Estimates the mean return of π on the tasks of ``attempts``, corrected by ``values``.

    V = mean v₀ + Σₜ [Σᵢ w̄ₜ (rₜ - q̂ₜ) + Σᵢ w̄ₜ₋₁ v̂ₜ], with self-normalised weights w̄. Raises TrainingError
    (DATA) as ``off_policy.estimate`` does, and for values of another number of decisions.
    """
    plain = off_policy.estimate(attempts, per_decision=True, bounds=bounds)
    if plain.value is None:
        return plain
    weights, rewards, _, _ = off_policy.weighted(attempts, per_decision=True)
    scaled = weights / weights.mean(0)
    states, actions = (
        _matrix([one.states for one in values], attempts),
        _matrix([one.actions for one in values], attempts),
    )
    earlier = np.concatenate([np.ones((len(attempts), 1)), scaled[:, :-1]], 1)
    gains, baselines = scaled * (rewards - actions), earlier * states
    value = float(gains.mean(0).sum() + baselines.mean(0).sum())
    parts = (gains - scaled * gains.mean(0)).sum(1) + (baselines - earlier * baselines.mean(0)).sum(1)
    low, high = off_policy.interval_of(attempts, parts, value, plain.effective, bounds)
    return replace(plain, value=value, low=low, high=high)


def _matrix(rows: Sequence[Sequence[float]], attempts: Sequence[LoggedAttempt]) -> Floats:
    """Returns values as (attempts, decisions), 0 after the end."""
    lengths = [len(one.log_ratios) for one in attempts]
    if [len(row) for row in rows] != lengths:
        raise TrainingError("DATA", "The values have another number of decisions than their attempts.")
    filled = np.zeros((len(rows), max(lengths)))
    for number, row in enumerate(rows):
        filled[number, : len(row)] = row
    return filled


def task_values(attempts: Sequence[LoggedAttempt]) -> list[Values]:
    """Returns the simplest model: at each decision of an attempt, the mean return of the attempts at other
    tasks. An attempt's own task takes no part, else its luck would be subtracted from itself."""
    returns = np.array([sum(one.rewards) for one in attempts])
    found = []
    for one in attempts:
        others = returns[[other.task != one.task for other in attempts]]
        mean = float(others.mean()) if len(others) else 0.0
        found.append(Values([mean] * len(one.rewards), [mean] * len(one.rewards)))
    return found
