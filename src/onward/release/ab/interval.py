"""A confidence sequence for the difference of two means: an interval that may be read after every session.

The probability that it *ever* misses the true difference is at most α, however often it is read and whenever
the test is stopped. Sessions are paired in blocks, as the release gates do: a block ends when both arms have
a value, and its observation is the difference of their means in it. So a drift that both arms share cancels.

Source: the empirical-Bernstein confidence sequence with predictable plug-in bets, Waudby-Smith & Ramdas,
JRSS-B 2023 (arXiv 2010.09686), theorem 2; observations are scaled from [-1, 1] to [0, 1].
"""

from __future__ import annotations

import math
from typing import Any

LARGEST_BET = 0.5
_FIELDS = ("blocks", "sum", "squares", "bets", "weighted", "penalty", "low", "high")


class DifferenceInterval:
    """The interval for mean(B) - mean(A) of outcomes in [0, 1]. Its state has a fixed size."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self.sums = [0.0, 0.0]
        self.counts = [0, 0]
        self.blocks = 0
        self.sum = self.squares = 0.0
        """Sums over the scaled observations; the squares are about the running mean."""
        self.bets = self.weighted = self.penalty = 0.0
        self.low, self.high = -1.0, 1.0
        """The intersection of all intervals so far."""

    def value(self, is_b: bool, value: float) -> None:
        """Adds the outcome of one session."""
        self.sums[is_b] += value
        self.counts[is_b] += 1
        if not all(self.counts):
            return
        gap = self.sums[1] / self.counts[1] - self.sums[0] / self.counts[0]
        self.sums, self.counts = [0.0, 0.0], [0, 0]
        self._observe((gap + 1.0) / 2.0)

    @property
    def estimate(self) -> float | None:
        """The mean difference of the blocks; None before the first one."""
        return 2.0 * self.sum / self.blocks - 1.0 if self.blocks else None

    def _observe(self, scaled: float) -> None:
        before = (0.5 + self.sum) / (self.blocks + 1)
        variance = (0.25 + self.squares) / (self.blocks + 1)
        self.blocks += 1
        spread = variance * self.blocks * math.log(1 + self.blocks)
        bet = min(LARGEST_BET, math.sqrt(2 * math.log(2 / self.alpha) / spread))
        self.bets += bet
        self.weighted += bet * scaled
        self.penalty += 4 * (scaled - before) ** 2 * (-math.log1p(-bet) - bet) / 4
        self.sum += scaled
        after = (0.5 + self.sum) / (self.blocks + 1)
        self.squares += (scaled - after) ** 2
        centre = self.weighted / self.bets
        half = (math.log(2 / self.alpha) + self.penalty) / self.bets
        self.low = max(self.low, 2 * (centre - half) - 1)
        self.high = min(self.high, 2 * (centre + half) - 1)

    def state(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in _FIELDS}
        return {"alpha": self.alpha, "sums": list(self.sums), "counts": list(self.counts), **own}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> DifferenceInterval:
        made = cls(float(state["alpha"]))
        made.sums, made.counts = list(state["sums"]), list(state["counts"])
        for name in _FIELDS:
            setattr(made, name, state[name])
        return made
