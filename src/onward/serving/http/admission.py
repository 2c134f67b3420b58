"""Admission of calls: counts those that run, and refuses new ones while traffic is paused or ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from onward.bus import Bus, load_entry
from onward.clock import Clock, is_set_within, read_time
from onward.contracts.buckets import Traffic
from onward.http.app import HttpError
from onward.http.server import GRACE_SECONDS
from onward.serving.http.streaming import Ending, stopping
from onward.serving.routing.route_switcher import RouteSwitcher

RETRY_AFTER_SECONDS = 1


class Admission:
    """Running calls of a gateway. The pause itself is stored in ``state``, which reports it."""

    def __init__(self, state: RouteSwitcher, bus: Bus, clock: Clock) -> None:
        self._state, self._bus, self._clock = state, bus, clock
        self._resume_at: datetime | None = None
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_stopping = False
        self.ending = Ending()
        """Set when the calls that still run are ended."""

    @property
    def paused(self) -> bool:
        if self._state.paused and self._resume_at is not None and self._clock.now() >= self._resume_at:
            self.resume()
        return self._state.paused

    def pause(self, until: datetime | None = None) -> None:
        """Refuses new calls with 429 until ``resume`` (or ``until``); running calls go on."""
        self._state.paused, self._resume_at = True, until

    def resume(self) -> None:
        self._state.paused, self._resume_at = False, None

    async def drain(self) -> None:
        """Waits until no call runs. Pause first."""
        await self._idle.wait()

    async def is_idle_soon(self) -> bool:
        """Waits for the running calls; returns False if some still run after the grace of a stop."""
        return await is_set_within(self._idle, GRACE_SECONDS, self._clock)

    def check(self) -> None:
        """Raises HttpError if no new call is admitted now."""
        if self.is_stopping:
            raise stopping()
        if self.paused:
            raise HttpError(
                429,
                "Traffic is paused for a moment: try again.",
                type="paused",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )

    def enter(self) -> Callable[[], None]:
        """Counts a running call. Returns a function that ends it, once."""
        self.in_flight += 1
        self._idle.clear()
        running = [True]

        def leave() -> None:
            if running:
                running.clear()
                self.in_flight -= 1
                if not self.in_flight:
                    self._idle.set()

        return leave

    async def follow_control(self) -> None:
        """Follows the operator's switch ``Traffic``."""
        bucket = self._bus.bucket(Traffic.BUCKET)
        async for entry in bucket.watch(Traffic.KEY, deletes=True):
            asked = Traffic() if entry.deleted else (await load_entry(bucket, Traffic, entry)).document
            if asked is None:
                continue
            if asked.paused:
                self.pause(read_time(asked.until) if asked.until else None)
                await self.drain()
            else:
                self.resume()
            await self._state.report()
