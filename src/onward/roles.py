"""The skeleton of a role: its mark of readiness, loops side by side, one active process, an end.

A role is ``async def run(ctx)``. It opens what it needs, runs its loops until it is cancelled, and finishes
its current work. The host repeats a cancellation every second: see ``together`` and ``to_the_end``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from onward.bus.cancellation import until_cancelled
from onward.bus.leases import Lease
from onward.errors import BusError, ConflictError, StreamDriftError, WarehouseError
from onward.ids import new_id
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.context import Context

STANDBY_SECONDS = 0.5
"""Pause between two tries to acquire a lease."""
AWAY_SECONDS = 1.0
"""Pause before work that lost a service starts again."""


@contextmanager
def ready(ctx: Context, role: str) -> Iterator[None]:
    """Marks ``role`` as ready while the block runs: ``/ready`` and ``/status`` answer from it."""
    ctx.ready[role] = True
    try:
        yield
    finally:
        ctx.ready[role] = False


async def together(*loops: Coroutine[Any, Any, object]) -> None:
    """Runs loops side by side until cancelled. A loop that fails ends all; its error is raised.

    Only the first cancellation reaches the loops, so each has its own time to finish its current work.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for loop in loops:
                group.create_task(loop)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def lead(
    ctx: Context,
    role: str,
    seconds: float,
    work: Callable[[Lease], Awaitable[None]],
    *,
    is_role: bool = True,
) -> None:
    """Runs ``work`` while this process holds the lease of ``role``, until cancelled; stands by otherwise.

    ``seconds``: time to live of the lease. ``work`` is cancelled when the lease is lost. It starts again with
    a new lease after that, and after it raised ConflictError, BusError or WarehouseError. Only the first
    cancellation reaches ``work``, so it has its own time to finish, with the lease. Work beside a role
    (``is_role`` false) has no mark of readiness.
    """
    log = logs.get(role)
    with ready(ctx, role) if is_role else contextlib.nullcontext():  # a standby is ready too
        for _ in until_cancelled():
            lease = Lease(ctx.bus.bucket("rl_leases"), role, new_id(), seconds, ctx.clock)
            try:
                await _acquire(lease, log)
                await _while_held(lease, work)
            except ConflictError as error:
                log.warning(f"another {role} took over", cause=str(error))
            except StreamDriftError:
                raise
            except (BusError, WarehouseError) as error:
                log.warning("starting again", cause=str(error))
                await ctx.clock.sleep(AWAY_SECONDS)
            finally:
                await lease.release()


async def _acquire(lease: Lease, log: Any) -> None:
    for _ in until_cancelled():
        try:
            if await lease.acquire() is not None:
                return
        except BusError as error:
            log.warning("waiting for NATS", cause=str(error))
        await lease.clock.sleep(STANDBY_SECONDS)


async def _while_held(lease: Lease, work: Callable[[Lease], Awaitable[None]]) -> None:
    """Runs ``work``. The lease is renewed until ``work`` has ended, also while it finishes."""
    async with _beside(lease.keep_renewed()) as renewal, _beside(work(lease)) as working:
        await asyncio.wait({renewal, working}, return_when=asyncio.FIRST_COMPLETED)
    for task in (working, renewal):
        if not task.cancelled():
            task.result()


@asynccontextmanager
async def _beside(work: Awaitable[None]) -> AsyncIterator[asyncio.Future[None]]:
    """Runs ``work`` beside the block. When the block ends, cancels it once and waits for its end."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await to_the_end(asyncio.wait({task}))


async def to_the_end(work: Coroutine[Any, Any, object]) -> None:
    """Waits for ``work``, the last steps of a role, however often the wait is cancelled."""
    task = asyncio.create_task(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    task.result()
