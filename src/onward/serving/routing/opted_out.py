"""Counts trajectories of users who opted out at the gateway, in the same count as the collectors.

``onward status`` shows the count; it is only information. A count that NATS does not accept waits in memory
and is lost if the gateway ends first. The trajectory itself is stored nowhere, either way.
"""

from __future__ import annotations

import asyncio

from onward.bus import Bus
from onward.capture.collecting.collector import count_opted_out
from onward.clock import Clock
from onward.errors import OnwardError
from onward.telemetry import logs
from onward.telemetry.metrics import Metrics

_log = logs.get("capture")
PATIENCE_SECONDS = 2.0
_RETRY_SECONDS = 1.0


class OptedOut:
    def __init__(self, bus: Bus, clock: Clock, metrics: Metrics) -> None:
        self._bus, self._clock, self._metrics = bus, clock, metrics
        self._waiting: list[str] = []
        self._news = asyncio.Event()

    def count(self, trajectory_id: str) -> None:
        self._metrics.opted_out.inc()
        self._waiting.append(trajectory_id)
        self._news.set()

    async def run(self) -> None:
        """Writes counts as they arrive, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while not await self.write():
                await self._clock.sleep(_RETRY_SECONDS)

    async def write(self) -> bool:
        """Writes the waiting counts, each once. Returns whether NATS accepted them."""
        counted = list(self._waiting)
        if not counted:
            return True
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await count_opted_out(self._bus, counted)
        except (OnwardError, TimeoutError):
            _log.warning("opt-outs are counted later", count=len(counted))
            return False
        del self._waiting[: len(counted)]
        return True
