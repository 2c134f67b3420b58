"""Prometheus metrics of first rewards. Superseding ones are not counted here: each trajectory counts once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import nats.errors

from onward.bus.cancellation import until_cancelled
from onward.context import Context
from onward.reward.measures.baselines import Baseline
from onward.reward.role.publishing import Missing

LAG_SECONDS = 5.0
_MODELS = 100


class Gauges:
    def __init__(self, ctx: Context) -> None:
        self._clock, self._metrics = ctx.clock, ctx.metrics
        self._means: dict[str, Baseline] = {}

    def missing(self, items: Iterable[Missing]) -> None:
        for item in items:
            self._metrics.unscored.labels(reason=item.why.reason).inc()

    def rewarded(self, row: dict[str, Any], arrived: datetime, model_version: str) -> None:
        """Records a reward. ``row``: of table ``rewards``, published now; ``arrived``: its trajectory's time
        on the stream."""
        seconds = (self._clock.now() - arrived).total_seconds()
        self._metrics.rewarder_seconds.observe(max(0.0, seconds))
        self._metrics.trajectory_reward.observe(row["total_reward"])
        if model_version not in self._means and len(self._means) >= _MODELS:
            return  # the label comes from agents, so the number of models is limited
        mean = self._means[model_version] = self._means.get(model_version, Baseline()).add(row["raw_total"])
        self._metrics.model_reward_mean.labels(model_version=model_version).set(mean.mean)


async def watch_lag(ctx: Context, stream: str, done: Callable[[], int]) -> None:
    """Updates the gauge of messages of ``stream`` after sequence ``done()``, which wait for a decision, until
    cancelled."""
    for _ in until_cancelled():
        with contextlib.suppress(nats.errors.Error):
            last = (await ctx.bus.js.stream_info(stream)).state.last_seq
            ctx.metrics.rewarder_lag.set(max(0, last - done()))
        await ctx.clock.sleep(LAG_SECONDS)
