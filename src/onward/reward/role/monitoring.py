"""Metrics of first rewards, and the alert when too many of the newest trajectories have no valid reward.

Superseding rewards are not counted here: each trajectory counts once. In the alert every cause counts, since
to a reader of rewards each is a missing reward. The alert names the causes, so that a person can distinguish
a broken linter from agents that never report how a task ended.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import nats.errors

from onward.bus.cancellation import until_cancelled
from onward.clock import Clock
from onward.context import Context
from onward.reward.measures.baselines import Baseline
from onward.reward.role.publishing import UnscoredItem

if TYPE_CHECKING:
    from onward.telemetry.alerts import Alerts
    from onward.telemetry.metrics import Metrics

KIND = "unscored"
LEAST = 20
"""Minimum number of trajectories for an alert."""
SHARE = 0.10
REMIND_SECONDS = 3600.0
LAG_SECONDS = 5.0
_MODELS = 100


class RewardMetrics:
    def __init__(self, ctx: Context) -> None:
        self._clock, self._metrics = ctx.clock, ctx.metrics
        self._means: dict[str, Baseline] = {}

    def count_unscored(self, items: Iterable[UnscoredItem]) -> None:
        for item in items:
            self._metrics.unscored.labels(reason=item.why.reason).inc()

    def observe(self, row: dict[str, Any], arrived: datetime, model_version: str) -> None:
        """Records a published row of ``rewards``; ``arrived``: its trajectory's time on the stream."""
        seconds = (self._clock.now() - arrived).total_seconds()
        self._metrics.rewarder_seconds.observe(max(0.0, seconds))
        self._metrics.trajectory_reward.observe(row["total_reward"])
        if model_version not in self._means and len(self._means) >= _MODELS:
            return  # the label comes from agents, so the number of models is limited
        mean = self._means[model_version] = self._means.get(model_version, Baseline()).with_sample(
            row["raw_total"]
        )
        self._metrics.model_reward_mean.labels(model_version=model_version).set(mean.mean)


async def watch_lag(ctx: Context, stream: str, done: Callable[[], int]) -> None:
    """Updates the gauge of messages of ``stream`` after sequence ``done()``, which wait for a decision, until
    cancelled."""
    for _ in until_cancelled():
        with contextlib.suppress(nats.errors.Error):
            last = (await ctx.bus.js.stream_info(stream)).state.last_seq
            ctx.metrics.rewarder_lag.set(max(0, last - done()))
        await ctx.clock.sleep(LAG_SECONDS)


class UnscoredAlert:
    def __init__(self, alerts: Alerts, metrics: Metrics, clock: Clock) -> None:
        self._alerts, self._metrics, self._clock = alerts, metrics, clock
        self._raised_at: float | None = None

    async def check(self, recent: Sequence[str]) -> None:
        """Checks the share. ``recent``: causes per trajectory, oldest first; empty for a scored one."""
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
