"""Recognises a worker that hangs: one from which no sign of life has come for a time limit.

Each message of the worker is a sign. It sends one between the steps of its work, and two a second while it
waits, for example for NATS. Time counts only while this process runs, too: a machine that was suspended and a
container that was paused are no hang.
"""

from __future__ import annotations

LIMIT = 300.0
"""Default of the setting ``hang_seconds``."""
LEAST = 10.0
"""Least value of the setting."""
START_SECONDS = 300.0
"""Least limit until the first sign, which follows the start: a cold disk can delay that by minutes."""
LONGEST_STEP = 2.0
"""Most seconds that pass between two looks. A longer pause was one of this process."""


class Silence:
    """Time without a sign of one worker."""

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self._signs = 0
        self.seconds = 0.0
        """Time since the last sign."""
        self._looked = now

    def is_hang(self, signs: int, now: float) -> bool:
        """Adds the time since the last look, and returns whether it is too much. ``signs``: number of
        messages from the worker so far."""
        passed, self._looked = now - self._looked, now
        if signs != self._signs:
            self._signs, self.seconds = signs, 0.0
            return False
        self.seconds += min(max(passed, 0.0), LONGEST_STEP)
        return self.seconds >= (self.limit if signs else max(self.limit, START_SECONDS))
