"""How Onward is watched: metrics, logs and alerts. Nothing here decides anything."""

from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics

__all__ = ["Alerts", "Metrics"]
