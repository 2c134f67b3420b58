"""Binary tree of sums: sets priorities and samples in proportion to them, many at a time, in log time.

Leaves are the second half of one array. A parent is the sum of its two children, recomputed and never updated
by a difference, so that rounding errors do not accumulate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class SumTree:
    """A tree of ``count`` leaves, all 0 at first."""

    def __init__(self, count: int) -> None:
        self._depth = max(1, (count - 1).bit_length())
        self._count = count
        self._first = 1 << self._depth
        self._sums = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._sums[1])

    def values(self) -> NDArray[np.float64]:
        """Returns the leaves (count,) as a view."""
        return self._sums[self._first : self._first + self._count]

    def set(self, leaves: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Sets ``leaves``; where one occurs twice, its last value counts."""
        at = leaves + self._first
        self._sums[at] = values
        for _ in range(self._depth):
            at = at >> 1
            self._sums[at] = self._sums[2 * at] + self._sums[2 * at + 1]

    def sample(self, size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Samples ``size`` leaves, one from each equal part of the total. Returns (leaves, probabilities)."""
        mass = (np.arange(size) + rng.random(size)) * (self.total / size)
        leaves = self.find(mass)
        return leaves, self._sums[leaves + self._first] / self.total

    def find(self, mass: NDArray[np.float64]) -> NDArray[np.int64]:
        """Returns the leaf at each ``mass`` (0 … total), counted from leaf 0; never a leaf of value 0."""
        at = np.ones(len(mass), np.int64)
        left = mass.copy()
        for _ in range(self._depth):
            at *= 2
            right = (left >= self._sums[at]) & (self._sums[at + 1] > 0)
            left -= np.where(right, self._sums[at], 0)
            at += right
        return at - self._first
