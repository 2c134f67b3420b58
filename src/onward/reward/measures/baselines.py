"""What a type of task usually takes: running mean and deviation of four measures of effort.

Only work that was told to be done, at least in part, counts (``judgement.earned_score`` above 0): a give-up
says nothing about how long the work takes, and silence must not make honest work look slow.
The statistics are Welford's (Technometrics 4(3), 1962) up to ``MEMORY`` samples and forget
exponentially after that, so a baseline follows an agent that gets better.
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
"""More effort than any work takes: what is above counts as this, since a square must stay a number."""
MOST_READ = 128 << 10
"""Bytes: each time in a text costs 10 µs, and an agent could fill megabytes with times."""
MAX_KEYS = 500
"""Task types come from outside: the one unused for longest makes room."""
LONGEST_KEY = 200
"""Characters of a task type; a longer one is kept under its hash, since all keys travel in one record."""


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
        measures["tokens"] = float(min(trajectory.metadata.total_tokens, MOST))
    return measures


def redundant_calls(trajectory: Trajectory) -> int:
    """Tool calls that repeat an earlier one and bring nothing new.

    The same call: same tool and arguments, whatever their order, spaces and line breaks. Nothing new: the
    same success, output and error once times, dates, durations, UUIDs and addresses in memory are taken out
    of it (``_VOLATILE``), since those differ each time and say nothing. They are taken out of the first
    ``MOST_READ`` bytes of such results; what comes later is compared as it is.
    """
    return sum(repeats(trajectory))


def repeats(trajectory: Trajectory) -> list[bool]:
    """Turn by turn, whether it is such a call. Results are read only where a call comes again."""
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
            plain, known = _result(one, _spaces), results.setdefault(call, set())
            forms = {plain}
            if plain not in known and left > 0:
                left -= len(plain)
                forms.add(_result(one, _lasting))
            again = not known.isdisjoint(forms)
            known |= forms
        found.append(again)
    return found


def _call(turn: Turn) -> bytes:
    return canonical_json(
        [(turn.action.tool_name or "").strip(), _even(turn.action.tool_args or {}, _spaces)]
    )


def _result(turn: Turn, by: Callable[[str], str]) -> bytes:
    result = turn.result
    return canonical_json([result.success, _even(result.output, by), by(result.error or "")])


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


def _spaces(text: str) -> str:
    return " ".join(text.split())


def _lasting(text: str) -> str:
    return _VOLATILE.sub("~", _spaces(text))


def _even(value: Any, by: Callable[[str], str]) -> Any:
    """``value`` with ``by`` applied to every text and key."""
    if isinstance(value, str):
        return by(value)
    if isinstance(value, Mapping):
        return {by(str(key)): _even(item, by) for key, item in value.items()}
    return [_even(item, by) for item in value] if isinstance(value, list) else value


def task_type(trajectory: Trajectory) -> str:
    """The kind of task that baselines are kept for; empty when the trajectory names none."""
    return trajectory.task_context.task_type or ""


def _keys(trajectory: Trajectory) -> list[str]:
    named = task_type(trajectory)
    domain = f"domain:{trajectory.task_context.domain or 'general'}"
    if len(named) > LONGEST_KEY:
        return [f"type:{sha256_hex(named.encode())}", domain]
    return [f"type:{json.dumps(named, ensure_ascii=False)}", domain] if named else [domain]
