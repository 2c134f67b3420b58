"""Collects the conversations of many episodes into calls of one policy.

One call runs at a time. The next one starts when every running episode waits for it, so that an environment
in this process always fills whole batches. A slow server delays the others only for ``linger_seconds``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from onward.errors import ContractError, OnwardError

Act = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]


class PolicyTimeoutError(OnwardError):
    """Raised when the policy did not answer in time; the episodes of that call are unscored."""


class Batches:
    """Batches requests to a policy. Use ``async with batches: action = await batches.ask(conversation)``,
    while ``run()`` runs."""

    def __init__(self, act: Act, max_batch: int, linger_seconds: float | None, policy_seconds: float) -> None:
        self._act, self._max, self._linger, self._deadline = act, max_batch, linger_seconds, policy_seconds
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._changed = asyncio.Event()
        self._playing = 0

    async def __aenter__(self) -> Batches:
        """Registers one more running episode."""
        self._playing += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._playing -= 1
        self._changed.set()

    async def ask(self, conversation: Any) -> Any:
        """Returns the policy's action. Raises PolicyTimeoutError."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((conversation, future))
        self._changed.set()
        return await future

    async def run(self) -> None:
        """Serves until cancelled. An exception of the policy ends this."""
        while True:
            batch = await self._next()
            deadline = asyncio.timeout(self._deadline)
            try:
                async with deadline:
                    actions = await self._act([conversation for conversation, _ in batch])
            except TimeoutError:
                if not deadline.expired():
                    raise
                error = PolicyTimeoutError(
                    f"The policy gave no action within {self._deadline:g} s to {len(batch)} conversations."
                )
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            if len(actions) != len(batch):
                raise ContractError(
                    "bad_actions",
                    f"The policy gave {len(actions)} actions for {len(batch)} conversations: "
                    f"act must return one for each, in order.",
                )
            for (_, future), action in zip(batch, actions, strict=True):
                if not future.done():
                    future.set_result(action)

    async def _next(self) -> list[tuple[Any, asyncio.Future[Any]]]:
        await self._until_full()
        batch, self._waiting = self._waiting[: self._max], self._waiting[self._max :]
        return batch

    async def _until_full(self) -> None:
        while not self._waiting:
            await self._changes()
        try:
            async with asyncio.timeout(self._linger):
                while not self._is_full():
                    await self._changes()
        except TimeoutError:
            pass
        self._waiting = [entry for entry in self._waiting if not entry[1].done()]
        if not self._waiting:
            await self._until_full()

    async def _changes(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _is_full(self) -> bool:
        waiting = sum(not future.done() for _, future in self._waiting)
        return waiting >= min(self._max, self._playing)
