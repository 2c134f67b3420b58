"""Alerts when too large a share of the newest trajectories has no valid reward.

Every cause counts, since to a reader of rewards each is a missing reward. The alert names the causes, so that
a person can distinguish a broken linter from agents that never report how a task ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onward.clock import Clock

if TYPE_CHECKING:
    from onward.telemetry.alerts import Alerts
    from onward.telemetry.metrics import Metrics

KIND = "unscored"
TRAILING = 200
"""Number of trajectories in the share, the newest ones."""
LEAST = 20
"""Minimum number of trajectories for an alert."""
SHARE = 0.10
REMIND_SECONDS = 3600.0


class UnscoredAlert:
    def __init__(self, alerts: Alerts, metrics: Metrics, clock: Clock) -> None:
        self._alerts, self._metrics, self._clock = alerts, metrics, clock
        self._raised_at: float | None = None

    async def look(self, recent: Sequence[str]) -> None:
        """Checks the share. ``recent``: per trajectory, oldest first, the cause why it is unscored; empty for
        a scored one."""
        causes = Counter(cause for cause in recent if cause)
        share = causes.total() / len(recent) if recent else 0.0
        self._metrics.unscored_share.set(share)
        if len(recent) < LEAST:
            return
        now = self._clock.monotonic()
        if share > SHARE:
            if self._raised_at is None or now - self._raised_at >= REMIND_SECONDS:
                self._raised_at = now
                await self._alerts.raise_(
                    KIND,
                    f"{causes.total()} of the last {len(recent)} trajectories have no valid reward "
                    f"(above {SHARE:.0%}): see 'onward status' for the causes.",
                    share=share,
                    causes=dict(causes.most_common()),
                )
        elif self._raised_at is not None:
            self._raised_at = None
            await self._alerts.resolve(
                KIND,
                f"{causes.total()} of the last {len(recent)} trajectories have no valid reward.",
                share=share,
            )
