"""How a reward leaves: published from the row that is stored, so that a repeat gives the same bytes.

First rewards are stored and published at once: they follow from stream, state and settings, and a repeat
makes them again. Superseding ones depend on the moment and are stored first. At most one durable publish a
reward; rows of a batch go in one insert.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onward.bus import Message
from onward.context import Context
from onward.contracts import subjects
from onward.reward.components import Unscored
from onward.telemetry.crashpoints import crashpoint

PATIENCE_SECONDS = 15.0
HEADERS = {"Rl-Schema": "v1"}


@dataclass(frozen=True)
class Missing:
    """A trajectory without a valid reward."""

    trajectory_id: str
    why: Unscored
    message: Message


async def store(ctx: Context, rewards: Sequence[dict[str, Any]], missing: Sequence[Missing] = ()) -> None:
    """Rows of ``rewards`` and ``unscored``, durably. Raises WarehouseError."""
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


async def both(
    ctx: Context, made: Sequence[dict[str, Any]], missing: Sequence[Missing], again: Sequence[dict[str, Any]]
) -> None:
    """Store ``made`` and ``missing``, and publish ``made`` and ``again``, which are stored already. Returns,
    or raises WarehouseError or BusError, when both are over."""

    async def stored() -> None:
        await store(ctx, made, missing)
        crashpoint("rewarder.stored")

    async def published() -> None:
        await publish(ctx, [*again, *made])
        crashpoint("rewarder.published")

    for failure in await asyncio.gather(published(), stored(), return_exceptions=True):
        if failure is not None:
            raise failure


async def publish(ctx: Context, rewards: Sequence[dict[str, Any]]) -> None:
    """The payloads of stored rows, at once. Raises BusError."""
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
