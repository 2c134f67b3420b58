"""The gateway's own counters, on the registry of the process."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from prometheus_client import Counter, Gauge

from onward.telemetry.metrics import Metrics


class GatewayMetrics:
    """Counters of the gateway. Every attempt is counted, so a retry never hides a failure of its arm."""

    def __init__(self, metrics: Metrics) -> None:

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"onward_gateway_{name}", about, labels, registry=metrics.registry)

        self.seconds = metrics.gateway_seconds
        self.model_errors = metrics.model_errors
        self.model_traffic = metrics.model_traffic
        self.attempts = counter("attempts", "Engine calls, retries included", "arm", "result")
        self.outcomes = counter("outcomes", "Session outcomes published", "arm", "kind")
        self.mismatches = counter(
            "mismatches", "Rewards that claim another release or arm than the session was assigned to"
        )
        self.unassigned = counter("unassigned", "Calls served by current because no record could be made")
        self.captured = counter(
            "captured", "Trajectories of calls that the gateway recorded, by what closed them", "closed"
        )
        self.provider_calls = counter(
            "provider_calls", "Requests to providers, retries included", "provider", "result"
        )
        self.provider_state = Gauge(
            "onward_gateway_provider_state",
            "Circuit of a provider: 0 closed, 1 half-open, 2 open",
            ("provider",),
            registry=metrics.registry,
        )
        self.capture_errors = counter(
            "capture_errors", "Steps of capture that failed; the answers went out all the same", "step"
        )


def gateway_metrics(metrics: Metrics) -> GatewayMetrics:
    """Returns the one set for ``metrics``: a registry refuses duplicate names, and a role may restart."""
    if metrics not in _made:
        _made[metrics] = GatewayMetrics(metrics)
    return _made[metrics]


_made: WeakKeyDictionary[Metrics, GatewayMetrics] = WeakKeyDictionary()
