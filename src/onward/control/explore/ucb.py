"""Optimism in the face of uncertainty: the choice of actions whose values are uncertain.

These are pure functions of values and counts. Counts of states without a table come from ``counts.py``.
Values of an ensemble come from the code that trains it. Its members must see different data, or start
differently and have their own targets; otherwise their spread has no meaning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Flags
from onward.errors import ControlError


def count_bonus(counts: NDArray[Any], total: NDArray[Any] | float, c: float) -> NDArray[np.float64]:
    """Returns c·√(ln t / n) by element: ``total`` t broadcasts against ``counts`` n; infinite where n is 0.

    With c = √2 and rewards in 0 … 1 this is UCB1 (Auer, Cesa-Bianchi, Fischer 2002).
    """
    n = np.asarray(counts, dtype=np.float64)
    log = np.log(np.maximum(1.0, total))
    with np.errstate(divide="ignore", invalid="ignore"):
        bonus = c * np.sqrt(log / n)
    return np.where(n > 0, bonus, np.inf)


def ucb_choice(
    values: NDArray[Any], counts: NDArray[Any], c: float, mask: Flags | None = None
) -> NDArray[np.int64]:
    """Returns (N,) argmax over actions of Q(s, a) + c·√(ln n(s) / n(s, a)), n(s) = Σ_a n(s, a).

    ``values``, ``counts`` and ``mask``: (N, A). An untried legal action comes first, the lowest of several.
    Raises ControlError for a negative c.
    """
    _check_optimism(c)
    scores = values + count_bonus(counts, counts.sum(axis=1, keepdims=True), c)
    return _legal_argmax(scores, mask)


def ensemble_choice(values: NDArray[Any], c: float, mask: Flags | None = None) -> NDArray[np.int64]:
    """Returns (N,) argmax over actions of mean + c·std over an ensemble (UCB by disagreement, 1706.01502).

    ``values``: (E, N, A), one Q-function per member; the deviation is the population's (divides by E). Raises
    ControlError for fewer than two members or a negative c.
    """
    _check_optimism(c)
    if values.ndim != 3 or len(values) < 2:
        raise ControlError(
            f"Disagreement was asked of Q values of shape {values.shape}: "
            "give (members, N, actions) with at least 2 members."
        )
    return _legal_argmax(values.mean(axis=0) + c * values.std(axis=0), mask)


def _legal_argmax(scores: NDArray[Any], mask: Flags | None) -> NDArray[np.int64]:
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return scores.argmax(axis=1)


def _check_optimism(c: float) -> None:
    if c < 0:
        raise ControlError(
            f"The weight of uncertainty is {c}: give 0 (greedy) or more; below 0 avoids what is new."
        )
