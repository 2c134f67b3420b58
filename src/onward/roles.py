"""The skeleton of a role: its mark of readiness, loops side by side, one active process, restarts, an end.

A role is ``async def run(ctx)``. It opens what it needs, runs its loops until it is cancelled, and finishes
its current work. The host repeats a cancellation every second: see ``together`` and ``to_the_end``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from onward.bus.cancellation import cancellations, honour_cancellation, until_cancelled
from onward.bus.leases import Lease
from onward.clock import utc_text
from onward.contracts.buckets import RoleFailure
from onward.errors import BusError, ConflictError, OnwardError, StreamDriftError, WarehouseError, hide_login
from onward.ids import new_id
from onward.retry import Backoff
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.context import Context

STANDBY_SECONDS = 0.5
"""Pause between two tries to acquire a lease."""
AWAY_SECONDS = 1.0
"""Pause before work that lost a service starts again."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""Pauses before a role that failed starts again: 1, 2, 4 … 60 s."""
QUIET_SECONDS = 60.0
"""A role that ran this long without a failure has recovered: the next pause is the first one again."""
REPORT_SECONDS = 5.0
"""Seconds that a report of a failure waits for NATS. The log and the metric have it in any case."""
MOST_TEXT = 300
"""Characters of an error that are shown to people."""


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
    async with beside(lease.keep_renewed()) as renewal, beside(work(lease)) as working:
        await asyncio.wait({renewal, working}, return_when=asyncio.FIRST_COMPLETED)
    for task in (working, renewal):
        if not task.cancelled():
            task.result()


@asynccontextmanager
async def beside(work: Awaitable[None]) -> AsyncIterator[asyncio.Future[None]]:
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


async def keep_running(
    ctx: Context, role: str, run: Callable[[], Awaitable[None]], has_started: Callable[[], bool]
) -> None:
    """Runs a role until cancelled, and starts it again after a failure, however it failed.

    Raises an OnwardError that comes before ``has_started`` (the role was ready once): a person has to act on
    it. All else is reported by ``_Failures``, and no other role notices it.
    """
    failures, asked = _Failures(ctx, role), cancellations()
    for _ in until_cancelled():
        quiet = asyncio.create_task(failures.recover())
        try:
            await _alone(run)
            honour_cancellation(asked)
            error: BaseException = RuntimeError("it ended by itself")
        except asyncio.CancelledError as cancelled:
            if cancellations() > asked:
                raise
            error = cancelled
        except Exception as failure:
            if cancellations() > asked or (isinstance(failure, OnwardError) and not has_started()):
                raise
            error = failure
        finally:
            quiet.cancel()
        await failures.pause(error)


async def _alone(run: Callable[[], Awaitable[None]]) -> None:
    """Runs one attempt in a task of its own, to which each cancellation is passed on. A TaskGroup that fails
    leaves a cancellation request in its task, until Python 3.13: it must not look like one of the host."""
    task = asyncio.ensure_future(run())
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
    task.result()


class _Failures:
    """The failures of one role since it last ran quietly: they are shown, and answered by longer pauses."""

    def __init__(self, ctx: Context, role: str) -> None:
        self._ctx, self._role = ctx, role
        self._bucket = ctx.bus.bucket(RoleFailure.BUCKET)
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._restarts = 0
        self._reported = ""
        """Sentence of the last alert: the same failure is reported once."""

    async def pause(self, error: BaseException) -> None:
        """Reports a failure and waits until the role may start again."""
        what, seconds = error_sentence(error), self._backoff.next()
        self._restarts += 1
        self._ctx.ready[self._role] = f"the {self._role} failed and starts again in {seconds:g} s: {what}"
        self._ctx.metrics.role_restarts.labels(role=self._role).inc()
        defect = {"error": what} if isinstance(error, OnwardError) else {"exc_info": error}
        logs.get(self._role).error("role failed", role=self._role, again_in=seconds, **defect)
        if what != self._reported:
            self._reported = what
            await self._ctx.alerts.raise_(
                "role_failed",
                f"The {self._role} failed and is started again, while all other roles go on: {what}",
                "critical",
                role=self._role,
            )
        failure = RoleFailure(
            role=self._role, error=what, restarts=self._restarts, failed_at=utc_text(self._ctx.clock.now())
        )
        with contextlib.suppress(BusError, ConflictError):
            await self._bucket.put(self._role, failure.dump(), deadline=REPORT_SECONDS)
        await self._ctx.clock.sleep(seconds)

    async def recover(self) -> None:
        """Waits for the quiet time, then ends the report of earlier failures, also of an earlier process."""
        while True:
            await self._ctx.clock.sleep(QUIET_SECONDS)
            if self._ctx.ready.get(self._role) is True:
                break
        self._backoff.reset()
        if self._reported:
            await self._ctx.alerts.resolve(
                "role_failed", f"The {self._role} runs without a failure again.", role=self._role
            )
        self._restarts, self._reported = 0, ""
        with contextlib.suppress(BusError, ConflictError):
            if await self._bucket.get(self._role) is not None:
                await self._bucket.delete(self._role)


def error_sentence(error: BaseException) -> str:
    """Returns an error for people: the sentence of an OnwardError, else its type and text, on one line."""
    text = " ".join(hide_login(str(error)).split())
    if not isinstance(error, OnwardError):
        text = f"{type(error).__name__}: {text}".rstrip(": ")
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"
