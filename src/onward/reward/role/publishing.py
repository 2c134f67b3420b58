"""Publishes and stores rewards. A reward is published from its row, so that a repeat gives the same bytes.

First rewards are published and then stored: publishing runs ahead of the warehouse until ``MOST``
trajectories wait (``StoreQueue``). A first reward depends on more than the stream: on the feedback known by
then, on the linter's results, on settings. So a restarted rewarder computes no published reward anew. It
reads them back from the stream (``published_first_rewards``) and stores them. Superseding rewards are stored
first.

Invariants: each reward is published durably at most once. The recorded state is the one after everything
stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import nats.errors
from nats.js.errors import NotFoundError

from onward.bus import Bus, Message
from onward.context import Context
from onward.contracts import MAX_BYTES, Reward, decode, subjects
from onward.errors import BusError, ContractError
from onward.reward.components import Unscored
from onward.reward.scoring.score import reward_id
from onward.reward.scoring.state import State
from onward.telemetry.crashpoints import crashpoint

STREAM = "RL_REWARDS"
PATIENCE_SECONDS = 15.0
HEADERS = {"Rl-Schema": "v1"}
MOST = 500
"""Maximum trajectories that wait for the warehouse; scoring waits for room above that."""
TAIL = 4 * MOST
"""Newest messages of the reward stream that a restarted rewarder reads back."""
_CONCURRENT_READS = 50


@dataclass(frozen=True)
class UnscoredItem:
    """A trajectory without a valid reward."""

    trajectory_id: str
    why: Unscored
    message: Message


async def store(
    ctx: Context, rewards: Sequence[dict[str, Any]], missing: Sequence[UnscoredItem] = ()
) -> None:
    """Stores rows of ``rewards`` and ``unscored`` durably. Raises WarehouseError."""
    await ctx.warehouse.insert("rewards", rewards, patience=PATIENCE_SECONDS)
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
    await ctx.warehouse.insert("unscored", gaps, patience=PATIENCE_SECONDS)


async def publish(ctx: Context, rewards: Sequence[dict[str, Any]]) -> None:
    """Publishes the payloads of rows concurrently. Raises BusError."""
    await asyncio.gather(
        *(
            ctx.bus.publish(
                subjects.REWARD,
                row["payload"].encode(),
                msg_id=row["reward_id"],
                headers=HEADERS,
                deadline=60.0,
            )
            for row in rewards
        )
    )


@dataclass
class Batch:
    """Results for messages: rows to store, rows stored already, unscored ones, and the state afterwards."""

    state: State
    made: list[dict[str, Any]] = field(default_factory=list)
    again: list[dict[str, Any]] = field(default_factory=list)
    missing: list[UnscoredItem] = field(default_factory=list)
    triggers: dict[str, Message] = field(default_factory=dict)
    """Trajectory id → the message that triggered its reward."""


class StoreQueue:
    """Stores first rewards in the warehouse: in order, and all that are waiting at once."""

    def __init__(
        self, ctx: Context, fence: Callable[[], None], on_stored: Callable[[Sequence[Batch]], Awaitable[None]]
    ) -> None:
        """``fence`` raises when nothing may be written; ``on_stored`` gets the batches now durable."""
        self._ctx, self._fence, self._on_stored = ctx, fence, on_stored
        self._batches: list[Batch] = []
        self._work, self._room, self._empty = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._update_events()

    def enqueue(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._update_events()

    async def wait_for_room(self) -> None:
        """Waits until another batch may be enqueued."""
        await self._room.wait()

    async def wait_until_empty(self) -> None:
        """Waits until everything enqueued is stored."""
        await self._empty.wait()

    async def run(self) -> None:
        """Stores until cancelled. Raises WarehouseError, and the error of ``fence``: waiting rewards are then
        made again by the rewarder that starts from the record."""
        while True:
            await self._work.wait()
            batches = list(self._batches)
            self._fence()
            made = [row for batch in batches for row in batch.made]
            missing = [gap for batch in batches for gap in batch.missing]
            await store(self._ctx, made, missing)
            crashpoint("rewarder.stored")
            del self._batches[: len(batches)]
            await self._on_stored(batches)
            self._update_events()

    def _update_events(self) -> None:
        for event, holds in (
            (self._work, bool(self._batches)),
            (self._room, sum(len(batch.triggers) for batch in self._batches) < MOST),
            (self._empty, not self._batches),
        ):
            event.set() if holds else event.clear()


async def published_first_rewards(bus: Bus) -> dict[str, bytes]:
    """Returns trajectory id → its first reward, from the newest ``TAIL`` messages. Raises BusError."""
    slots = asyncio.Semaphore(_CONCURRENT_READS)

    async def read(sequence: int) -> bytes:
        async with slots:
            try:
                return (await bus.js.get_msg(STREAM, seq=sequence)).data or b""
            except NotFoundError:
                return b""

    try:
        state = (await bus.js.stream_info(STREAM)).state
        first = max(1, state.first_seq, state.last_seq - TAIL + 1)
        found = await asyncio.gather(*(read(n) for n in range(first, state.last_seq + 1)))
    except nats.errors.Error as error:
        raise BusError(f"Stream {STREAM} cannot be read ({type(error).__name__}).") from None
    rewards: dict[str, bytes] = {}
    for data in found:
        try:
            reward = decode(data, Reward, max_bytes=2 * MAX_BYTES)
        except ContractError:
            continue
        if reward.reward_id == reward_id(reward.trajectory_id):
            rewards.setdefault(reward.trajectory_id, data)
    return rewards
