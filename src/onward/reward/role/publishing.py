"""Stores and publishes rewards. A reward is published from its row, so that a repeat gives the same bytes.

First rewards are published and then stored; after a crash between the two the published ones are stored
(``predecessor.py``). Superseding ones are stored first. At most one durable publish a reward.
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

PATIENCE_SECONDS = 15.0
HEADERS = {"Rl-Schema": "v1"}


@dataclass(frozen=True)
class Missing:
    """A trajectory without a valid reward."""

    trajectory_id: str
    why: Unscored
    message: Message


async def store(ctx: Context, rewards: Sequence[dict[str, Any]], missing: Sequence[Missing] = ()) -> None:
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
