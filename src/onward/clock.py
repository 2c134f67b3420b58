"""Injected time: nothing in the control plane reads the wall clock or sleeps by itself.

``SystemClock`` is the real clock. ``ManualClock`` moves only when a test advances it, so a four-hour canary
runs in milliseconds.
"""

from __future__ import annotations

import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall-clock time in UTC, timezone-aware: for records, never for measuring."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward: for leases, deadlines and durations."""
        ...

    async def sleep(self, seconds: float) -> None: ...


async def is_set_within(event: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Waits until ``event`` is set, at most ``seconds`` of ``clock``; returns whether it is set."""
    import asyncio

    waiter, timer = asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({waiter, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
        timer.cancel()
    return event.is_set()


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        import asyncio  # agents import this module; loading asyncio takes longer than all the rest of it

        await asyncio.sleep(seconds)


class ManualClock:
    """A clock for tests. ``await advance(s)`` wakes every sleeper that is due, in order. ``jump(s)`` sets the
    wall clock alone, as a host does that wakes up or corrects its time."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    def jump(self, seconds: float) -> None:
        self._start += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        import asyncio

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + max(0.0, seconds), next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        target = self._elapsed + seconds
        await _let_tasks_run()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, due)
            if not future.done():
                future.set_result(None)
            await _let_tasks_run()
        self._elapsed = target
        await _let_tasks_run()


async def _let_tasks_run(rounds: int = 20) -> None:
    import asyncio

    for _ in range(rounds):
        await asyncio.sleep(0)


def utc_text(moment: datetime) -> str:
    """Formats a moment as ISO 8601 in UTC with milliseconds and ``Z``: the form used in every message."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_time(text: str) -> datetime:
    """Returns the time that ``text`` gives in ISO 8601; one without an offset is UTC. Raises ValueError for
    anything else."""
    if not isinstance(text, str):
        raise ValueError("a time must be text in ISO 8601")
    found = datetime.fromisoformat(text)
    try:
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError("a time must be within the years 1 to 9999") from None
