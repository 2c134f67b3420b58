"""Designed outputs and truths of the tests, written without the code under test."""

from __future__ import annotations

import numpy as np

from onward.rubrics.check import Check

_FIRST = "++-+++---+-"
"""First row of the design of 12 runs by Plackett and Burman; the others are its rotations and a row of
minus."""
PROBES = np.array(
    [[sign == "+" for sign in _FIRST[-shift:] + _FIRST[:-shift]] for shift in range(11)] + [[False] * 11],
    dtype=np.float64,
)


class Task:
    """A task as the reward reads it: checks, their weights in the truth, designed outputs."""

    def __init__(self, active: tuple[Check, ...], weights: np.ndarray) -> None:
        self.active, self.weights = active, weights

    def probes(self) -> np.ndarray:
        return PROBES.astype(bool)


def random_truth(seed: int, *, most: float = 0.4) -> np.ndarray:
    """Returns a truth over 11 checks: base × level of six dimensions, 4 to 6 of them kept."""
    draw = np.random.default_rng(seed)
    dimensions = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5])
    while True:
        raw = draw.integers(1, 4, 11) * draw.choice([0, 1, 3], 6)[dimensions]
        kept = np.argsort(-raw, kind="stable")[: draw.integers(4, 7)]
        kept = kept[raw[kept] > 0]
        if len(kept) < 4:
            continue
        truth = np.zeros(11)
        truth[kept] = raw[kept] / raw[kept].sum()
        if truth.max() <= most:
            return truth
