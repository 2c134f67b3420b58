"""Threshold rule: fixed limits on averages, read every few minutes, for who wants them in place of E-values.

A window of the last checks is compared with fixed limits: more than 5 % errors, a mean outcome or raw total
more than 0.05 below the current model's, more than twice its negative feedback. A window with too few
sessions counts neither as broken nor as passed. Several checks in a row may be needed. The rule has no budget
of false alarms: with little traffic, averages cross limits by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

WINDOW_MS = 30 * 60_000
"""Milliseconds of outcomes that a check reads."""
FEEDBACK_FACTOR = 2.0
KINDS = ("judged", "failed", "rewarded", "reward_sum", "feedback", "negative")
OUTCOME_KINDS = ("rewarded", "reward_sum")
RAW_KINDS = ("raw_known", "raw_sum")
"""Numbers of an arm whose raw totals are judged."""

Tallies = Mapping[str, Mapping[str, float]]


class Verdicts(NamedTuple):
    """Result of one check."""

    broken: dict[str, float]
    """Gate whose limit is broken → the candidate's average."""
    too_few: frozenset[str]
    """Gates with fewer sessions than a window needs: neither broken nor passed."""


def verdicts(counts: Tallies, *, ceiling: float, margin: float, least: int = 0) -> Verdicts:
    """Compares ``counts`` (arm → numbers of KINDS) with the limits. A gate needs ``least`` sessions of the
    candidate, and of current too where it compares both. An arm without numbers breaks nothing: silence is no
    evidence."""
    new, old = counts["candidate"], counts["current"]
    broken: dict[str, float] = {}
    rewards = [
        (min(new.get(known, 0), old.get(known, 0)), known, total)
        for known, total in (OUTCOME_KINDS, RAW_KINDS)
    ]
    sizes = {
        "error": new["judged"],
        "reward": max(size for size, *_ in rewards),
        "feedback": min(new["feedback"], old["feedback"]),
    }
    if sizes["error"] and new["failed"] / new["judged"] > ceiling:
        broken["error"] = new["failed"] / new["judged"]
    for size, known, total in rewards:
        if size >= max(1, least) and new[total] / new[known] < old[total] / old[known] - margin:
            broken["reward"] = new[total] / new[known]
    if sizes["feedback"]:
        rate = new["negative"] / new["feedback"]
        if rate > FEEDBACK_FACTOR * old["negative"] / old["feedback"]:
            broken["feedback"] = rate
    too_few = frozenset(gate for gate, size in sizes.items() if size < least)
    return Verdicts({gate: mean for gate, mean in broken.items() if gate not in too_few}, too_few)


class ThresholdRule:
    """Checks the limits each ``interval`` ms of the events' own time, so that a replay decides the same."""

    def __init__(
        self, interval: int, consecutive: int, *, ceiling: float, margin: float, least: int = 0
    ) -> None:
        self.interval = interval
        self.consecutive = consecutive
        self._ceiling, self._margin, self._least = ceiling, margin, least
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
        window = {
            arm: {kind: values[kind] - oldest[arm][kind] for kind in _kinds(values)}
            for arm, values in tallies.items()
        }
        self.snapshots = [*self.snapshots, _copy(tallies)][-max(1, WINDOW_MS // self.interval) :]
        found = verdicts(window, ceiling=self._ceiling, margin=self._margin, least=self._least)
        kept = {gate: count for gate, count in self.strikes.items() if gate in found.too_few}
        self.strikes = {**kept, **{gate: self.strikes.get(gate, 0) + 1 for gate in found.broken}}
        enough = (gate for gate in found.broken if self.strikes[gate] >= self.consecutive)
        return next(enough, None)

    def state(self) -> dict[str, Any]:
        return {"next_at": self.next_at, "snapshots": self.snapshots, "strikes": dict(self.strikes)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.next_at = state["next_at"]
        self.snapshots = [_copy(each) for each in state["snapshots"]]
        self.strikes = {gate: int(count) for gate, count in state["strikes"].items()}


def _copy(tallies: Tallies) -> dict[str, dict[str, float]]:
    return {arm: {kind: values[kind] for kind in _kinds(values)} for arm, values in tallies.items()}


def _kinds(values: Mapping[str, float]) -> tuple[str, ...]:
    return (*KINDS, *RAW_KINDS) if "raw_known" in values else KINDS
