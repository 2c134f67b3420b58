"""Runs the check beside the collector: at the start, each hour, when damaged files are met, and on request.

One process of a deployment does this, by a lease. A check that fails is logged and repeated; it never ends
the collector.
"""

from __future__ import annotations

import nats.errors
from nats.js.api import StreamState

from onward.bus import BUCKETS, STREAMS, Bus, read_document, streams
from onward.bus.buckets import stream_of
from onward.bus.cancellation import until_cancelled
from onward.clock import Clock, utc_text
from onward.context import Context
from onward.contracts.buckets import RecoveryReport, RecoveryRequest
from onward.errors import BusError, OnwardError
from onward.ids import new_id
from onward.recovery.check import Check
from onward.recovery.inventory import Inventory
from onward.roles import lead, together
from onward.telemetry import logs
from onward.warehouse import recovery_queries
from onward.warehouse.recovery_queries import SHAPES

LEASE = "recovery"
LEASE_SECONDS = 15.0
PERIOD_SECONDS = 3600.0
STREAM_SECONDS = 5.0
"""Pause between two looks for streams that were deleted."""
LOOK_SECONDS = 1.0
"""Pause between two looks for a request or for damage."""
AGAIN_SECONDS = 30.0
"""Pause before a check that failed is repeated."""
FILES_BYTES = 2 << 30
"""Size of a warehouse up to which a start compares every file with its checksum."""
_log = logs.get("recovery")


async def run(ctx: Context) -> None:
    """Checks until cancelled. Other processes stand by; every process creates streams that are missing."""
    checking = lead(ctx, LEASE, LEASE_SECONDS, lambda _: _serve(ctx), is_role=False)
    await together(checking, watch_streams(ctx))


async def watch_streams(ctx: Context) -> None:
    """Creates declared streams and buckets that were deleted, with an alert, until cancelled."""
    known: dict[str, StreamState] = {}
    for _ in until_cancelled():
        try:
            found = await streams.all_states(ctx.bus)
            for name in [*STREAMS, *map(stream_of, BUCKETS)]:
                # Asked by name: a list in pages may miss a stream while others come and go.
                if name not in found and not await streams.exists(ctx.bus, name):
                    info = await streams.create(ctx.bus, name)
                    if ctx.bus.is_news(name, str(info.created)):
                        await _tell_of_deleted(ctx, name, known.get(name))
            known |= found
        except (nats.errors.Error, BusError) as error:
            _log.debug("streams cannot be listed", cause=type(error).__name__)
        await ctx.clock.sleep(STREAM_SECONDS)


async def _tell_of_deleted(ctx: Context, name: str, state: StreamState | None) -> None:
    what = "an unknown number of" if state is None else str(state.messages)
    last = "" if state is None else f", the last one {state.last_seq}"
    await ctx.alerts.raise_(
        "stream_lost",
        f"{name} was deleted and is created again, empty: {what} messages are gone{last}. Rows in the "
        "warehouse stay.",
        "critical",
        stream=name,
    )


async def _serve(ctx: Context) -> None:
    due, is_first = ctx.clock.monotonic(), True
    for _ in until_cancelled():
        try:
            request = await _open_request(ctx.bus)
            if request is not None:
                await answer(ctx, request)
            elif ctx.clock.monotonic() >= due or ctx.warehouse.found_damage:
                due = ctx.clock.monotonic() + AGAIN_SECONDS
                read_files = is_first and await recovery_queries.bytes_on_disk(ctx.warehouse) <= FILES_BYTES
                own = RecoveryRequest(run_id=new_id(), restore=True, requested_at=utc_text(ctx.clock.now()))
                await answer(ctx, own, read_files=read_files, read_rewards=False)
                due, is_first = ctx.clock.monotonic() + PERIOD_SECONDS, False
        except OnwardError as error:
            _log.warning("the check of the warehouse waits", cause=str(error))
            await ctx.clock.sleep(AGAIN_SECONDS if ctx.clock.monotonic() < due else LOOK_SECONDS)
        except Exception:
            _log.exception("the check of the warehouse failed")
            due = ctx.clock.monotonic() + PERIOD_SECONDS
        await ctx.clock.sleep(LOOK_SECONDS)


async def _open_request(bus: Bus) -> RecoveryRequest | None:
    """Returns the newest request, unless it was answered."""
    request = await read_document(bus, RecoveryRequest)
    report = await read_document(bus, RecoveryReport)
    if request is None or (report and report.answered == request.run_id):
        return None
    return request


async def answer(
    ctx: Context, request: RecoveryRequest, *, read_files: bool = True, read_rewards: bool = True
) -> RecoveryReport:
    """Makes one pass and writes its report, also while it runs. Raises BusError, WarehouseError,
    ObjectError."""
    bucket = ctx.bus.bucket(RecoveryReport.BUCKET)
    previous = await read_document(ctx.bus, RecoveryReport)
    answered = previous.answered if previous else ""
    written = ctx.clock.monotonic() - LOOK_SECONDS

    def report(finished: bool, table: str = "", done: int = 0, total: int = 0) -> RecoveryReport:
        return RecoveryReport(
            run_id=request.run_id,
            at=utc_text(ctx.clock.now()),
            restore=request.restore,
            finished=finished,
            answered=request.run_id if finished and request.asked else answered,
            table=table,
            done=done,
            total=total,
            tables={name: dict(vars(result)) for name, result in check.results.items()},
            without_reward=check.without_reward,
            detached=detached if finished else {},
        )

    async def show(table: str, done: int, total: int) -> None:
        nonlocal written
        if ctx.clock.monotonic() - written >= LOOK_SECONDS:
            written = ctx.clock.monotonic()
            await bucket.put(RecoveryReport.KEY, report(False, table, done, total).dump())

    detached: dict[str, list[str]] = {}
    if request.accept:
        await accept(ctx)
    check = Check(ctx, store=request.restore, progress=show)
    await check.run(read_files=read_files, read_rewards=read_rewards)
    detached = await recovery_queries.detached_parts(ctx.warehouse)
    done = report(True)
    await bucket.put(RecoveryReport.KEY, done.dump())
    return done


async def accept(ctx: Context) -> None:
    """Removes what is lost from the lists: an operator knows of it."""
    for table in SHAPES:
        inventory = Inventory(ctx.objects, ctx.warehouse, table)
        lost = await inventory.lost()
        if lost.count:
            lost.rows, lost.messages = {}, []
            await inventory.list_lost(lost)


async def request_check(bus: Bus, clock: Clock, *, restore: bool, accept: bool) -> RecoveryRequest:
    """Asks the running service for a pass. Raises BusError."""
    request = RecoveryRequest(
        run_id=new_id(), restore=restore, accept=accept, asked=True, requested_at=utc_text(clock.now())
    )
    await bus.bucket(RecoveryRequest.BUCKET).put(RecoveryRequest.KEY, request.dump())
    return request
