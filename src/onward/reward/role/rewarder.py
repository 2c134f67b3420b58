"""The rewarder role: every stored trajectory gets a first reward; feedback and operators lead to more.

A message on the trajectory stream is only the trigger. The rewarder scores the row that the collector stored
(redacted, enriched), once the collector has finished with that message. A first reward is published and then
stored (``publishing.py``). A restart continues from the checkpoint, and uses rewards stored or
published by then as they are.

Invariants: one active rewarder alone moves the state, in stream order and only by first rewards. Its
checkpoint is compare-and-set, at most a second later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import nats.errors

from onward.bus import Ack, Disposition, Lease, Message, Retry, consume, read_stored
from onward.bus.cancellation import cancellations, honour_cancellation
from onward.context import Context
from onward.contracts import Trajectory
from onward.contracts.buckets import RewarderState
from onward.errors import BusError, ConflictError
from onward.reward.code.analyser import CodeAnalyser
from onward.reward.components import Unscored, components_of
from onward.reward.role import feedback, publishing
from onward.reward.role.analysis import Analysis, code_analyser
from onward.reward.role.feedback import FeedbackReader
from onward.reward.role.monitoring import RewardMetrics, UnscoredAlert, watch_lag
from onward.reward.role.progress import Checkpoint, CollectorProgress
from onward.reward.role.publishing import Batch, StoreQueue, UnscoredItem, published_first_rewards
from onward.reward.role.rescoring import Rescorer, RescoreRuns
from onward.reward.scoring import rows
from onward.reward.scoring.rows import Candidate
from onward.reward.scoring.score import reward_id
from onward.reward.scoring.state import State
from onward.reward.stored_feedback import StoredFeedback
from onward.roles import lead
from onward.telemetry import logs
from onward.telemetry.crashpoints import crashpoint
from onward.warehouse import queries, reward_queries

STREAM = "RL_TRAJECTORIES"
DURABLE = "rewarder"
LEASE_SECONDS = 5.0
STOP_SECONDS = 20.0
"""Seconds that a stopping rewarder waits until published rewards are stored."""
_RECENT = 10_000
_YIELD_EVERY = 8
"""Trajectories scored in a row before other roles of this process run."""

_log = logs.get("rewarder")


async def run(ctx: Context) -> None:
    """Scores until cancelled. While another rewarder is active this one waits to take over."""
    await lead(ctx, DURABLE, LEASE_SECONDS, lambda lease: _active(ctx, lease))


async def _active(ctx: Context, lease: Lease) -> None:
    """Scores as the one active rewarder. Raises ConflictError when it is no longer the active one."""
    asked = cancellations()
    analyser = code_analyser(ctx.settings.reward)
    rewarder = await Rewarder.load(ctx, may_write=lambda: lease.held, analyser=analyser)
    await rewarder.start()
    try:
        honour_cancellation(asked)
        await _serve(rewarder, ctx, lease)
    finally:
        await rewarder.stop()


async def _serve(rewarder: Rewarder, ctx: Context, lease: Lease) -> None:
    tasks = [
        asyncio.create_task(
            consume(
                ctx.bus,
                stream=STREAM,
                durable=DURABLE,
                handler=rewarder.handle,
                clock=ctx.clock,
                max_wait=0.0,
                start_sequence=rewarder.state.stream_seq + 1,
            )
        ),
        asyncio.create_task(
            consume(
                ctx.bus,
                stream=feedback.STREAM,
                durable=feedback.DURABLE,
                handler=rewarder.feedback.handle,
                batch=50,
                clock=ctx.clock,
                max_wait=0.0,
                ack_wait=5.0,
            )
        ),
        asyncio.create_task(rewarder.rescore_runs.run()),
        asyncio.create_task(rewarder.write_checkpoints()),
        asyncio.create_task(watch_lag(ctx, STREAM, lambda: rewarder.state.stream_seq)),
        asyncio.create_task(rewarder.lost.wait()),
    ]
    storing = asyncio.create_task(rewarder.store_queue.run())
    try:
        await asyncio.wait([*tasks, storing], return_when=asyncio.FIRST_COMPLETED)
    finally:
        rewarder.stopping = rewarder.feedback.stopping = True
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        emptied = asyncio.create_task(rewarder.store_queue.wait_until_empty())
        await asyncio.wait([emptied, storing], timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in (emptied, storing):
            task.cancel()
        results += await asyncio.gather(storing, return_exceptions=True)
        if lease.held:
            with contextlib.suppress(ConflictError, BusError):
                await rewarder.checkpoint.write()
    for result in results:
        if isinstance(result, Exception):
            raise result
    raise ConflictError("The lease or the rewarder's record was taken by another rewarder.")


class Rewarder:
    """The active rewarder: its state, and the checkpoint of that state."""

    def __init__(
        self,
        ctx: Context,
        state: State,
        revision: int | None,
        *,
        stored_until: int = 0,
        published: Mapping[str, bytes] | None = None,
        may_write: Callable[[], bool] = lambda: True,
        analyser: CodeAnalyser | None = None,
    ) -> None:
        """``stored_until``: up to this message of the stream, first rewards may be stored already;
        ``published``: trajectory id → first rewards that were published and may not be stored."""
        self._ctx = ctx
        self.state = state
        self.checkpoint = Checkpoint(ctx, lambda: self.state, revision)
        self._stored_until, self._may_write = stored_until, may_write
        self._published = published or {}
        self._published_state = state
        """State after everything published; ``state`` is the one after everything stored."""
        self._lock = asyncio.Lock()
        self._components = components_of(ctx.settings.reward)
        self._analysis = Analysis(analyser, ctx.rubrics)
        self._collector = CollectorProgress(ctx.bus, STREAM, ctx.clock)
        self._stored_feedback = StoredFeedback(ctx.warehouse)
        self.store_queue = StoreQueue(ctx, self._fence, self._on_stored)
        rescorer = Rescorer(
            ctx, self._exclusive, lambda: self.state, self._components, self._analysis, self._stored_feedback,
            self._fence,
        )  # fmt: skip
        self.feedback = FeedbackReader(ctx, self._stored_feedback, rescorer)
        names = frozenset(component.name for component in self._components)
        self.rescore_runs = RescoreRuns(ctx, rescorer, names)
        self._alert = UnscoredAlert(ctx.alerts, ctx.metrics, ctx.clock)
        self._metrics = RewardMetrics(ctx)
        self._recent: dict[str, None] = {}
        """Ids scored since the start, newest last: saves a warehouse query for most repeats."""
        self.lost = asyncio.Event()
        self.stopping = False

    @classmethod
    async def load(
        cls,
        ctx: Context,
        *,
        may_write: Callable[[], bool] = lambda: True,
        analyser: CodeAnalyser | None = None,
    ) -> Rewarder:
        """Loads the rewarder from its checkpoint. A stream recreated since is read from its beginning."""
        window = ctx.settings.reward.window
        stored = await read_stored(ctx.bus.bucket(RewarderState.BUCKET), RewarderState)
        state = State(window) if stored.document is None else State.load(stored.document, window)
        try:
            last = (await ctx.bus.js.stream_info(STREAM)).state.last_seq
        except nats.errors.Error as error:
            raise BusError(f"Stream {STREAM} cannot be read ({type(error).__name__}).") from None
        if last < state.stream_seq:
            _log.warning("the trajectory stream was made anew", last=last, read=state.stream_seq)
            state.stream_seq = 0
        return cls(
            ctx,
            state,
            stored.revision or None,
            stored_until=await reward_queries.last_scored(ctx.warehouse),
            published=await published_first_rewards(ctx.bus) if last > state.stream_seq else {},
            may_write=may_write,
            analyser=analyser,
        )

    async def start(self) -> None:
        await self._stored_feedback.load()
        await self._collector.start()
        await self._analysis.start()

    async def stop(self) -> None:
        await self._collector.stop()
        await self._analysis.stop()

    async def handle(self, messages: list[Message]) -> Sequence[Disposition]:
        """Scores and publishes in stream order, as far as the collector has come, and passes the batch to
        ``store_queue``. The acknowledgement guarantees nothing: a restart continues from the checkpoint.

        Raises BusError or WarehouseError when either is unavailable; work done by then is not repeated.
        """
        if self.stopping or self.lost.is_set():
            return [Retry(0.0)] * len(messages)
        new = sorted(
            (m for m in messages if m.sequence > self._published_state.stream_seq), key=lambda m: m.sequence
        )
        while new:
            settled = await self._collector.wait(new, self._trajectories_stored, lambda: self.stopping)
            await self._first_rewards([m for m in new if m.sequence <= settled])
            new = [m for m in new if m.sequence > settled]
        return [Ack()] * len(messages)

    async def _trajectories_stored(self, messages: Iterable[Message]) -> bool:
        ids = {name for message in messages if (name := rows.claimed_id(message.data))}
        return ids <= (await queries.stored_identities(self._ctx.warehouse, ids)).keys()

    async def _first_rewards(self, messages: list[Message]) -> None:
        """Makes the first rewards of messages. The state changes for all of them or for none."""
        ids = {m.sequence: rows.claimed_id(m.data) for m in messages}
        found = await self._rows({name for name in ids.values() if name is not None})
        known = await self._scored_before(messages, ids, found)
        candidates = await self._candidates({n: row for n, row in found.items() if n not in known})
        async with self._lock:
            stored = await self._stored_rewards(messages, candidates)
            feedback = await self._stored_feedback.for_trajectories(item.row for item in candidates.values())
            batch = await self._score(messages, ids, candidates, known, stored, feedback)
            self._fence()
            await publishing.publish(self._ctx, [*batch.again, *batch.made])
            crashpoint("rewarder.published")
            self._published_state = batch.state
            self._observe(batch, candidates)
            self.store_queue.enqueue(batch)
        await self.store_queue.wait_for_room()

    async def _on_stored(self, batches: Sequence[Batch]) -> None:
        self.state = batches[-1].state
        for batch in batches:
            self._metrics.count_unscored(batch.missing)
        await self._alert.check(self.state.recent)

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Context in which no first reward is made, and all earlier ones are stored."""
        async with self._lock:
            await self.store_queue.wait_until_empty()
            yield

    async def _rows(self, ids: set[str]) -> dict[str, rows.Row]:
        found = self._ctx.recent_rows.pop(ids)
        return {**found, **await queries.trajectories_by_id(self._ctx.warehouse, ids - found.keys())}

    async def _candidates(self, found: Mapping[str, rows.Row]) -> dict[str, Candidate]:
        read = {name: rows.decode_trajectory(row) for name, row in found.items()}
        readable = {name: item for name, item in read.items() if isinstance(item, Trajectory)}
        reports = await self._analysis.reports(readable)
        rubrics = await self._analysis.rubrics(readable)
        return {
            name: Candidate(row, read[name], reports.get(name), rubrics.get(name))
            for name, row in found.items()
        }

    async def _stored_rewards(
        self, messages: Sequence[Message], candidates: Mapping[str, Candidate]
    ) -> dict[str, rows.Row]:
        """Returns first rewards that are already stored: a predecessor died, or lost its answer, before its
        checkpoint was written."""
        if messages[0].sequence > self._stored_until:
            return {}
        ids = {reward_id(name): name for name in candidates}
        found = await reward_queries.rewards_by_id(self._ctx.warehouse, ids)
        return {row["trajectory_id"]: row for row in found.values()}

    async def _score(
        self,
        messages: Sequence[Message],
        ids: Mapping[int, str | None],
        candidates: Mapping[str, Candidate],
        known: set[str],
        stored: Mapping[str, rows.Row],
        feedback: Mapping[str, Sequence[rows.Row]],
    ) -> Batch:
        batch = Batch(self._published_state.fork())
        state, settings = batch.state, self._ctx.settings.reward
        for place, message in enumerate(messages):
            if place % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)  # lets other roles of this process run
            name = ids[message.sequence]
            state.stream_seq = message.sequence
            if name is None or name in batch.triggers or name in known:
                continue
            batch.triggers[name] = message
            candidate = candidates.get(name)
            if candidate is None:
                why = Unscored("not_stored", "the collector put it aside")
                batch.missing.append(UnscoredItem(name, why, message))
                state.record_cause(why.reason)
                continue
            before = stored.get(name)
            if before is None and name in self._published:
                before = rows.published_row(self._published[name], message.sequence)
            if before is not None and isinstance(candidate.trajectory, Trajectory):
                rows.restore(before, candidate.trajectory, state)
                (batch.again if name in stored else batch.made).append(before)
                state.record_cause("")
                continue
            answer = rows.first_reward(
                candidate,
                state,
                settings,
                self._components,
                message.timestamp,
                StoredFeedback.select(feedback.get(name, ())),
            )
            if isinstance(answer, Unscored):
                batch.missing.append(UnscoredItem(name, answer, message))
                state.record_cause(answer.reason)
            else:
                batch.made.append(rows.reward_row(answer, message.sequence))
                state.record_cause("")
        return batch

    async def _scored_before(
        self, messages: Iterable[Message], ids: Mapping[int, str | None], found: Mapping[str, rows.Row]
    ) -> set[str]:
        """Returns ids whose score is in the state already. A row that names this very message is new."""
        again: set[str] = set()
        for message in messages:
            name = ids[message.sequence]
            if name is not None and name in found and found[name]["stream_seq"] != message.sequence:
                again.add(name)
        known = again & self._recent.keys()
        scored = await queries.scored_at(self._ctx.warehouse, again - known)
        return known | {
            name for name, sequence in scored.items() if sequence <= self._published_state.stream_seq
        }

    def _fence(self) -> None:
        """Raises BusError when another rewarder may be active: this one must not write any more."""
        if self.lost.is_set() or not self._may_write():
            self.lost.set()
            raise BusError("The lease of the rewarder ran out: nothing more is written.")

    async def write_checkpoints(self) -> None:
        """Writes the checkpoint until cancelled. Raises ConflictError when another rewarder is active."""
        try:
            await self.checkpoint.write_until_cancelled()
        except ConflictError:
            self.lost.set()
            raise

    def _observe(self, batch: Batch, candidates: Mapping[str, Candidate]) -> None:
        for row in [*batch.again, *batch.made]:
            name = row["trajectory_id"]
            arrived, version = batch.triggers[name].timestamp, candidates[name].row["model_version"]
            self._metrics.observe(row, arrived, version)
            self._recent[name] = None
        while len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
