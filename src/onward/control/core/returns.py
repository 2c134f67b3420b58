"""Returns and advantages over a rollout of T steps in N slots, in numpy, with terminations and truncations.

Invariants: a termination sets the bootstrapped value to 0; a truncation (a time limit) keeps it. Either ends
a sum. ``next_values`` are the values of the steps' own next observations (``final_obs`` where an episode
ended), never of the first observation of the next episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Flags

Floats = NDArray[np.float32]


def gae(
    rewards: NDArray[Any],
    values: NDArray[Any],
    next_values: NDArray[Any],
    terminated: Flags,
    truncated: Flags,
    gamma: float,
    lam: float,
    alive: Flags | None = None,
) -> Floats:
    """Computes generalised advantage estimates (Schulman et al. 2016, equation 16); all arrays (T, N).

    δ_t = r_t + γ·V(s_{t+1})·(1 − terminated) − V(s_t); A_t = δ_t + γλ·(1 − ended)·A_{t+1}. After the last
    step nothing is added: V(s_T) is in its ``next_values``. Where ``alive`` is False the advantage is 0 and
    nothing is carried to the step before.
    """
    deltas: Floats = rewards + np.float32(gamma) * np.where(terminated, 0, next_values) - values
    carry = np.where(terminated | truncated, np.float32(0), np.float32(gamma * lam))
    if alive is not None:
        deltas, carry = np.where(alive, deltas, 0), np.where(alive, carry, 0)
    advantages = np.empty_like(deltas)
    running = np.zeros(deltas.shape[1:], np.float32)
    for t in range(len(deltas) - 1, -1, -1):
        running = np.multiply(carry[t], running, out=advantages[t])
        running += deltas[t]
    return advantages


def reward_to_go(rewards: NDArray[Any], last_value: float, gamma: float) -> Floats:
    """Returns (T,) discounted sums of one episode's rewards; ``last_value`` follows its last step."""
    returns = np.empty_like(rewards)
    running = last_value
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + gamma * running
        returns[t] = running
    return returns


def normalise_advantages(advantages: NDArray[Any], alive: Flags | None = None) -> Floats:
    """Scales advantages to mean 0 and deviation 1 over the whole rollout's alive steps; dead ones stay 0.

    The statistics are of the rollout and not of a minibatch: a minibatch of size 1, or of equal values, would
    be divided by nothing. A single step, or advantages that are all equal, become 0.
    """
    living = advantages if alive is None else advantages[alive]
    if living.size == 0:
        return np.zeros_like(advantages)
    normal = (advantages - living.mean(dtype=np.float64)) / (living.std(dtype=np.float64) + 1e-8)
    return (normal if alive is None else normal * alive).astype(np.float32)
