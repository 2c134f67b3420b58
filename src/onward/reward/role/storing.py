"""First rewards on their way into the warehouse: in order, as many at once as have gathered.

Know before changing: scoring and publishing run ahead of this, by ``MOST`` rewards at most. The state that is
kept is the one after what is stored; whoever starts again from it stores what was published
(``published.py``).
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
"""Trajectories that may wait; scoring waits for room above that."""


@dataclass
class Batch:
    """What became of messages: rows to store, those that are stored already, gaps, and the state after."""

    state: State
    made: list[dict[str, Any]] = field(default_factory=list)
    again: list[dict[str, Any]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    triggers: dict[str, Message] = field(default_factory=dict)
    """Trajectory id → the message that its reward comes from."""


class Storing:
    def __init__(
        self,
        ctx: Context,
        fence: Callable[[], None],
        stored: Callable[[Sequence[Batch]], Awaitable[None]],
    ) -> None:
        """``fence`` raises when nothing may be written any more; ``stored`` is told what is durable now."""
        self._ctx, self._fence, self._stored = ctx, fence, stored
        self._waiting: list[Batch] = []
        self._news, self._room, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._tell()

    def add(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self._tell()

    async def room(self) -> None:
        """Wait until more may be added."""
        await self._room.wait()

    async def idle(self) -> None:
        """Wait until all that was added is stored."""
        await self._idle.wait()

    async def run(self) -> None:
        """Store until cancelled. Raises WarehouseError, and what ``fence`` raises: what waits is then made
        again by whoever starts from the record."""
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
