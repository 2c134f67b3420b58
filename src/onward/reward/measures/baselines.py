"""The usual effort for a type of task: running mean and deviation of four measures of effort.

Only work reported as done, at least in part, counts (``judgement.earned_score`` above 0). A give-up is no
measure of how long the work takes, and an unreported outcome must not make honest work look slow. The
statistics are Welford's (Technometrics 4(3), 1962) up to ``MEMORY`` samples and forget exponentially after
that, so a baseline follows an agent that improves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import re2

from onward.contracts import Trajectory, Turn, canonical_json, sha256_hex

MINIMUM_SAMPLES = 30
MEMORY = 1000
MOST = 1e12
"""Cap on a measure of effort, above any real work. It keeps the square finite."""
MOST_READ = 128 << 10
"""Bytes: each time in a text costs 10 µs, and an agent could write megabytes of times."""
MAX_KEYS = 500
"""Maximum number of keys. Task types come from outside, so the least recently used is evicted."""
LONGEST_KEY = 200
"""Characters of a task type. A longer one is stored under its hash, since all keys travel in one record."""


class Baseline(NamedTuple):
    """Immutable running statistics of one measure."""

    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    """Population variance."""

    @property
    def std(self) -> float:
        return math.sqrt(self.variance)

    def with_sample(self, value: float) -> Baseline:
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
        """Returns an independent copy. It is cheap, since entries of the table are never changed in place."""
        return Baselines(self._table)

    def update(self, trajectory: Trajectory) -> None:
        measures = effort(trajectory)
        for key in _keys(trajectory):
            old = self._table.pop(key, {})
            fresh = {name: old.get(name, Baseline()).with_sample(value) for name, value in measures.items()}
            self._table[key] = {**old, **fresh}
        while len(self._table) > MAX_KEYS:
            del self._table[next(iter(self._table))]

    def find(self, trajectory: Trajectory) -> tuple[str, Mapping[str, Baseline]] | None:
        """Returns the baseline of the trajectory's task type, else of its domain, else None. Only baselines
        of at least ``MINIMUM_SAMPLES`` trajectories are used."""
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
    """Returns turns, seconds, redundant_calls, and tokens where they are known."""
    measures = {"turns": float(len(trajectory.turns)), "redundant_calls": float(redundant_calls(trajectory))}
    seconds = (trajectory.end_timestamp - trajectory.start_timestamp).total_seconds()
    if seconds >= 0.0:
        measures["seconds"] = seconds
    if trajectory.metadata.total_tokens is not None:
        measures["tokens"] = float(min(trajectory.metadata.total_tokens, MOST))
    return measures


def redundant_calls(trajectory: Trajectory) -> int:
    """Counts tool calls that repeat an earlier one and bring nothing new.

    The same call: same tool and arguments, ignoring order, spaces and line breaks. Nothing new: the same
    success, output and error, after times, dates, durations, UUIDs and memory addresses are removed
    (``_VOLATILE``), since those differ each time and carry no information. They are removed from the first
    ``MOST_READ`` bytes of such results; the rest is compared as it is.
    """
    return sum(repeats(trajectory))


def repeats(trajectory: Trajectory) -> list[bool]:
    """Checks for each turn whether it is such a call. Results are read only where a call is repeated."""
    first: dict[bytes, Turn] = {}
    results: dict[bytes, set[bytes]] = {}
    found: list[bool] = []
    left = MOST_READ
    for turn in trajectory.turns:
        call = _call(turn) if turn.action.type == "tool_call" else None
        if call is None or call not in first:
            found.append(False)
            if call is not None:
                first[call] = turn
            continue
        again = False
        for one in (turn,) if call in results else (first[call], turn):
            plain, known = _result(one, _single_spaced), results.setdefault(call, set())
            forms = {plain}
            if plain not in known and left > 0:
                left -= len(plain)
                forms.add(_result(one, _without_volatile))
            again = not known.isdisjoint(forms)
            known |= forms
        found.append(again)
    return found


def _call(turn: Turn) -> bytes:
    return canonical_json(
        [(turn.action.tool_name or "").strip(), _map_texts(turn.action.tool_args or {}, _single_spaced)]
    )


def _result(turn: Turn, by: Callable[[str], str]) -> bytes:
    result = turn.result
    return canonical_json([result.success, _map_texts(result.output, by), by(result.error or "")])


_VOLATILE = re2.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
    r"|\b[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?\b"
    r"|\b1[0-9]{9}(?:\.[0-9]+|[0-9]{3})?\b"
    r"|\b[0-9]+(?:\.[0-9]+)? ?(?:ms|µs|us|ns|s|sec|secs|seconds)\b"
    r"|\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
    r"|\b0x[0-9a-fA-F]{6,16}\b"
)
"""Dates and times of RFC 3339, clock times, Unix seconds and milliseconds, durations, UUIDs, addresses."""


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


def _without_volatile(text: str) -> str:
    return _VOLATILE.sub("~", _single_spaced(text))


def _map_texts(value: Any, by: Callable[[str], str]) -> Any:
    """Returns ``value`` with ``by`` applied to every text and key."""
    if isinstance(value, str):
        return by(value)
    if isinstance(value, Mapping):
        return {by(str(key)): _map_texts(item, by) for key, item in value.items()}
    return [_map_texts(item, by) for item in value] if isinstance(value, list) else value


def task_type(trajectory: Trajectory) -> str:
    """Returns the kind of task that has a baseline; empty when the trajectory names none."""
    return trajectory.task_context.task_type or ""


def _keys(trajectory: Trajectory) -> list[str]:
    named = task_type(trajectory)
    domain = f"domain:{trajectory.task_context.domain or 'general'}"
    if len(named) > LONGEST_KEY:
        return [f"type:{sha256_hex(named.encode())}", domain]
    return [f"type:{json.dumps(named, ensure_ascii=False)}", domain] if named else [domain]
