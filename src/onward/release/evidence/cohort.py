"""Sessions of one gate: those that wait to mature, and the ids of those that were judged."""

from __future__ import annotations

import base64
import hashlib
import heapq
from typing import Any

MAX_SEEN = 12_000
"""Remembered session ids per gate. Above it, outcomes of the oldest minutes are refused. Both limits keep
the release record below 1 MiB, the default maximum message size of a NATS server."""
MAX_PENDING = 4_000
MINUTE = 60_000
_SHORT = 8


class Cohort:
    """Sessions of one gate: waiting to mature, or judged already (by a short hash)."""

    def __init__(self) -> None:
        self.pending: dict[str, list[Any]] = {}
        """short id → [assigned_at, candidate, weight, value, kind]"""
        self.order: list[tuple[int, str]] = []
        self.seen: dict[int, set[str]] = {}
        """Minute of assignment → short ids."""
        self.seen_count = 0
        self._texts: dict[int, str] = {}
        self.floor = 0
        self.frontier: list[int | None] = [None, None]
        """Time of the newest assignment with an outcome, per arm (for feedback: with any outcome)."""

    def advance_frontier(self, candidate: bool, assigned_at: int) -> None:
        newest = self.frontier[candidate]
        self.frontier[candidate] = assigned_at if newest is None else max(newest, assigned_at)

    def is_judged(self, key: str) -> bool:
        """Returns whether a session was judged. After a jump of a clock it may have been assigned in another
        minute by its next event, so all minutes are searched."""
        return any(key in keys for keys in self.seen.values())

    def mark_judged(self, key: str, assigned_at: int) -> None:
        minute = assigned_at // MINUTE
        self.seen.setdefault(minute, set()).add(key)
        self.seen_count += 1
        self._texts.pop(minute, None)

    def await_maturity(self, key: str, unit: list[Any]) -> None:
        self.pending[key] = unit
        heapq.heappush(self.order, (unit[0], key))

    def pop_matured(self, maturity: int, watermark: int) -> tuple[str, list[Any]] | None:
        """Removes and returns the oldest unit if it has matured and both arms have newer ones; else None."""
        current, candidate = self.frontier
        if not self.order or current is None or candidate is None:
            return None
        assigned_at, key = self.order[0]
        if assigned_at + maturity > watermark or assigned_at > min(current, candidate):
            return None
        heapq.heappop(self.order)
        return key, self.pending.pop(key)

    def prune(self, oldest: int) -> int:
        """Closes minutes before ``oldest`` ms or beyond the limits. Returns the number of discarded units."""
        self.floor = max(self.floor, oldest)
        while self.seen:
            minute = min(self.seen)
            if (minute + 1) * MINUTE > self.floor and self.seen_count <= MAX_SEEN:
                break
            self.seen_count -= len(self.seen.pop(minute))
            self._texts.pop(minute, None)
            self.floor = max(self.floor, (minute + 1) * MINUTE)
        dropped = 0
        while len(self.order) > MAX_PENDING:
            assigned_at, key = heapq.heappop(self.order)
            del self.pending[key]
            self.mark_judged(key, assigned_at)
            dropped += 1
        return dropped

    def _text(self, minute: int) -> str:
        """Returns the ids of a minute in one string. Only minutes that changed are joined again."""
        if minute not in self._texts:
            self._texts[minute] = "".join(sorted(self.seen[minute]))
        return self._texts[minute]

    def state(self) -> dict[str, Any]:
        return {
            "pending": {key: self.pending[key] for _, key in sorted(self.order)},
            "seen": {str(minute): self._text(minute) for minute in sorted(self.seen)},
            "floor": self.floor,
            "frontier": list(self.frontier),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Cohort:
        cohort = cls()
        cohort.pending = {key: list(unit) for key, unit in state["pending"].items()}
        cohort.order = sorted((unit[0], key) for key, unit in cohort.pending.items())
        for minute, text in state["seen"].items():
            cohort.seen[int(minute)] = {text[i : i + _SHORT] for i in range(0, len(text), _SHORT)}
        cohort.seen_count = sum(len(keys) for keys in cohort.seen.values())
        cohort.floor = state["floor"]
        cohort.frontier = list(state["frontier"])
        return cohort


def short_id(session_id: str) -> str:
    """Returns 48 bits of a session id: among 12,000 remembered ids a false repeat has odds of 1 in 4·10⁶."""
    digest = hashlib.blake2b(session_id.encode(), digest_size=6).digest()
    return base64.urlsafe_b64encode(digest).decode()
