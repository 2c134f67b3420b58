"""Evidence over time: E-values, rates of both arms, the candidate's share; thinned to some hundred points."""

from __future__ import annotations

from typing import NamedTuple

from onward.release.evidence.evidence import Evidence
from onward.release.evidence.rates import rates_of

POINTS = 400
"""Most points of a trace; beyond it, every second one is dropped."""
ARM_NAMES = ("candidate", "current")


class Point(NamedTuple):
    """The evidence after one outcome. A rate is None while its arm has no judged session."""

    at: int
    """Arrival of the outcome by the server's clock, in ms."""
    share: float
    e_values: dict[str, float]
    errors: dict[str, float | None]
    outcomes: dict[str, float | None]


class Trace:
    """Points in stream order."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._every = 1
        self._number = 0

    def add(self, evidence: Evidence, at: int, share: float) -> None:
        """Adds the evidence as it is now, unless it falls between two kept points. A crossing is kept."""
        self._number += 1
        if self._number % self._every and evidence.crossing is None:
            return
        rates = rates_of(evidence)
        self.points.append(
            Point(
                at,
                share,
                evidence.gates.e_values(),
                {arm: rates[arm].error_rate for arm in ARM_NAMES},
                {arm: rates[arm].mean_outcome for arm in ARM_NAMES},
            )
        )
        if len(self.points) >= 2 * POINTS:
            self.points = self.points[::2]
            self._every *= 2
