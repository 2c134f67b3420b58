"""Rate limits: one token bucket for each name, on an injected clock.

Invariants: memory is bounded. A bucket that is full again equals none, so it may be dropped.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from onward.clock import Clock

REMEMBERED = 100_000


class RateLimit:
    """Allows ``per_minute`` at once, and as many in each minute, for each name; 0 means no limit."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._size, self._clock = float(per_minute), clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Name → (tokens left, time of that count); the most recently used is at the end."""

    def take_token(self, name: str) -> float:
        """Takes one token; returns the seconds to wait until there is one, 0 if it was taken."""
        wait = self.wait_for(name, 1.0)
        if not wait:
            self.spend(name, 1.0)
        return wait

    def wait_for(self, name: str, amount: float) -> float:
        """Returns the seconds until there are ``amount`` tokens; 0 if there are. Takes none."""
        if not self._size:
            return 0.0
        return max(0.0, (amount - self.left(name)) * 60.0 / self._size)

    def spend(self, name: str, amount: float) -> None:
        """Takes ``amount`` tokens, also more than there are: the next caller waits the longer."""
        if self._size:
            left = self.left(name)
            self._left[name] = (left - amount, self._clock.monotonic())
            self._left.move_to_end(name)

    def left(self, name: str) -> float:
        """Returns the tokens that are there now."""
        now = self._clock.monotonic()
        self._forget(now)
        left, at = self._left.get(name, (self._size, now))
        return min(self._size, left + (now - at) * self._size / 60.0)

    def _forget(self, now: float) -> None:
        while self._left:
            name, (left, at) = next(iter(self._left.items()))
            is_full = left + (now - at) * self._size / 60.0 >= self._size
            if not is_full and len(self._left) < REMEMBERED:
                return
            del self._left[name]


def network_of(address: str) -> str:
    """Returns the name under which an address is limited: for IPv6 its /64, since one host has all of it."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return address if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))
