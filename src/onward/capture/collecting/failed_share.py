"""The alert when too many of the newest trajectories could not be stored: held, or dead letters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onward.health.levels import Levels

if TYPE_CHECKING:
    from onward.telemetry.alerts import Alerts

KIND = "collection_errors"
NEWEST = 200
LEAST = 20
"""Minimum number of trajectories for an alert."""
SHARE = 0.10


class FailedShare:
    def __init__(self, alerts: Alerts) -> None:
        self._failed: deque[bool] = deque(maxlen=NEWEST)
        self._levels = Levels(alerts, KIND, (SHARE,))

    async def follow(self, failed: Iterable[bool]) -> None:
        """Takes whether each of the next trajectories could not be stored."""
        self._failed.extend(failed)
        if len(self._failed) < LEAST:
            return
        count, of = sum(self._failed), len(self._failed)
        await self._levels.follow(
            count / of,
            f"{count} of the last {of} trajectories could not be stored: see 'onward dlq list' and "
            f"'onward quarantine list'.",
        )
