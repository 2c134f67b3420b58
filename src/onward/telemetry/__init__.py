"""Observability: metrics, logs, alerts, the audit stream and crash points. Nothing here decides anything.

Code that agents embed logs through ``logs`` alone, so the rest is loaded on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.telemetry.alerts import Alerts
    from onward.telemetry.metrics import Metrics

__all__ = ["Alerts", "Metrics"]
__getattr__ = attributes(
    __name__, {"onward.telemetry.alerts": "Alerts", "onward.telemetry.metrics": "Metrics"}
)
