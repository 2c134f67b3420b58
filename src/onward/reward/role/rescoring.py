"""``onward rescore``: an operator sends a request, and the active rewarder scores stored trajectories again.

The request is stored in bucket ``rl_control``, its progress in ``rl_rewarder``.

Invariants: only the active rewarder works on a request, so windows have one writer. A portion is stored and
published before the cursor moves. Work that a crash repeats is recognised by its id, which comes from the
run.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

from onward.bus import Bus, read_document
from onward.bus.cancellation import until_cancelled
from onward.clock import Clock, utc_text
from onward.context import Context
from onward.contracts.buckets import BEGINNING, RescoreProgress, RescoreRequest
from onward.errors import BusError, ConflictError, NotFoundError, WarehouseError
from onward.ids import new_id
from onward.reward.role.superseding import Superseding, Task
from onward.reward.scoring.rows import Cause
from onward.telemetry import logs
from onward.telemetry.crashpoints import crashpoint
from onward.warehouse import reward_queries

POLL_SECONDS = 1.0
PAUSE_SECONDS = 0.02
"""Seconds between portions, since new trajectories have priority."""
PORTION = 50
_log = logs.get("rewarder")


def _same_work(one: RescoreRequest, other: RescoreRequest) -> bool:
    """Returns whether two requests ask for the same: then it is continued and not begun again."""
    return all(getattr(one, name) == getattr(other, name) for name in ("component", "limit", "dry_run"))


async def ask(
    bus: Bus,
    clock: Clock,
    *,
    since: datetime | None = None,
    component: str | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> tuple[RescoreRequest, bool]:
    """Returns the run that does this work, and whether it was already under way. Raises ConflictError while
    another run is under way, and BusError."""
    bucket = bus.bucket(RescoreRequest.BUCKET)
    entry = await bucket.get(RescoreRequest.KEY)
    wanted = RescoreRequest(
        run_id=new_id(),
        since=utc_text(since) if since else BEGINNING,
        component=component,
        limit=limit,
        dry_run=dry_run,
        requested_at=utc_text(clock.now()),
    )
    if entry is not None:
        there = RescoreRequest.load(entry.value)
        done = await progress(bus, there.run_id)
        if not there.stop and (done is None or not done.finished):
            if _same_work(wanted, there):
                return there, True
            raise ConflictError(
                f"Another run of 'onward rescore' is under way ({there.run_id}): wait for it, or end it with "
                "'onward rescore --stop'."
            )
    try:
        await bucket.update(RescoreRequest.KEY, wanted.dump(), entry.revision if entry else 0)
    except ConflictError:
        raise ConflictError("Somebody else asked for a run just now: try again.") from None
    return wanted, False


async def stop(bus: Bus) -> RescoreRequest:
    """Stops the run that is under way. Raises NotFoundError when there is none."""
    bucket = bus.bucket(RescoreRequest.BUCKET)
    entry = await bucket.get(RescoreRequest.KEY)
    there = RescoreRequest.load(entry.value) if entry else None
    done = await progress(bus, there.run_id) if there else None
    if entry is None or there is None or there.stop or (done is not None and done.finished):
        raise NotFoundError("No run of 'onward rescore' is under way: there is nothing to stop.")
    await bucket.update(RescoreRequest.KEY, there.model_copy(update={"stop": True}).dump(), entry.revision)
    return there


async def progress(bus: Bus, run_id: str) -> RescoreProgress | None:
    """Returns the progress of a run; None before it began, or when a later one did."""
    found = await read_document(bus, RescoreProgress)
    return found if found is not None and found.run_id == run_id else None


class Rescoring:
    """Works on requests in the active rewarder."""

    def __init__(self, ctx: Context, superseding: Superseding, names: frozenset[str]) -> None:
        """``names``: the known components."""
        self._ctx, self._superseding, self._names = ctx, superseding, names

    async def run(self) -> None:
        """Runs until cancelled. Raises ConflictError when another rewarder is active too."""
        for _ in until_cancelled():
            try:
                await self.look()
            except ConflictError:
                raise
            except (BusError, WarehouseError) as error:
                _log.warning("scoring again waits", cause=str(error))
            await self._ctx.clock.sleep(POLL_SECONDS)

    async def look(self) -> None:
        """Works on the newest request until it is done; returns at once if it is done already."""
        entry = await self._ctx.bus.bucket(RescoreRequest.BUCKET).get(RescoreRequest.KEY)
        if entry is None:
            return
        try:
            request = RescoreRequest.load(entry.value)
        except ValueError:
            _log.warning("a request to score again is not readable", revision=entry.revision)
            return
        bucket, key = self._ctx.bus.bucket(RescoreProgress.BUCKET), RescoreProgress.KEY
        kept = await bucket.get(key)
        done, revision = (RescoreProgress.load(kept.value), kept.revision) if kept else (None, 0)
        if done is not None and done.run_id == request.run_id and done.finished:
            return
        if done is None or done.run_id != request.run_id:
            done = await self._begin(request)
            revision = await bucket.update(key, done.dump(), revision)
        while not done.finished:
            done = await self._portion(request, done)
            revision = await bucket.update(key, done.dump(), revision)
            crashpoint("rescore.kept")
            if await self._is_stopped(request.run_id):
                done = done.model_copy(update={"finished": True, "stopped": True})
                await bucket.update(key, done.dump(), revision)
            await self._ctx.clock.sleep(PAUSE_SECONDS)
        _log.info("scored again", run=request.run_id, seen=done.seen, stopped=done.stopped, **done.counts)

    async def _begin(self, request: RescoreRequest) -> RescoreProgress:
        total = await reward_queries.count_to_score_again(
            self._ctx.warehouse, request.since, request.requested_at
        )
        if request.limit is not None:
            total = min(total, request.limit)
        return RescoreProgress(run_id=request.run_id, total=total)

    async def _portion(self, request: RescoreRequest, done: RescoreProgress) -> RescoreProgress:
        if request.stop or (request.component is not None and request.component not in self._names):
            return done.model_copy(update={"finished": True, "stopped": True})
        left = PORTION if request.limit is None else min(PORTION, request.limit - done.seen)
        after = (done.start_ts, done.trajectory_id)
        found: list[dict[str, Any]] = []
        if left > 0:
            found = await reward_queries.to_score_again(
                self._ctx.warehouse, request.since, request.requested_at, after, left
            )
        if not found:
            return done.model_copy(update={"finished": True})
        only = None if request.component is None else frozenset({request.component})
        cause = Cause("rescore", request.run_id, only)
        at = datetime.fromisoformat(request.requested_at)
        tasks = [Task(row["trajectory_id"], cause, at) for row in found]
        tally = Counter(done.counts) + await self._superseding.work(tasks, dry=request.dry_run)
        last = found[-1]
        return done.model_copy(
            update={
                "seen": done.seen + len(found),
                "start_ts": last["start_ts"],
                "trajectory_id": last["trajectory_id"],
                "counts": dict(tally),
            }
        )

    async def _is_stopped(self, run_id: str) -> bool:
        entry = await self._ctx.bus.bucket(RescoreRequest.BUCKET).get(RescoreRequest.KEY)
        if entry is None:
            return True
        request = RescoreRequest.load(entry.value)
        return request.run_id != run_id or request.stop
