"""Circuit breaker: after some failures in a row a service is left alone for a while, then tried once.

Pure but for the clock, which is given. One event loop or thread uses a breaker; it has no lock.
"""

from __future__ import annotations

from typing import Literal

from onward.clock import Clock

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Counts failures in a row. Closed it lets calls pass, open it refuses them, half-open it lets one pass.

    That one is the probe. If it never reports back it is given up after ``seconds``, so that a lost call
    cannot close the way for good.
    """

    def __init__(self, clock: Clock, *, failures: int, seconds: float) -> None:
        """``failures``: failures in a row that open it. ``seconds``: time until the next probe."""
        self._clock, self._limit, self._seconds = clock, failures, seconds
        self._failures = 0
        self._opened_at: float | None = None
        self._probe_at: float | None = None

    @property
    def state(self) -> State:
        """The state now; an open breaker turns half-open by time alone."""
        if self._opened_at is None:
            return "closed"
        return "open" if self._waits() > 0.0 else "half-open"

    @property
    def retry_after(self) -> float:
        """Seconds until a call may pass; 0 if one may pass now."""
        if self._opened_at is None:
            return 0.0
        return max(self._waits(), self._probe_waits())

    def allow(self) -> bool:
        """Returns whether a call may be made now. Half-open, the first caller gets the probe."""
        if self._opened_at is None:
            return True
        if self.retry_after > 0.0:
            return False
        self._probe_at = self._clock.monotonic()
        return True

    def succeeded(self) -> None:
        """Closes the breaker: the service answered."""
        self._failures, self._opened_at, self._probe_at = 0, None, None

    def failed(self) -> None:
        """Counts a failure. The last one allowed, or that of a probe, opens the breaker from now on.

        A failure that arrives while it is open belongs to a call from before, and prolongs nothing.
        """
        self._failures += 1
        is_probe = self._probe_at is not None
        if is_probe or (self._opened_at is None and self._failures >= self._limit):
            self._opened_at, self._probe_at = self._clock.monotonic(), None

    def _waits(self) -> float:
        assert self._opened_at is not None
        return max(0.0, self._opened_at + self._seconds - self._clock.monotonic())

    def _probe_waits(self) -> float:
        if self._probe_at is None:
            return 0.0
        return max(0.0, self._probe_at + self._seconds - self._clock.monotonic())
