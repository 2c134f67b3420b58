"""The rewarder role: every stored trajectory gets one reward, published and stored.

Know before changing: a message on the trajectory stream is only the trigger. What is scored is the row
that the collector stored (redacted, enriched), once the collector is done with that message. State
moves in stream order by one active rewarder; its record is compare-and-set at most a second later, and
a restart reads the stream again from there, which gives the same ids and the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import nats.errors
import nats.js.errors

from onward.bus import Ack, Disposition, Lease, Message, Retry, consume
from onward.context import Context
from onward.contracts import MAX_BYTES, Reward, Trajectory, decode, decode_document, encode, subjects
from onward.errors import BusError, ConflictError, ContractError, StreamDriftError
from onward.ids import is_id, new_id
from onward.reward.baselines import Baseline
from onward.reward.components import Unscored
from onward.reward.scoring import Provenance, score
from onward.reward.state import State
from onward.telemetry import logs
from onward.telemetry.crashpoints import crashpoint
from onward.warehouse import queries

STREAM = "RL_TRAJECTORIES"
DURABLE = "rewarder"
COLLECTOR = "collector"
"""Durable of the collector on the same stream: what it has acknowledged is settled."""
BUCKET = "rl_rewarder"
KEY = "state"
LEASE = "rewarder"
LEASE_SECONDS = 5.0
CHECKPOINT_SECONDS = 1.0
_LOOK_SECONDS = 0.004
_LOOK_AT_ROWS_SECONDS = 0.5
_PATIENCE_SECONDS = 15.0
_RECENT = 10_000
_MODELS = 100

_log = logs.get("rewarder")


async def run(ctx: Context) -> None:
    """Score until cancelled. While another rewarder is active this one waits to take over."""
    while True:
        lease = Lease(ctx.bus.bucket("rl_leases"), LEASE, new_id(), LEASE_SECONDS, ctx.clock)
        ctx.ready[DURABLE] = True  # a standby does its work too
        try:
            await _acquire(lease, ctx)
            await _active(ctx, lease)
        except ConflictError as error:
            _log.warning("another rewarder took over", cause=str(error))
        except StreamDriftError:
            raise
        except BusError as error:
            _log.warning("starting again", cause=str(error))
            await ctx.clock.sleep(1.0)
        finally:
            await lease.release()
            ctx.ready[DURABLE] = False


async def _acquire(lease: Lease, ctx: Context) -> None:
    while True:
        try:
            if await lease.acquire() is not None:
                return
        except BusError as error:
            _log.warning("waiting for NATS", cause=str(error))
        await ctx.clock.sleep(0.5)


async def _active(ctx: Context, lease: Lease) -> None:
    """Score as the one active rewarder. Raises ConflictError when it is no longer that."""
    rewarder = await Rewarder.load(ctx)
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
        asyncio.create_task(rewarder.keep_checkpoint()),
        asyncio.create_task(lease.keep()),
        asyncio.create_task(rewarder.lost.wait()),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        rewarder.stopping = True
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        if lease.held:
            with contextlib.suppress(ConflictError, BusError):
                await rewarder.checkpoint()
    for result in results:
        if isinstance(result, Exception):
            raise result
    raise ConflictError("The rewarder's record was changed by another rewarder.")


@dataclass(frozen=True)
class _Scored:
    reward: Reward
    message: Message
    model_version: str


@dataclass(frozen=True)
class _Missing:
    trajectory_id: str
    why: Unscored
    message: Message


class Rewarder:
    """The active rewarder: its state, and the revision of the record that the state is kept in."""

    def __init__(self, ctx: Context, state: State, revision: int | None) -> None:
        self._ctx = ctx
        self.state = state
        self._revision = revision
        self._kept_seq = state.stream_seq
        self._means: dict[str, Baseline] = {}
        self._recent: dict[str, None] = {}
        """Ids scored since the start, newest last: saves asking the warehouse about most repeats."""
        self.lost = asyncio.Event()
        self.stopping = False

    @classmethod
    async def load(cls, ctx: Context) -> Rewarder:
        """From the record. A stream that was made anew since is read from its beginning."""
        window = ctx.settings.reward.window
        entry = await ctx.bus.bucket(BUCKET).get(KEY)
        if entry is None:
            return cls(ctx, State(window), None)
        state = State.load(entry.value, window)
        try:
            last = (await ctx.bus.js.stream_info(STREAM)).state.last_seq
        except nats.errors.Error as error:
            raise BusError(f"Stream {STREAM} cannot be read ({type(error).__name__}).") from None
        if last < state.stream_seq:
            _log.warning("the trajectory stream was made anew", last=last, read=state.stream_seq)
            state.stream_seq = 0
        return cls(ctx, state, entry.revision)

    async def handle(self, messages: list[Message]) -> Sequence[Disposition]:
        """Score, publish and store in stream order, as far as the collector is, until all is done.

        Raises BusError or WarehouseError when either is away; what was done by then is not repeated.
        """
        if self.stopping or self.lost.is_set():
            return [Retry(0.0)] * len(messages)
        new = sorted((m for m in messages if m.sequence > self.state.stream_seq), key=lambda m: m.sequence)
        while new:
            settled = await self._settled(new)
            await self._handle_settled([m for m in new if m.sequence <= settled])
            new = [m for m in new if m.sequence > settled]
        return [Ack()] * len(messages)

    async def _handle_settled(self, messages: list[Message]) -> None:
        """All or nothing as far as the state goes."""
        state, rewards, missing = await self._score(messages)
        await self._publish(rewards)
        crashpoint("rewarder.published")
        await self._store(rewards, missing)
        crashpoint("rewarder.stored")
        self.state = state
        self._count(rewards, missing)

    async def checkpoint(self) -> None:
        """Keep the state if it moved. Raises ConflictError when another rewarder wrote meanwhile."""
        state = self.state
        if state.stream_seq == self._kept_seq:
            return
        bucket = self._ctx.bus.bucket(BUCKET)
        if self._revision is None:
            self._revision = await bucket.create(KEY, state.dump())
        else:
            self._revision = await bucket.update(KEY, state.dump(), self._revision)
        self._kept_seq = state.stream_seq

    async def keep_checkpoint(self) -> None:
        while True:
            await self._ctx.clock.sleep(CHECKPOINT_SECONDS)
            try:
                await asyncio.shield(asyncio.ensure_future(self.checkpoint()))
            except ConflictError:
                self.lost.set()
                raise
            except BusError as error:
                _log.warning("the record waits", cause=str(error))

    async def _settled(self, messages: list[Message]) -> int:
        """Wait until the collector is done with the first of ``messages``; return up to which sequence it
        is. Where it acknowledges out of order, that all of them are stored will do."""
        clock = self._ctx.clock
        started = looked = clock.monotonic()
        warned, pause = False, _LOOK_SECONDS
        while (floor := await self._collector_floor()) < messages[0].sequence:
            if self.stopping:
                raise BusError("The rewarder stops before the collector was done.")
            now = clock.monotonic()
            if now - looked >= _LOOK_AT_ROWS_SECONDS:
                ids = {name for m in messages if (name := _trajectory_id(m.data))}
                if ids <= (await queries.stored(self._ctx.warehouse, ids)).keys():
                    return messages[-1].sequence
                looked = clock.monotonic()
            if not warned and now - started > 30.0:
                warned = True
                _log.warning("waiting for the collector", sequence=messages[0].sequence)
            await clock.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        return floor

    async def _collector_floor(self) -> int:
        try:
            info = await self._ctx.bus.js.consumer_info(STREAM, COLLECTOR)
        except nats.js.errors.NotFoundError:
            return 0
        except nats.errors.Error as error:
            raise BusError(f"NATS is away ({type(error).__name__}).") from None
        return info.ack_floor.stream_seq if info.ack_floor else 0

    async def _score(self, messages: list[Message]) -> tuple[State, list[_Scored], list[_Missing]]:
        ids = {m.sequence: _trajectory_id(m.data) for m in messages}
        rows = await queries.trajectories_by_id(
            self._ctx.warehouse, {name for name in ids.values() if name is not None}
        )
        known = await self._scored_before(messages, ids, rows)
        state = self.state.fork()
        rewards: list[_Scored] = []
        missing: list[_Missing] = []
        done: set[str] = set()
        for message in messages:
            name = ids[message.sequence]
            state.stream_seq = message.sequence
            if name is None or name in done or name in known:
                continue
            done.add(name)
            if name not in rows:
                missing.append(_Missing(name, Unscored("not_stored", "the collector put it aside"), message))
                continue
            answer = _score_row(rows[name], state, self._ctx, message.timestamp)
            if isinstance(answer, Unscored):
                missing.append(_Missing(name, answer, message))
            else:
                rewards.append(_Scored(answer, message, rows[name]["model_version"]))
        return state, rewards, missing

    async def _scored_before(
        self, messages: list[Message], ids: Mapping[int, str | None], rows: Mapping[str, dict[str, Any]]
    ) -> set[str]:
        """Ids whose score is in the state already. A row that names this very message is new."""
        again: set[str] = set()
        for message in messages:
            name = ids[message.sequence]
            if name is not None and name in rows and rows[name]["stream_seq"] != message.sequence:
                again.add(name)
        known = again & self._recent.keys()
        scored = await queries.scored_at(self._ctx.warehouse, again - known)
        return known | {name for name, sequence in scored.items() if sequence <= self.state.stream_seq}

    async def _publish(self, rewards: list[_Scored]) -> None:
        publish, headers = self._ctx.bus.publish, {"Rl-Schema": "v1"}
        calls = [
            publish(subjects.REWARD, encode(r), msg_id=r.reward_id, headers=headers, deadline=60.0)
            for r in (item.reward for item in rewards)
        ]
        await asyncio.gather(*calls)
        now = self._ctx.clock.now()
        for item in rewards:
            seconds = (now - item.message.timestamp).total_seconds()
            self._ctx.metrics.rewarder_seconds.observe(max(0.0, seconds))

    async def _store(self, rewards: list[_Scored], missing: list[_Missing]) -> None:
        rows = [reward_row(item.reward, item.message.sequence) for item in rewards]
        await self._ctx.warehouse.insert("rewards", rows, patience=_PATIENCE_SECONDS)
        gaps = [
            {
                "trajectory_id": item.trajectory_id,
                "ts": item.message.timestamp,
                "reason": item.why.reason,
                "detail": item.why.detail,
                "stream_seq": item.message.sequence,
            }
            for item in missing
        ]
        await self._ctx.warehouse.insert("unscored", gaps, patience=_PATIENCE_SECONDS)

    def _count(self, rewards: list[_Scored], missing: list[_Missing]) -> None:
        metrics = self._ctx.metrics
        for item in missing:
            metrics.unscored.labels(reason=item.why.reason).inc()
        for item in rewards:
            metrics.trajectory_reward.observe(item.reward.total_reward)
            self._recent[item.reward.trajectory_id] = None
            self._observe_model(item.model_version, item.reward.metadata.raw_total or 0.0)
        while len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]

    def _observe_model(self, version: str, raw_total: float) -> None:
        """The gauge of mean raw totals. The label comes from agents, so only so many are kept."""
        if version not in self._means and len(self._means) >= _MODELS:
            return
        self._means[version] = self._means.get(version, Baseline()).add(raw_total)
        self._ctx.metrics.model_reward_mean.labels(model_version=version).set(self._means[version].mean)


def reward_row(reward: Reward, stream_seq: int) -> dict[str, Any]:
    """The row of table ``rewards``; ``stream_seq`` is the trajectory message's."""
    metadata, outcome = reward.metadata, reward.metadata.outcome
    return {
        "reward_id": reward.reward_id,
        "trajectory_id": reward.trajectory_id,
        "session_id": reward.session_id,
        "ts": reward.timestamp,
        "total_reward": reward.total_reward,
        "raw_total": metadata.raw_total,
        "success": int(outcome.success) if outcome else 0,
        "completion": outcome.completion if outcome else 0.0,
        "unparsable": int(bool(outcome and outcome.unparsable)),
        "model_digest": metadata.model_digest or "",
        "release_id": metadata.release_id or "",
        "task_type": metadata.task_type or "",
        "confidence": metadata.confidence or 0.0,
        "revision": 0,
        "stream_seq": stream_seq,
        "payload": encode(reward).decode(),
    }


def _score_row(row: dict[str, Any], state: State, ctx: Context, timestamp: datetime) -> Reward | Unscored:
    """Score a stored row. A component that breaks leaves the trajectory unscored, never zero."""
    provenance = Provenance(row["model_digest"], row["release_id"], row["task_type"])
    attempt = state.fork()
    try:
        trajectory = decode(row["payload"].encode(), Trajectory, max_bytes=2 * MAX_BYTES)
        answer = score(
            trajectory, attempt, settings=ctx.settings.reward, timestamp=timestamp, provenance=provenance
        )
    except ContractError as error:
        return Unscored("contract", error.reason)
    except Exception as error:  # a defect in one component must not stop all rewards
        _log.exception("a trajectory could not be scored", trajectory_id=row["trajectory_id"])
        return Unscored("component_error", type(error).__name__)
    state.windows, state.baselines = attempt.windows, attempt.baselines
    return answer


def _trajectory_id(data: bytes) -> str | None:
    """The id that a message claims; None for one that the collector cannot have stored."""
    try:
        document = decode_document(data)
    except ContractError:
        return None
    name = document.get("trajectory_id") if isinstance(document, dict) else None
    return name if isinstance(name, str) and is_id(name) else None
