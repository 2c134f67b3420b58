"""Retention of checkpoints: those of jobs that ended long ago are deleted, unless something may load them.

The releaser does it, which alone changes models and releases, once a day while it holds its lease.

Invariants: a checkpoint is kept if anything about it is unknown: a record that cannot be read, a job without
a record. The manifest is deleted first, since its presence means that all other files are stored. A job's
COMMIT object stays, so no later attempt can become its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from onward.bus import Stored, read_all, read_stored
from onward.bus.cancellation import until_cancelled
from onward.bus.leases import Lease
from onward.clock import read_time
from onward.context import Context
from onward.contracts.buckets import ENDED_JOBS, DesiredRoutes, JobEntry, Pin, Record
from onward.errors import BusError, ObjectError
from onward.release.record import Model, ReleaseRecord, release_id
from onward.telemetry import audit, logs
from onward.training import checkpoints

log = logs.get("retention")

R = TypeVar("R", bound=Record)
FOLDER = "checkpoints"
FIRST_SECONDS = 60.0
"""Seconds from the start of a lease to its first sweep."""
SWEEP_SECONDS = 86_400.0
RETRY_SECONDS = 600.0
"""Pause after a sweep that the bus or the object store interrupted."""
KEPT_STATES = frozenset({"added", "candidate", "current", "previous"})
"""States of models that may be loaded at any time; ``added`` waits for its release."""


def held(
    models: Iterable[Model], releases: Iterable[ReleaseRecord], desired: DesiredRoutes | None, pin: Pin | None
) -> set[str]:
    """Returns the prefixes that stay whatever their age: of current and previous, of what an open release
    may serve or restore, of what the routes name, and of a pinned model."""
    digests = {arm.adapter_digest for arm in desired.arms} if desired else set()
    if desired and desired.previous:
        digests.add(desired.previous.adapter_digest)
    pinned = pin.model_id if pin else None
    kept = [
        model
        for model in models
        if model.state in KEPT_STATES or model.adapter_digest in digests or model.model_id == pinned
    ]
    for record in releases:
        if not (record.closed and record.settled):
            kept += [record.candidate, record.current]
    return {model.object_prefix for model in kept if model.object_prefix}


def expired(
    stored: Iterable[str],
    jobs: Iterable[JobEntry],
    released: set[str],
    kept: set[str],
    now: datetime,
    days: float,
) -> list[str]:
    """Returns those of the ``stored`` prefixes that are to be deleted.

    ``released``: ids of all releases. A result that no release has taken up yet stays. The age is the time
    since the job ended.
    """
    ended = {job.job_id: job for job in jobs if job.job_id is not None and job.state in ENDED_JOBS}
    found = []
    for prefix in sorted(set(stored) - kept):
        _, job_id, epoch = prefix.split("/")
        job = ended.get(job_id)
        if job is None or job.updated_at is None:
            continue
        is_result = job.commit is not None and str(job.commit.epoch) == epoch
        if is_result and release_id(job_id, int(epoch)) not in released:
            continue
        if now - read_time(job.updated_at) > timedelta(days=days):
            found.append(prefix)
    return found


async def sweep(ctx: Context) -> list[str]:
    """Deletes what is expired and returns its prefixes. Raises BusError or ObjectError."""
    days = ctx.settings.training.checkpoint_days
    keys = await ctx.objects.list(FOLDER)
    stored = {"/".join(parts[:3]) for key in keys if len(parts := key.split("/")) > 3 and parts[2].isdigit()}
    kept = await _held_now(ctx)
    releases = _documents(await read_all(ctx.bus.bucket(ReleaseRecord.BUCKET), ReleaseRecord))
    if kept is None or releases is None:
        log.warning("no checkpoint is deleted: a model, a release, the routes or the pin cannot be read")
        return []
    jobs = [entry.document for entry in await read_all(ctx.bus.bucket(JobEntry.BUCKET), JobEntry)]
    found = expired(
        stored,
        [job for job in jobs if job is not None],
        {record.release_id for record in releases},
        kept,
        ctx.clock.now(),
        days,
    )
    if found:
        await audit.record(ctx.bus, ctx.clock, "checkpoints.expired", prefixes=found, days=days)
    gone = []
    for prefix in found:
        kept = await _held_now(ctx)  # an operator may have gone back to a model meanwhile
        if kept is None or prefix in kept:
            continue
        await ctx.objects.delete(f"{prefix}/{checkpoints.MANIFEST}")
        for key in await ctx.objects.list(prefix):
            await ctx.objects.delete(key)
        gone.append(prefix)
        log.info("checkpoint deleted", prefix=prefix, days=days)
    return gone


async def _held_now(ctx: Context) -> set[str] | None:
    """Returns ``held`` of the buckets as they are; None if a part of them cannot be read."""
    bucket = ctx.bus.bucket
    models = _documents(await read_all(bucket(Model.BUCKET), Model))
    releases = _documents(await read_all(bucket(ReleaseRecord.BUCKET), ReleaseRecord))
    desired = await read_stored(bucket(DesiredRoutes.BUCKET), DesiredRoutes)
    pin = await read_stored(bucket(Pin.BUCKET), Pin)
    if models is None or releases is None or not (desired.readable and pin.readable):
        return None
    return held(models, releases, desired.document, pin.document)


def _documents(entries: Sequence[Stored[R]]) -> list[R] | None:
    """Returns the documents; None if a value cannot be read now, even with an older one in its place."""
    found = [entry.document for entry in entries if entry.document is not None and entry.readable]
    return found if len(found) == len(entries) else None


async def work(ctx: Context, lease: Lease) -> None:
    """Sweeps once a day while ``lease`` is held, until cancelled. ``training.checkpoint_days = 0``: never."""
    pause = FIRST_SECONDS
    for _ in until_cancelled():
        await ctx.clock.sleep(pause)
        pause = SWEEP_SECONDS
        try:
            if lease.held and ctx.settings.training.checkpoint_days:
                await sweep(ctx)
        except (BusError, ObjectError) as error:
            log.warning("old checkpoints are deleted later", cause=str(error))
            pause = RETRY_SECONDS
