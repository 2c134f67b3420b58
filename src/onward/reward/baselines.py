"""What a type of task usually takes: running mean and deviation of four measures of effort.

Only trajectories with a completion score above 0 count: a give-up says nothing about how long the work takes.
The statistics are Welford's (Technometrics 4(3), 1962) up to ``MEMORY`` samples and forget
exponentially after that, so a baseline follows an agent that gets better.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from onward.contracts import Trajectory, canonical_json

MINIMUM_SAMPLES = 30
MEMORY = 1000
MAX_KEYS = 500
"""Task types come from outside: the one unused for longest makes room."""


class Baseline(NamedTuple):
    """Immutable running statistics of one measure."""

    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    """Population variance."""

    @property
    def std(self) -> float:
        return math.sqrt(self.variance)

    def add(self, value: float) -> Baseline:
        n = self.n + 1
        share = 1.0 / min(n, MEMORY)
        delta = value - self.mean
        return Baseline(
            n, self.mean + delta * share, max(0.0, (1.0 - share) * (self.variance + share * delta * delta))
        )


class Baselines:
    """Baselines by key (``type:…`` or ``domain:…``) and measure, least recently used first."""

    def __init__(self, table: Mapping[str, Mapping[str, Baseline]] | None = None) -> None:
        self._table: dict[str, Mapping[str, Baseline]] = dict(table or {})

    def fork(self) -> Baselines:
        """An independent copy; cheap, since what the table holds is never changed in place."""
        return Baselines(self._table)

    def add(self, trajectory: Trajectory) -> None:
        measures = effort(trajectory)
        for key in _keys(trajectory):
            old = self._table.pop(key, {})
            fresh = {name: old.get(name, Baseline()).add(value) for name, value in measures.items()}
            self._table[key] = {**old, **fresh}
        while len(self._table) > MAX_KEYS:
            del self._table[next(iter(self._table))]

    def find(self, trajectory: Trajectory) -> tuple[str, Mapping[str, Baseline]] | None:
        """The baseline of the trajectory's task type, else of its domain, else None: those with at
        least ``MINIMUM_SAMPLES`` trajectories."""
        for key in _keys(trajectory):
            found = self._table.get(key, {})
            if "turns" in found and found["turns"].n >= MINIMUM_SAMPLES:
                return key, found
        return None

    def dump(self) -> list[Any]:
        return [[key, {name: list(b) for name, b in row.items()}] for key, row in self._table.items()]

    @classmethod
    def load(cls, document: list[Any]) -> Baselines:
        return cls({key: {name: Baseline(*b) for name, b in row.items()} for key, row in document})


def effort(trajectory: Trajectory) -> dict[str, float]:
    """turns, seconds, redundant_calls, and tokens where they are known."""
    measures = {
        "turns": float(len(trajectory.turns)),
        "redundant_calls": float(redundant_calls(trajectory)),
    }
    seconds = (trajectory.end_timestamp - trajectory.start_timestamp).total_seconds()
    if seconds >= 0.0:
        measures["seconds"] = seconds
    if trajectory.metadata.total_tokens is not None:
        measures["tokens"] = float(trajectory.metadata.total_tokens)
    return measures


def redundant_calls(trajectory: Trajectory) -> int:
    """Tool calls that repeat an earlier one, arguments included, and bring the same result."""
    seen: set[bytes] = set()
    count = 0
    for turn in trajectory.turns:
        if turn.action.type != "tool_call":
            continue
        call = canonical_json([turn.action.tool_name, turn.action.tool_args, turn.result.output])
        count += call in seen
        seen.add(call)
    return count


def task_type(trajectory: Trajectory) -> str:
    """The kind of task that baselines are kept for; empty when the trajectory names none."""
    return trajectory.task_context.task_type or ""


def _keys(trajectory: Trajectory) -> list[str]:
    named = task_type(trajectory)
    domain = f"domain:{trajectory.task_context.domain or 'general'}"
    return [f"type:{json.dumps(named, ensure_ascii=False)}", domain] if named else [domain]
