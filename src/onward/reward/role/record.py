"""The rewarder's record: its state in one key, compare-and-set, at most a second behind.

Invariants: a restart continues from the record, so it is written only after everything that it counts is
stored. A refused write means that another rewarder is active.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from onward.context import Context
from onward.contracts.buckets import RewarderState
from onward.errors import BusError
from onward.reward.role.state import State
from onward.telemetry import logs

CHECKPOINT_SECONDS = 1.0

_log = logs.get("rewarder")


class Record:
    """Writes the record. ``revision``: that of the record that ``state`` was read from; None if there is none
    yet."""

    def __init__(self, ctx: Context, state: Callable[[], State], revision: int | None) -> None:
        self._bucket, self._clock, self._state = ctx.bus.bucket(RewarderState.BUCKET), ctx.clock, state
        self._revision, self._kept_seq = revision, state().stream_seq

    async def keep(self) -> None:
        """Writes the state if it changed. Raises ConflictError when another rewarder wrote meanwhile."""
        state = self._state()
        if state.stream_seq == self._kept_seq:
            return
        if self._revision is None:
            self._revision = await self._bucket.create(RewarderState.KEY, state.dump())
        else:
            self._revision = await self._bucket.update(RewarderState.KEY, state.dump(), self._revision)
        self._kept_seq = state.stream_seq

    async def keep_on(self) -> None:
        """Calls ``keep`` each second, until cancelled. Raises ConflictError."""
        while True:
            await self._clock.sleep(CHECKPOINT_SECONDS)
            try:
                await asyncio.shield(asyncio.ensure_future(self.keep()))
            except BusError as error:
                _log.warning("the record waits", cause=str(error))
