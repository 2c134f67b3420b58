"""Events that wait: for the disk, or for the end of the task that they are about.

Each try of a task costs a redaction. So those that are due are tried up to the first that fails, for example
on a full disk, and less and less often. One that failed comes after the others at the next time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from onward.retry import Backoff

Event = Mapping[str, Any]
RETRY_SECONDS = 1.0
"""First pause before what could not be stored is tried again; it doubles up to ``LONGEST_PAUSE``."""
LONGEST_PAUSE = 10.0


class Waiting:
    def __init__(self) -> None:
        self._events: list[tuple[float, Event]] = []
        """The time at which each is due, and the event."""
        self._backoff = Backoff(RETRY_SECONDS, LONGEST_PAUSE)
        self._failures = 0

    def add(self, event: Event) -> None:
        """Adds an event that has to wait for something else than the disk."""
        self._events.append((time.monotonic() + RETRY_SECONDS, event))

    def add_failed(self, event: Event) -> None:
        """Adds an event that could not be stored."""
        self._failures += 1
        self._events.append((time.monotonic() + self._backoff.pause, event))

    def due(self) -> Iterator[Event]:
        """Yields the events whose time has come, up to the first that fails."""
        now, failures = time.monotonic(), self._failures
        due = [event for when, event in self._events if when <= now]
        self._events = [(when, event) for when, event in self._events if when > now]
        for number, event in enumerate(due, start=1):
            yield event
            if self._failures > failures:
                until = now + self._backoff.next()
                self._events[:0] = [(until, one) for one in due[number:]]
                return
        if due:
            self._backoff.reset()

    def take_all(self) -> list[Event]:
        """Removes all events, and returns them."""
        events, self._events = [event for _, event in self._events], []
        return events
