"""Pauses between tries of what failed: one back-off for connections, queries and child processes."""

from __future__ import annotations

import random


def pause_after(failures: int, least: float, most: float) -> float:
    """Returns the pause after that many failures in a row, without a ``Backoff`` that was kept meanwhile."""
    return min(least * 2.0 ** min(max(failures, 1) - 1, 60), most)


class Backoff:
    """Pauses that double from ``least`` to ``most`` seconds.

    ``jitter`` (0 to 1) shortens each pause by up to this share at random, so that many clients do not return
    at the same moment.
    """

    def __init__(self, least: float, most: float, *, jitter: float = 0.0) -> None:
        self._least, self._most, self._jitter = least, most, jitter
        self.pause = least
        """The next pause in seconds, before jitter."""

    def next(self) -> float:
        """Returns the pause to wait now, and doubles the one after it."""
        pause = self.pause
        self.pause = min(2 * pause, self._most)
        return pause * random.uniform(1.0 - self._jitter, 1.0) if self._jitter else pause

    def reset(self) -> None:
        """Begins with ``least`` again: a try succeeded."""
        self.pause = self._least
