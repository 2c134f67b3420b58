"""Probe designs: balanced, orthogonal two-level designs over the eleven active checks of a task.

For weights w of a rubric and w* of the truth, both with sum 1, such a design has mean squared error
¼‖w - w*‖² and variance of the true score ¼‖w*‖², exactly.
"""

from __future__ import annotations

from functools import cache

import numpy as np

ACTIVE = 11
"""Checks that are active in a task: the columns of every design."""
_ROW_12 = "++-+++---+-"
_ROW_24 = "+++++-+-++--++--+-+----"


def plackett_burman(first: str) -> np.ndarray:
    """Returns the design that rotates ``first`` and ends with a row of zeros, as booleans."""
    row = np.array([sign == "+" for sign in first])
    turned = [np.roll(row, shift) for shift in range(len(row))]
    return np.vstack([*turned, np.zeros(len(row), dtype=bool)])


@cache
def probe_design() -> np.ndarray:
    """Returns the 12 probes of a task: (12, 11), read-only."""
    return _frozen(plackett_burman(_ROW_12))


@cache
def hidden_design() -> np.ndarray:
    """Returns the 24 probes that are for evaluation alone, with other operators: (24, 11), read-only."""
    return _frozen(plackett_burman(_ROW_24)[:, :ACTIVE])


def _frozen(design: np.ndarray) -> np.ndarray:
    design.setflags(write=False)
    return design


def expected_error(weights: np.ndarray, truth: np.ndarray) -> float:
    """Returns the mean squared error of a rubric on either design, in closed form."""
    gap = np.asarray(weights, dtype=np.float64) - truth
    return float(gap @ gap) / 4


def score_variance(truth: np.ndarray) -> float:
    """Returns the variance of the true score on either design, in closed form."""
    return float(truth @ truth) / 4


def skill(weights: np.ndarray, truth: np.ndarray, floor: float = 0.01) -> float:
    """Returns 1 - MSE / variance of a weight vector: 1 is the truth, 0 a constant score."""
    return 1.0 - expected_error(weights, truth) / max(score_variance(truth), floor)
