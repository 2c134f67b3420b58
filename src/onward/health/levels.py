"""Alerts for a share that rises and falls: once for each threshold, and resolved when it has fallen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.telemetry.alerts import Alerts

DISK_LEVELS = (0.80, 0.90, 0.95)
"""Used shares of a disk that raise an alert."""
STREAM_LEVELS = (0.70, 0.90)
"""The same for a stream's byte limit."""
SLACK = 0.02
"""A threshold counts as left when the share is this much below it, so that an alert does not flicker."""


class Levels:
    """Follows one share. ``thresholds`` rise; at the last of them an alert is critical."""

    def __init__(self, alerts: Alerts, kind: str, thresholds: tuple[float, ...]) -> None:
        self._alerts, self._kind, self._thresholds = alerts, kind, thresholds
        self._level = 0

    @property
    def raised(self) -> bool:
        """True from the first threshold until the alert is resolved."""
        return self._level > 0

    async def follow(self, share: float, message: str, **facts: Any) -> None:
        """Takes a new value; ``message`` is the sentence of an alert, raised or resolved."""
        before = self._level
        reached = sum(share >= threshold for threshold in self._thresholds)
        left = sum(share >= threshold - SLACK for threshold in self._thresholds)
        self._level = max(reached, min(before, left))
        if self._level > before:
            severity = "critical" if self._level == len(self._thresholds) else "warning"
            await self._alerts.raise_(self._kind, message, severity, share=round(share, 3), **facts)
        elif before and not self._level:
            await self._alerts.resolve(self._kind, message, share=round(share, 3), **facts)
