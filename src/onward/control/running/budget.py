"""Time for evaluations within a run: beyond a share of it they are shortened, then left out.

Invariants: evaluations of the first seconds (``FREE_SECONDS``) are never changed, so short runs evaluate the
same on every machine. The first evaluation and the final one always take place, at least with ``FEWEST``
episodes. The trainer asks nothing here for the confirmation of a solution, whose time counts all the same:
so training, and where it ends, is the same whatever is decided here.
"""

from __future__ import annotations

from typing import Any

from onward.control.running.log import Times

FREE_SECONDS = 3.0
FEWEST = 5
"""Episodes of the shortest evaluation: fewer say little about a policy."""


class EvaluationBudget:
    """``share`` of the time that ``times`` counts. ``state``: of an earlier session."""

    def __init__(self, share: float, times: Times, state: dict[str, Any] | None = None) -> None:
        self.share, self._times = share, times
        saved = state or {}
        self._seconds_each: float | None = saved.get("seconds")
        self.shortened, self.left_out = saved.get("shortened", 0), saved.get("left_out", 0)

    def episodes(self, wanted: int, needed: bool = False) -> int:
        """Returns how many of ``wanted`` episodes there is time for; 0 where it is too short (``needed``: at
        least ``FEWEST``, or ``wanted``)."""
        spent = self._times.spent["evaluate"]
        each = self._seconds_each
        if each is None or spent + wanted * each <= FREE_SECONDS:
            return wanted
        total = self._times.total()
        # x more seconds of evaluation make spent + x of total + x.
        left = (self.share * total - spent) / max(1 - self.share, 1e-9) if self.share < 1 else float("inf")
        if wanted * each <= left:
            return wanted
        fewest = min(FEWEST, wanted)
        affordable = int(left / each) if left > 0 else 0
        if affordable < fewest and not needed:
            self.left_out += 1
            return 0
        self.shortened += 1
        return max(fewest, affordable)

    def spend(self, seconds: float, episodes: int) -> None:
        """Counts an evaluation that took place."""
        self._times.add("evaluate", seconds)
        self._seconds_each = seconds / episodes

    def complete(self) -> None:
        """Counts the shortened evaluation that was played in full after all."""
        self.shortened -= 1

    def report(self) -> dict[str, Any]:
        """Returns the share of the time so far, its limit, and what was changed to keep it."""
        total = max(self._times.total(), 1e-9)
        return {
            "share": self._times.spent["evaluate"] / total,
            "limit": self.share,
            "shortened": self.shortened,
            "left_out": self.left_out,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": self._seconds_each,
            "shortened": self.shortened,
            "left_out": self.left_out,
        }
