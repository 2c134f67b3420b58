"""Alerts for an operator. Each one goes to the log, to NATS and to a counter.

The NATS part is a plain message and may be lost while the bus is unreachable; the log line and the counter
are not. Raising an alert therefore never fails and never waits for the bus.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from onward.clock import Clock, utc_text
from onward.contracts import subjects
from onward.errors import hide_login
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.telemetry.metrics import Metrics

Severity = Literal["warning", "critical", "resolved"]
_log = logs.get("alerts")


class Notifier(Protocol):
    """The one method that alerts need of the bus."""

    async def notify(self, subject: str, data: bytes) -> None: ...


class Alerts:
    def __init__(self, bus: Notifier | None, clock: Clock, metrics: Metrics) -> None:
        """``bus`` None: alerts go to the log and the counter only."""
        self._bus = bus
        self._clock = clock
        self._metrics = metrics

    async def raise_(self, kind: str, message: str, severity: Severity = "warning", **facts: Any) -> None:
        """Reports ``kind`` (a short fixed word, used as a label) with one sentence and plain facts."""
        self._metrics.alerts.labels(kind=kind).inc()
        log = _log.error if severity == "critical" else _log.warning
        log("alert", kind=kind, message=message, severity=severity, **facts)
        await self._send(kind, message, severity, facts)

    async def resolve(self, kind: str, message: str, **facts: Any) -> None:
        """Reports that the cause of alert ``kind`` is over. Does not count as an alert."""
        _log.info("alert resolved", kind=kind, message=message, **facts)
        await self._send(kind, message, "resolved", facts)

    async def _send(self, kind: str, message: str, severity: Severity, facts: dict[str, Any]) -> None:
        if self._bus is None:
            return
        try:
            await notify(self._bus, self._clock, kind, message, severity, facts)
        except Exception as error:  # an alert about a broken bus must not break its caller
            _log.warning("alert not sent", kind=kind, error=type(error).__name__)


async def notify(
    bus: Notifier, clock: Clock, kind: str, message: str, severity: Severity, facts: Mapping[str, Any]
) -> None:
    """Sends one alert to NATS and does nothing else."""
    body = {
        "kind": kind,
        "message": hide_login(message),
        "severity": severity,
        "timestamp": utc_text(clock.now()),
        "facts": facts,
    }
    data = json.dumps(body, sort_keys=True, separators=(",", ":"), default=str, ensure_ascii=False)
    await bus.notify(subjects.ALERT, data.encode())
