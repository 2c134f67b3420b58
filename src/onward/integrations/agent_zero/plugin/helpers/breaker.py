"""The time of each hook, its errors, and the switch that turns recording off when hooks cost too much.

A hook runs in the event loop of the agent. It has one millisecond; a mean above five, or twenty errors, ends
the recording until Agent Zero is restarted.
"""

from __future__ import annotations

from collections import deque

LIMIT_MS = 5.0
"""Mean time of the latest hooks above which recording ends."""
LIMIT_ERRORS = 20
WINDOW = 512
"""Hooks that the mean and the percentiles are made of."""
LEAST = 50
"""Hooks before the mean is judged: the first ones import modules."""


class Breaker:
    """Not locked: hooks of several threads may lose a count, never more."""

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.reason = ""
        """Reason that recording ended; empty while it goes on."""
        self.last_error = ""
        self._times: deque[float] = deque(maxlen=WINDOW)
        self._sum = 0.0

    @property
    def is_open(self) -> bool:
        """Returns whether recording has ended."""
        return bool(self.reason)

    def note_time(self, milliseconds: float) -> None:
        times = self._times
        if len(times) == WINDOW:
            self._sum -= times[0]
        times.append(milliseconds)
        self._sum += milliseconds
        self.calls += 1
        if self.calls >= LEAST and self._sum / len(times) > LIMIT_MS:
            self.reason = (
                f"hooks took {self._sum / len(times):.1f} ms each: the machine is too busy to record"
            )

    def note_error(self, error: BaseException, place: str) -> None:
        """Counts an error of ours. Only its class is stored: its text may repeat the agent's words."""
        self.errors += 1
        self.last_error = f"{type(error).__name__} in {place}"
        if self.errors >= LIMIT_ERRORS:
            self.reason = f"{self.errors} errors, the last one a {self.last_error}"

    def figures(self) -> dict[str, float | int]:
        """Returns median and 99th percentile of the latest hooks in milliseconds, and the number of calls."""
        times = sorted(self._times)
        if not times:
            return {"median": 0.0, "p99": 0.0, "calls": 0}
        last = len(times) - 1
        return {
            "median": round(times[last // 2], 4),
            "p99": round(times[round(0.99 * last)], 4),
            "calls": self.calls,
        }
