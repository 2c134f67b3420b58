"""Epsilon-greedy: schedules of epsilon, and the random actions of each slot.

Invariants: every slot draws for itself. With one draw for the whole batch, all slots would explore together
or not at all, and the data of one step would be all greedy or all random.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Flags
from onward.errors import ControlError


def linear_epsilon(steps: int, total_steps: int, start: float, end: float, share: float) -> float:
    """Returns epsilon: linear from ``start`` to ``end``, reached once ``share`` of the budget is spent.

    ``steps`` and ``total_steps`` are environment steps over all slots, so the number of slots does not change
    the schedule. Works in both directions. Raises ControlError unless 0 ≤ epsilon ≤ 1 and 0 < share ≤ 1.
    """
    _check_range(start, end)
    if not 0 < share <= 1:
        raise ControlError(
            f"The share of the budget in which epsilon anneals is {share}: give more than 0, at most 1."
        )
    done = min(1.0, steps / max(1.0, share * total_steps))
    return start + (end - start) * done


def decayed_epsilon(times: int, start: float = 1.0, end: float = 0.01, factor: float = 0.995) -> float:
    """Returns max(end, start · factor^times): epsilon multiplied by ``factor`` at each update (or episode).

    With the defaults, 0.01 is reached after 919 times. Raises ControlError unless 0 ≤ epsilon ≤ 1 and 0 <
    factor ≤ 1.
    """
    _check_range(start, end)
    if not 0 < factor <= 1:
        raise ControlError(f"Epsilon is multiplied by {factor} at each update: give more than 0, at most 1.")
    return max(end, start * factor**times)


def epsilon_greedy(
    greedy: NDArray[np.int64],
    epsilon: float,
    choices: int,
    generator: np.random.Generator,
    mask: Flags | None = None,
) -> NDArray[np.int64]:
    """Returns (N,) ``greedy`` with, in each slot at probability epsilon, a uniform (legal) action instead.

    ``mask``: (N, choices) legal actions. The number of draws is always the same, so that a resumed run stays
    in step.
    """
    explores = generator.random(len(greedy)) < epsilon
    return np.where(explores, uniform_actions(len(greedy), choices, generator, mask), greedy)


def uniform_actions(
    num: int, choices: int, generator: np.random.Generator, mask: Flags | None = None
) -> NDArray[np.int64]:
    """Draws (num,) uniform actions from the ``choices``, or from the legal ones of a mask (num, choices)."""
    if mask is None:
        return generator.integers(choices, size=num)
    if not mask.any(axis=1).all():
        raise ControlError(
            "An action mask allows no action at all: leave at least one legal, or end the episode."
        )
    keys: NDArray[Any] = generator.random((num, choices))
    return np.where(mask, keys, -1.0).argmax(axis=1)


def _check_range(start: float, end: float) -> None:
    for name, value in (("start", start), ("end", end)):
        if not 0 <= value <= 1:
            raise ControlError(f"Epsilon at its {name} is {value}: give a probability, from 0 to 1.")
