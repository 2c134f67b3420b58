"""Stores first rewards in the warehouse: in order, and all that are waiting at once.

Invariants: scoring and publishing run ahead of this until ``MOST`` trajectories wait. The recorded state is
the one after everything stored. A restart from it stores the published rewards (``predecessor.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.bus import Message
from onward.context import Context
from onward.reward.role import publishing as delivery
from onward.reward.role.publishing import Missing
from onward.reward.role.state import State
from onward.telemetry.crashpoints import crashpoint

MOST = 500
"""Maximum trajectories that wait; scoring waits for room above that."""


@dataclass
class Batch:
    """Results for messages: rows to store, rows stored already, unscored ones, and the state afterwards."""

    state: State
    made: list[dict[str, Any]] = field(default_factory=list)
    again: list[dict[str, Any]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    triggers: dict[str, Message] = field(default_factory=dict)
    """Trajectory id → the message that triggered its reward."""


class Storing:
    def __init__(
        self,
        ctx: Context,
        fence: Callable[[], None],
        stored: Callable[[Sequence[Batch]], Awaitable[None]],
    ) -> None:
        """``fence`` raises when nothing may be written any more; ``stored`` is called with the batches now
        durable."""
        self._ctx, self._fence, self._stored = ctx, fence, stored
        self._waiting: list[Batch] = []
        self._news, self._room, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._tell()

    def add(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self._tell()

    async def room(self) -> None:
        """Waits until more may be added."""
        await self._room.wait()

    async def idle(self) -> None:
        """Waits until everything added is stored."""
        await self._idle.wait()

    async def run(self) -> None:
        """Stores until cancelled. Raises WarehouseError, and the error of ``fence``: waiting rewards are then
        made again by the rewarder that starts from the record."""
        while True:
            await self._news.wait()
            batches = list(self._waiting)
            self._fence()
            made = [row for batch in batches for row in batch.made]
            missing = [gap for batch in batches for gap in batch.missing]
            await delivery.store(self._ctx, made, missing)
            crashpoint("rewarder.stored")
            del self._waiting[: len(batches)]
            await self._stored(batches)
            self._tell()

    def _tell(self) -> None:
        for event, holds in (
            (self._news, bool(self._waiting)),
            (self._room, sum(len(batch.triggers) for batch in self._waiting) < MOST),
            (self._idle, not self._waiting),
        ):
            event.set() if holds else event.clear()
