"""Scores stored trajectories again: after late feedback, or at an operator's request (``onward rescore``).

``Rescorer`` scores, stores and publishes. An operator's request is stored in bucket ``rl_control``, its
progress in ``rl_rewarder``; ``RescoreRuns`` works on it in the active rewarder.

Invariants: a superseding reward is normalised against the windows as they are and never enters them, since
each trajectory counts once. Its id comes from its cause, so a reward stored under that id is published again
and not computed again. Only the active rewarder works on a request, so windows have one writer. A portion is
stored and published before the cursor moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from onward.bus import Bus, read_document, read_stored
from onward.bus.cancellation import until_cancelled
from onward.clock import Clock, read_time, utc_text
from onward.context import Context
from onward.contracts import Trajectory
from onward.contracts.buckets import BEGINNING, RescoreProgress, RescoreRequest
from onward.errors import BusError, ConflictError, NotFoundError, WarehouseError
from onward.ids import new_id
from onward.reward.components import Component, Unscored
from onward.reward.role import publishing
from onward.reward.role.analysis import Analysis
from onward.reward.scoring import rows
from onward.reward.scoring.rows import Candidate, Cause
from onward.reward.scoring.score import reward_id
from onward.reward.scoring.state import State
from onward.reward.stored_feedback import StoredFeedback
from onward.telemetry import logs
from onward.telemetry.crashpoints import crashpoint
from onward.warehouse import queries, reward_queries

PORTION = 50
"""Trajectories whose rows are in memory at once, and for which the first scoring waits."""
CODE, RUBRIC = "code_quality", "rubric"
POLL_SECONDS = 1.0
PAUSE_SECONDS = 0.02
"""Seconds between portions, since new trajectories have priority."""
_log = logs.get("rewarder")


@dataclass(frozen=True)
class Task:
    """One trajectory to be scored again for one cause."""

    trajectory_id: str
    cause: Cause
    timestamp: datetime
    """Time of the reward; a repeat must pass the same one."""
    until: datetime | None = None
    """Feedback counts if it had arrived by then, or if the replaced reward took it into account; None: all
    that is stored."""


class Rescorer:
    """Works portion by portion, each inside ``exclusive``: no first reward is made or stored meanwhile.
    ``fence`` raises when it must not write."""

    def __init__(
        self,
        ctx: Context,
        exclusive: Callable[[], AbstractAsyncContextManager[None]],
        state: Callable[[], State],
        components: Sequence[Component],
        analysis: Analysis,
        feedback: StoredFeedback,
        fence: Callable[[], None],
    ) -> None:
        self._ctx, self._exclusive, self._state = ctx, exclusive, state
        self._components, self._analysis, self._fence = components, analysis, fence
        self._feedback = feedback

    async def rescore(
        self, tasks: Sequence[Task], *, dry: bool = False, waiting: set[str] | None = None
    ) -> Counter[str]:
        """Scores, stores and publishes, in the given order. Counts ``changed``, ``unchanged``, ``unscored``,
        ``waiting`` (for the first scoring, which includes all feedback that it finds) and ``gone``. With
        ``dry`` nothing is written. The causes that wait are added to ``waiting``. Raises BusError or
        WarehouseError; work done by then is recognised."""
        tally: Counter[str] = Counter()
        for start in range(0, len(tasks), PORTION):
            tally += await self._portion(tasks[start : start + PORTION], dry, waiting)
        return tally

    async def _portion(self, tasks: Sequence[Task], dry: bool, waiting: set[str] | None) -> Counter[str]:
        warehouse = self._ctx.warehouse
        found = await queries.trajectories_by_id(warehouse, {task.trajectory_id for task in tasks})
        candidates = await self._candidates(found, tasks)
        async with self._exclusive():
            newest = await queries.reward_for(warehouse, candidates)
            stored = await reward_queries.rewards_by_id(
                warehouse, {_id(task): task.trajectory_id for task in tasks}
            )
            feedback = await self._feedback.for_trajectories(item.row for item in candidates.values())
            made, again, tally = self._score(tasks, candidates, newest, stored, feedback, waiting)
            if not dry and (made or again):
                self._fence()
                await publishing.store(self._ctx, made)
                crashpoint("superseding.stored")
                await publishing.publish(self._ctx, [*again, *made])
                crashpoint("superseding.published")
        if not dry:
            for task in tasks:
                if any(row["reward_id"] == _id(task) for row in made):
                    self._ctx.metrics.superseded.labels(cause=task.cause.kind).inc()
        return tally

    async def _candidates(
        self, found: Mapping[str, dict[str, Any]], tasks: Iterable[Task]
    ) -> dict[str, Candidate]:
        candidates = {name: Candidate(row, rows.decode_trajectory(row)) for name, row in found.items()}

        def needing(component: str) -> dict[str, Trajectory]:
            needs = {t.trajectory_id for t in tasks if t.cause.only is None or component in t.cause.only}
            return {
                name: item.trajectory
                for name, item in candidates.items()
                if name in needs and isinstance(item.trajectory, Trajectory)
            }

        reports = await self._analysis.reports(needing(CODE))
        rubrics = await self._analysis.rubrics(needing(RUBRIC))
        return {
            name: replace(item, code=reports.get(name), rubric=rubrics.get(name))
            for name, item in candidates.items()
        }

    def _score(
        self,
        tasks: Sequence[Task],
        candidates: Mapping[str, Candidate],
        newest: dict[str, dict[str, Any]],
        stored: Mapping[str, dict[str, Any]],
        feedback: Mapping[str, Sequence[rows.Row]],
        waiting: set[str] | None,
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Counter[str]]:
        """Returns rows to store and publish, rows to publish again, and counts."""
        state, settings = self._state(), self._ctx.settings.reward
        made: list[dict[str, Any]] = []
        again: list[dict[str, Any]] = []
        tally: Counter[str] = Counter()
        for task in tasks:
            name = task.trajectory_id
            candidate, old = candidates.get(name), newest.get(name)
            if candidate is None:
                tally["gone"] += 1
                continue
            if (repeat := stored.get(_id(task))) is not None:
                again.append(repeat)
                tally["changed"] += 1
                continue
            if old is None and candidate.row["stream_seq"] > state.stream_seq:
                tally["waiting"] += 1
                if waiting is not None:
                    waiting.add(task.cause.cause_id)
                continue
            before = rows.included_feedback(old) if old is not None else frozenset[str]()
            if task.cause.cause_id in before:
                tally["unchanged"] += 1
                continue
            answer = rows.superseding_reward(
                candidate,
                old,
                task.cause,
                state,
                settings,
                self._components,
                task.timestamp,
                StoredFeedback.select(feedback.get(name, ()), task.until, before),
            )
            if isinstance(answer, Unscored):
                tally["unscored"] += 1
            elif answer is None:
                tally["unchanged"] += 1
            else:
                made.append(answer)
                newest[name] = answer
                tally["changed"] += 1
        return made, again, tally


def _id(task: Task) -> str:
    return reward_id(task.trajectory_id, task.cause.cause_id)


def _is_same_work(one: RescoreRequest, other: RescoreRequest) -> bool:
    """Checks whether two requests are the same work: it is then continued and not begun again."""
    return all(getattr(one, name) == getattr(other, name) for name in ("component", "limit", "dry_run"))


async def request_run(
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
    stored = await read_stored(bucket, RescoreRequest)
    previous = stored.document
    request = RescoreRequest(
        run_id=new_id(),
        since=utc_text(since) if since else BEGINNING,
        component=component,
        limit=limit,
        dry_run=dry_run,
        requested_at=utc_text(clock.now()),
    )
    if previous is not None:
        done = await read_progress(bus, previous.run_id)
        if not previous.stop and (done is None or not done.finished):
            if _is_same_work(request, previous):
                return previous, True
            raise ConflictError(
                f"Another run of 'onward rescore' is under way ({previous.run_id}): wait for it, or end it "
                "with 'onward rescore --stop'."
            )
    try:
        await bucket.update(RescoreRequest.KEY, request.dump(), stored.revision)
    except ConflictError:
        raise ConflictError("Somebody else asked for a run just now: try again.") from None
    return request, False


async def stop_run(bus: Bus) -> RescoreRequest:
    """Stops the run that is under way. Raises NotFoundError when there is none."""
    bucket = bus.bucket(RescoreRequest.BUCKET)
    stored = await read_stored(bucket, RescoreRequest)
    previous = stored.document
    done = await read_progress(bus, previous.run_id) if previous else None
    if previous is None or previous.stop or (done is not None and done.finished):
        raise NotFoundError("No run of 'onward rescore' is under way: there is nothing to stop.")
    stopped = previous.model_copy(update={"stop": True})
    await bucket.update(RescoreRequest.KEY, stopped.dump(), stored.revision)
    return previous


async def read_progress(bus: Bus, run_id: str) -> RescoreProgress | None:
    """Returns the progress of a run; None before it began, or when a later one did."""
    found = await read_document(bus, RescoreProgress)
    return found if found is not None and found.run_id == run_id else None


class RescoreRuns:
    """Works on operators' requests in the active rewarder."""

    def __init__(self, ctx: Context, rescorer: Rescorer, names: frozenset[str]) -> None:
        """``names``: the known components."""
        self._ctx, self._rescorer, self._names = ctx, rescorer, names

    async def run(self) -> None:
        """Runs until cancelled. Raises ConflictError when another rewarder is active too."""
        for _ in until_cancelled():
            try:
                await self.run_newest()
            except ConflictError:
                raise
            except (BusError, WarehouseError) as error:
                _log.warning("scoring again waits", cause=str(error))
            await self._ctx.clock.sleep(POLL_SECONDS)

    async def run_newest(self) -> None:
        """Works on the newest request until it is done; returns at once if it is done already."""
        request = await read_document(self._ctx.bus, RescoreRequest)
        if request is None:
            return
        bucket, key = self._ctx.bus.bucket(RescoreProgress.BUCKET), RescoreProgress.KEY
        stored = await read_stored(bucket, RescoreProgress)
        done, revision = stored.document, stored.revision
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
        at = read_time(request.requested_at)
        tasks = [Task(row["trajectory_id"], cause, at) for row in found]
        tally = Counter(done.counts) + await self._rescorer.rescore(tasks, dry=request.dry_run)
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
        request = await read_document(self._ctx.bus, RescoreRequest)
        return request is None or request.run_id != run_id or request.stop
