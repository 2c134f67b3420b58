"""Threshold rule: fixed limits on averages, read every few minutes, for who wants them in place of E-values.

A window of the last checks is compared with fixed limits: more than 5 % errors, a mean outcome more than 0.05
below the current model's, more than twice its negative feedback. Several checks in a row may be needed. The
rule has no budget of false alarms: with little traffic, averages cross limits by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WINDOW_MS = 30 * 60_000
"""Milliseconds of outcomes that a check reads."""
FEEDBACK_FACTOR = 2.0
KINDS = ("judged", "failed", "rewarded", "reward_sum", "feedback", "negative")

Tallies = Mapping[str, Mapping[str, float]]


def broken_limits(counts: Tallies, *, ceiling: float, margin: float) -> dict[str, float]:
    """Returns the gates whose limit is broken in ``counts`` (arm → numbers of KINDS), each with the
    candidate's average. An arm without numbers breaks nothing: silence is no evidence."""
    new, old = counts["candidate"], counts["current"]
    broken = {}
    if new["judged"] and new["failed"] / new["judged"] > ceiling:
        broken["error"] = new["failed"] / new["judged"]
    if new["rewarded"] and old["rewarded"]:
        mean = new["reward_sum"] / new["rewarded"]
        if mean < old["reward_sum"] / old["rewarded"] - margin:
            broken["reward"] = mean
    if new["feedback"] and old["feedback"]:
        rate = new["negative"] / new["feedback"]
        if rate > FEEDBACK_FACTOR * old["negative"] / old["feedback"]:
            broken["feedback"] = rate
    return broken


class ThresholdRule:
    """Checks the limits each ``interval`` ms of the events' own time, so that a replay decides the same."""

    def __init__(self, interval: int, consecutive: int, *, ceiling: float, margin: float) -> None:
        self.interval = interval
        self.consecutive = consecutive
        self._limits = {"ceiling": ceiling, "margin": margin}
        self.next_at: int | None = None
        self.snapshots: list[dict[str, dict[str, float]]] = []
        """Tallies since the start of the release at each check of the window, oldest first."""
        self.strikes: dict[str, int] = {}

    def check(self, watermark: int, tallies: Tallies) -> str | None:
        """Returns the gate whose limit was broken in enough checks in a row; None if there is none, or if no
        check is due. ``tallies``: arm → numbers since the start of the release."""
        if self.next_at is None:
            self.next_at = watermark + self.interval
            self.snapshots = [_copy(tallies)]
        if watermark < self.next_at:
            return None
        self.next_at += self.interval * (1 + (watermark - self.next_at) // self.interval)
        oldest = self.snapshots[0]
        window = {arm: {kind: tallies[arm][kind] - oldest[arm][kind] for kind in KINDS} for arm in tallies}
        self.snapshots = [*self.snapshots, _copy(tallies)][-max(1, WINDOW_MS // self.interval) :]
        broken = broken_limits(window, **self._limits)
        self.strikes = {gate: self.strikes.get(gate, 0) + 1 for gate in broken}
        return next((gate for gate, count in self.strikes.items() if count >= self.consecutive), None)

    def state(self) -> dict[str, Any]:
        return {"next_at": self.next_at, "snapshots": self.snapshots, "strikes": dict(self.strikes)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.next_at = state["next_at"]
        self.snapshots = [_copy(each) for each in state["snapshots"]]
        self.strikes = {gate: int(count) for gate, count in state["strikes"].items()}


def _copy(tallies: Tallies) -> dict[str, dict[str, float]]:
    return {arm: {kind: values[kind] for kind in KINDS} for arm, values in tallies.items()}
