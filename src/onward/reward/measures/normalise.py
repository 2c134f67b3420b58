"""Normalises a score against the trailing window of earlier scores.

z-score: ``(z + 2)/4`` clipped to [0, 1], with the population deviation. Below 30 samples, or without any
spread, the raw score is used. The window's sums are exact integers and its extremes are stored in monotonic
queues (Lemire, arXiv:cs/0610046). So each score costs O(1) amortised, nothing drifts, and results are the
same after a restart, bit for bit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MINIMUM_SAMPLES = 30
Method = Literal["z-score", "min-max", "none"]

_BITS = 1074
"""Every double is a whole multiple of 2**-1074."""


@dataclass(frozen=True)
class Normalised:
    value: float
    method: Method
    """Method applied: ``none`` while the window is too small or flat."""
    n: int
    mean: float
    std: float
    min: float
    max: float


class Window:
    """The last ``size`` scores."""

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self.size = size
        self._values: deque[float] = deque()
        self._sum = 0
        self._squares = 0
        self._rising: deque[float] = deque()
        """Scores with no smaller one after them: the first is the smallest of all."""
        self._falling: deque[float] = deque()
        """Scores with no greater one after them: the first is the greatest of all."""
        for value in values:
            self.append(value)

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: float) -> None:
        """Appends a score. Raises ValueError for NaN and infinities."""
        if not math.isfinite(value):
            raise ValueError("a score must be finite")
        if len(self._values) == self.size:
            first = self._values.popleft()
            if first == self._rising[0]:
                self._rising.popleft()
            if first == self._falling[0]:
                self._falling.popleft()
            old = _whole(first)
            self._sum -= old
            self._squares -= old * old
        self._values.append(value)
        while self._rising and self._rising[-1] > value:
            self._rising.pop()
        self._rising.append(value)
        while self._falling and self._falling[-1] < value:
            self._falling.pop()
        self._falling.append(value)
        new = _whole(value)
        self._sum += new
        self._squares += new * new

    def values(self) -> list[float]:
        """Returns the scores, oldest first."""
        return list(self._values)

    def fork(self) -> Window:
        copy = Window(self.size)
        copy._values = self._values.copy()
        copy._sum, copy._squares = self._sum, self._squares
        copy._rising, copy._falling = self._rising.copy(), self._falling.copy()
        return copy

    @property
    def mean(self) -> float:
        """Mean, correctly rounded; 0 when empty."""
        return self._sum / (len(self) << _BITS) if self._values else 0.0

    @property
    def std(self) -> float:
        """Population deviation; 0 when empty."""
        n = len(self)
        if not n:
            return 0.0
        return math.sqrt((n * self._squares - self._sum * self._sum) / (n * n << (2 * _BITS)))

    def normalise(self, score: float, method: Method, *, least_std: float = 0.0) -> Normalised:
        """Normalises ``score`` against the window as it is now; add the score afterwards.

        ``least_std``: least deviation that z is divided by, where the window has any spread at all, and half
        the least range of min-max. The reported deviation is the window's own. Raises ValueError for NaN and
        infinities.
        """
        if not math.isfinite(score):
            raise ValueError("a score must be finite")
        if not self._values:
            return Normalised(score, "none", 0, 0.0, 0.0, 0.0, 0.0)
        low, high = self._rising[0], self._falling[0]
        mean, std = self.mean, self.std
        enough = len(self) >= MINIMUM_SAMPLES
        value, applied = score, "none"
        if enough and method == "z-score" and std > 0.0:
            value, applied = ((score - mean) / max(std, least_std) + 2.0) / 4.0, method
        elif enough and method == "min-max" and high > low:
            value, applied = 1.0 - (high - score) / max(high - low, 2.0 * least_std), method
        return Normalised(min(1.0, max(0.0, value)), applied, len(self), mean, std, low, high)


def _whole(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << (_BITS + 1 - denominator.bit_length())
