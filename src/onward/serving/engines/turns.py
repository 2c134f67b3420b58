"""One policy at a time: requests to a server that answers two policies of one batch wrongly."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Lets the requests of one policy through together, and those of another when they are all answered.

    Nothing waits until ``separate`` is True. Policies take turns in the order of their first waiting request,
    so that none waits for more than one round of each other one.
    """

    def __init__(self) -> None:
        self.separate = False
        self._policy: str | None = None
        self._running = 0
        self._waiting: deque[tuple[str | None, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def turn(self, policy: str | None) -> AsyncIterator[None]:
        """Waits for the turn of ``policy`` and holds it inside the context."""
        if self.separate and (self._waiting or (self._running and policy != self._policy)):
            await self._wait(policy)
        else:
            self._policy = policy
            self._running += 1
        try:
            yield
        finally:
            self._end()

    async def _wait(self, policy: str | None) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((policy, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._waiting = deque(one for one in self._waiting if one[1] is not granted)
            else:
                self._end()
            raise

    def _end(self) -> None:
        self._running -= 1
        while not self._running and self._waiting:
            self._policy = self._waiting[0][0]
            mine = [one for one in self._waiting if one[0] == self._policy]
            self._waiting = deque(one for one in self._waiting if one[0] != self._policy)
            for _, granted in mine:
                if not granted.cancelled():
                    granted.set_result(None)
                    self._running += 1
