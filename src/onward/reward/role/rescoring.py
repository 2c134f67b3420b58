"""``onward rescore``: an operator sends a request, and the active rewarder scores stored trajectories again.

The request is stored in bucket ``rl_control``, its progress in ``rl_rewarder``.

Invariants: only the active rewarder works on a request, so windows have one writer. A portion is stored and
published before the cursor moves. Work that a crash repeats is recognised by its id, which comes from the
run.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from onward.bus import Bus
from onward.bus.cancellation import until_cancelled
from onward.clock import Clock, utc_text
from onward.context import Context
from onward.errors import BusError, ConflictError, NotFoundError, WarehouseError
from onward.ids import new_id
from onward.reward.role.superseding import Superseding, Task
from onward.reward.scoring.rows import Cause
from onward.telemetry import logs
from onward.telemetry.crashpoints import crashpoint
from onward.warehouse import reward_queries

REQUESTS, PROGRESS, KEY = "rl_control", "rl_rewarder", "rescore"
POLL_SECONDS = 1.0
PAUSE_SECONDS = 0.02
"""Seconds between portions, since new trajectories have priority."""
PORTION = 50
BEGINNING = "1970-01-01T00:00:00.000Z"
_log = logs.get("rewarder")


@dataclass(frozen=True)
class Request:
    run_id: str
    since: str
    """ISO 8601; selects trajectories that began then or later."""
    component: str | None
    """Component computed anew, while the others retain their raw scores; None: all are computed."""
    limit: int | None
    """Maximum number of trajectories, the oldest first."""
    dry_run: bool
    requested_at: str
    stop: bool = False

    def asks_the_same(self, other: Request) -> bool:
        """Checks whether ``other`` is the same work: it is then continued and not begun again."""
        what = ("component", "limit", "dry_run")
        return all(getattr(self, name) == getattr(other, name) for name in what)

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        return cls(**json.loads(data))


@dataclass(frozen=True)
class Progress:
    run_id: str
    total: int
    seen: int = 0
    start_ts: str = BEGINNING
    trajectory_id: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    """``changed``, ``unchanged``, ``unscored``, ``waiting``, ``gone``."""
    finished: bool = False
    stopped: bool = False

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        return cls(**json.loads(data))


async def ask(
    bus: Bus,
    clock: Clock,
    *,
    since: datetime | None = None,
    component: str | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> tuple[Request, bool]:
    """Returns the run that does this work, and whether it was already under way. Raises ConflictError while
    another run is under way, and BusError."""
    bucket = bus.bucket(REQUESTS)
    entry = await bucket.get(KEY)
    now = utc_text(clock.now())
    wanted = Request(new_id(), utc_text(since) if since else BEGINNING, component, limit, dry_run, now)
    if entry is not None:
        there = Request.load(entry.value)
        done = await progress(bus, there.run_id)
        if not there.stop and (done is None or not done.finished):
            if wanted.asks_the_same(there):
                return there, True
            raise ConflictError(
                f"Another run of 'onward rescore' is under way ({there.run_id}): wait for it, or end it with "
                "'onward rescore --stop'."
            )
    try:
        await bucket.update(KEY, wanted.dump(), entry.revision if entry else 0)
    except ConflictError:
        raise ConflictError("Somebody else asked for a run just now: try again.") from None
    return wanted, False


async def stop(bus: Bus) -> Request:
    """Stops the run that is under way. Raises NotFoundError when there is none."""
    bucket = bus.bucket(REQUESTS)
    entry = await bucket.get(KEY)
    there = Request.load(entry.value) if entry else None
    done = await progress(bus, there.run_id) if there else None
    if entry is None or there is None or there.stop or (done is not None and done.finished):
        raise NotFoundError("No run of 'onward rescore' is under way: there is nothing to stop.")
    await bucket.update(KEY, replace(there, stop=True).dump(), entry.revision)
    return there


async def progress(bus: Bus, run_id: str) -> Progress | None:
    """Returns the progress of a run; None before it began, or when a later one did."""
    entry = await bus.bucket(PROGRESS).get(KEY)
    found = Progress.load(entry.value) if entry else None
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
        entry = await self._ctx.bus.bucket(REQUESTS).get(KEY)
        if entry is None:
            return
        try:
            request = Request.load(entry.value)
        except (ValueError, TypeError):
            _log.warning("a request to score again is not readable", revision=entry.revision)
            return
        bucket = self._ctx.bus.bucket(PROGRESS)
        kept = await bucket.get(KEY)
        done, revision = (Progress.load(kept.value), kept.revision) if kept else (None, 0)
        if done is not None and done.run_id == request.run_id and done.finished:
            return
        if done is None or done.run_id != request.run_id:
            done = await self._begin(request)
            revision = await bucket.update(KEY, done.dump(), revision)
        while not done.finished:
            done = await self._portion(request, done)
            revision = await bucket.update(KEY, done.dump(), revision)
            crashpoint("rescore.kept")
            if await self._is_stopped(request.run_id):
                done = replace(done, finished=True, stopped=True)
                await bucket.update(KEY, done.dump(), revision)
            await self._ctx.clock.sleep(PAUSE_SECONDS)
        _log.info("scored again", run=request.run_id, seen=done.seen, stopped=done.stopped, **done.counts)

    async def _begin(self, request: Request) -> Progress:
        total = await reward_queries.count_to_score_again(
            self._ctx.warehouse, request.since, request.requested_at
        )
        return Progress(request.run_id, total if request.limit is None else min(total, request.limit))

    async def _portion(self, request: Request, done: Progress) -> Progress:
        if request.stop or (request.component is not None and request.component not in self._names):
            return replace(done, finished=True, stopped=True)
        left = PORTION if request.limit is None else min(PORTION, request.limit - done.seen)
        after = (done.start_ts, done.trajectory_id)
        found: list[dict[str, Any]] = []
        if left > 0:
            found = await reward_queries.to_score_again(
                self._ctx.warehouse, request.since, request.requested_at, after, left
            )
        if not found:
            return replace(done, finished=True)
        only = None if request.component is None else frozenset({request.component})
        cause = Cause("rescore", request.run_id, only)
        at = datetime.fromisoformat(request.requested_at)
        tasks = [Task(row["trajectory_id"], cause, at) for row in found]
        tally = Counter(done.counts) + await self._superseding.work(tasks, dry=request.dry_run)
        last = found[-1]
        return replace(
            done,
            seen=done.seen + len(found),
            start_ts=last["start_ts"],
            trajectory_id=last["trajectory_id"],
            counts=dict(tally),
        )

    async def _is_stopped(self, run_id: str) -> bool:
        entry = await self._ctx.bus.bucket(REQUESTS).get(KEY)
        if entry is None:
            return True
        request = Request.load(entry.value)
        return request.run_id != run_id or request.stop
