"""Keeps the test for degradation of the current policy: reads new sessions, stores baseline and evidence."""

from __future__ import annotations

import json
from datetime import timedelta

from onward.bus import Bucket, Bus, read_all, read_stored
from onward.clock import utc_text
from onward.config import Settings
from onward.context import Context
from onward.contracts.buckets import PolicyWatch
from onward.coordinator import degradation
from onward.ids import derived_id
from onward.telemetry import logs
from onward.warehouse import queries

log = logs.get("coordinator")

EVERY_SECONDS = 60.0
"""Seconds between two looks at the warehouse."""
SETTLE_SECONDS = 600.0
"""Age of a session's first reward at which it counts, so that quick feedback is in it. What comes later never
counts: the sessions of a baseline are often days old, and those of the test would lack such feedback."""
BATCH = 5000


def watch_id(settings: Settings, digest: str | None) -> str:
    """Returns the id of a policy's watch. Other reward weights, another score for work without feedback or
    another drop make another one, since the number that is compared changes its meaning."""
    weights = json.dumps([settings.reward.weights(), settings.reward.feedback_default], sort_keys=True)
    return derived_id("watch", digest or "", weights, str(settings.training.degradation_drop))


async def stored_watch(bus: Bus, settings: Settings, digest: str | None) -> PolicyWatch | None:
    """Returns the watch of a policy as it is stored."""
    bucket = bus.bucket(PolicyWatch.BUCKET)
    return (await read_stored(bucket, PolicyWatch, watch_id(settings, digest))).document


class PolicyWatcher:
    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._looked: tuple[str, float] | None = None
        self._shown: PolicyWatch | None = None

    async def is_degraded(self, digest: str | None, model_id: str) -> bool:
        """Returns whether degradation of this policy is shown. Looks at new sessions at most every
        ``EVERY_SECONDS``. Raises ConflictError if another coordinator did so at the same time."""
        now, name = self.ctx.clock.monotonic(), watch_id(self.ctx.settings, digest)
        if self._looked is None or self._looked[0] != name or now - self._looked[1] >= EVERY_SECONDS:
            after = await self._look(name, digest, model_id)
            before, self._shown = self._shown, after
            if before is not None and before.watch_id != name and before.degraded_since:
                await self._resolve(before, f"{before.model_id} is not tested any more.")
            self._looked = (name, now)
        return self._shown is not None and self._shown.degraded_since is not None

    async def _look(self, name: str, digest: str | None, model_id: str) -> PolicyWatch:
        bucket = self.ctx.bus.bucket(PolicyWatch.BUCKET)
        stored = await read_stored(bucket, PolicyWatch, name)
        before = stored.document
        watch = before or PolicyWatch(
            watch_id=name, model_digest=digest, model_id=model_id, sequence=await self._first(bucket, digest)
        )
        if watch.sequence > await queries.latest_seq(self.ctx.warehouse):
            watch = watch.model_copy(update={"sequence": 0})  # a recreated stream counts from 1
        training, now = self.ctx.settings.training, self.ctx.clock.now()
        rows = await queries.session_values(
            self.ctx.warehouse,
            digest or "",
            watch.sequence,
            now - timedelta(seconds=SETTLE_SECONDS),
            SETTLE_SECONDS,
            BATCH,
        )
        step = degradation.observe if before or watch.sequence else degradation.begun
        after = step(
            watch,
            [(row["seq"], row["value"]) for row in rows],
            alpha=training.degradation_alpha,
            drop=training.degradation_drop,
            at=utc_text(now),
        )
        if after != before:
            if stored.revision:
                await bucket.update(stored.key, after.dump(), stored.revision)
            else:
                await bucket.create(stored.key, after.dump())
        await self._report(watch, after)
        return after

    async def _first(self, bucket: Bucket, digest: str | None) -> int:
        """Returns the sequence after which the sessions of a new watch begin. A policy that has a watch with
        other weights begins with new sessions, since the older ones were scored with those weights."""
        stored = [entry.document for entry in await read_all(bucket, PolicyWatch)]
        if any(watch is not None and watch.model_digest == digest for watch in stored):
            return await queries.latest_seq(self.ctx.warehouse)
        return 0

    async def _report(self, before: PolicyWatch, after: PolicyWatch) -> None:
        """Reports a frozen baseline, and raises or resolves the alert. One that lasts is raised again after a
        restart: the process may have ended between the stored state and the alert."""
        if before.baseline is None and after.baseline is not None:
            log.info(
                "baseline frozen",
                model_id=after.model_id,
                baseline=round(after.baseline, 4),
                sessions=after.collected,
            )
        if after.degraded_since and (self._shown is None or not before.degraded_since):
            await self.ctx.alerts.raise_(
                "policy_degraded", sentence(after), "critical", model_id=after.model_id
            )
        elif before.degraded_since and not after.degraded_since:
            await self._resolve(after, sentence(after))

    async def _resolve(self, watch: PolicyWatch, message: str) -> None:
        await self.ctx.alerts.resolve("policy_degraded", message, model_id=watch.model_id)


def sentence(watch: PolicyWatch) -> str:
    """Describes the test in numbers."""
    mean = degradation.trailing_mean(watch)
    if watch.baseline is None:
        return f"The baseline of {watch.model_id} is not frozen yet: {watch.collected} sessions so far."
    if mean is None:
        return f"The baseline of {watch.model_id} is {watch.baseline:.2f}; no session since has a reward yet."
    return (
        f"{watch.model_id} had a mean raw total of {mean:.2f} in its last {len(watch.trailing)} sessions, "
        f"baseline {watch.baseline:.2f}, E {degradation.e_number_of(watch):.2g}."
    )
