"""``onward warehouse verify|rebuild``: finds rows that the warehouse lost, and stores them again."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from rich.console import Console

from onward import host
from onward.bus import Bus, read_document
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, print_json, print_text
from onward.clock import Clock, SystemClock, utc_text
from onward.config import Settings
from onward.context import Context
from onward.contracts.buckets import RecoveryReport, RecoveryRequest
from onward.errors import BusError, runnable
from onward.ids import new_id
from onward.progress import Bars
from onward.recovery import service
from onward.recovery.inventory import Inventory, Lost
from onward.warehouse import Objects
from onward.warehouse.recovery_queries import SHAPES

warehouse_app = Commands(
    help="""The warehouse: find rows that it lost, and store them again.

    onward warehouse verify
    onward warehouse rebuild
    """
)
app.add_typer(warehouse_app, name="warehouse")
Accept = Annotated[
    bool, typer.Option("--accept", help="First stop listing what was lost by now: you know of it.")
]
_LOOK_SECONDS = 0.3
_ANSWER_SECONDS = 60.0
"""Time limit for the running service to begin; a check under way is finished first."""
_SHOWN = 20


@warehouse_app.command()
def verify(
    accept: Accept = False, as_json: AsJson = False, file: ConfigFile = None, data_dir: DataDir = None
) -> None:
    """Compare the warehouse with the streams and with the record of its rows. Stores nothing.

    The running service does the work; while nothing runs, this command does. Every file is compared with its
    checksum. Exit code 1 if a row is missing, lost or in a damaged file, or a trajectory has no reward.

    onward warehouse verify
    onward warehouse verify --json
    """
    _run(load_settings(file, data_dir), restore=False, accept=accept, as_json=as_json)


@warehouse_app.command()
def rebuild(
    accept: Accept = False, as_json: AsJson = False, file: ConfigFile = None, data_dir: DataDir = None
) -> None:
    """Set damaged files aside and store every missing row again that a stream still holds.

    What an opt-out or a refusal kept out stays out. The service does this by itself at its start and hourly,
    but does not read every file then. Exit code 1 if rows are lost, or trajectories have no reward.

    onward warehouse rebuild
    onward warehouse rebuild --accept
    """
    _run(load_settings(file, data_dir), restore=True, accept=accept, as_json=as_json)


def _run(settings: Settings, *, restore: bool, accept: bool, as_json: bool) -> None:
    report, lost = run_async(_work(settings, restore, accept, as_json))
    is_whole = _is_whole(report, lost)
    if as_json:
        print_json(_document(report, lost) | {"whole": is_whole})
    else:
        _print(report, lost, is_whole)
    if not is_whole:
        raise typer.Exit(1)


async def _work(
    settings: Settings, restore: bool, accept: bool, as_json: bool
) -> tuple[RecoveryReport, dict[str, Lost]]:
    clock = SystemClock()
    async with host.at_rest(settings) as ctx:
        if ctx is not None:
            report = await _check_here(ctx, restore, accept, as_json)
        else:
            async with host.attached(settings) as (bus, _):
                request = await service.request_check(bus, clock, restore=restore, accept=accept)
                report = await _watch(bus, clock, request.run_id, as_json)
        objects = Objects.open(settings.objects_at)
        found = {table: await Inventory.listed(objects, table) for table in SHAPES}
    return report, {table: lost for table, lost in found.items() if lost.count}


async def _check_here(ctx: Context, restore: bool, accept: bool, as_json: bool) -> RecoveryReport:
    request = RecoveryRequest(
        run_id=new_id(), restore=restore, accept=accept, requested_at=utc_text(ctx.clock.now())
    )
    checking = asyncio.create_task(service.answer(ctx, request))
    try:
        await _watch(ctx.bus, ctx.clock, request.run_id, as_json, checking)
    finally:
        checking.cancel()
        await asyncio.wait({checking})
    return checking.result()


async def _watch(
    bus: Bus, clock: Clock, run_id: str, quiet: bool, work: asyncio.Task[RecoveryReport] | None = None
) -> RecoveryReport:
    """Shows the progress of a check until its report is there, or ``work`` has ended with an error."""
    console, until = Console(stderr=True), clock.monotonic() + _ANSWER_SECONDS
    with Bars(console, quiet=quiet or not console.is_terminal) as bars:
        bar = bars.add_bar("Check")
        while True:
            report = await read_document(bus, RecoveryReport)
            if work is not None and work.done():
                return work.result()
            if report is not None and report.run_id == run_id:
                until = clock.monotonic() + 10 * _ANSWER_SECONDS
                bar.update(report.done, total=report.total or None, note=report.table)
                if report.finished:
                    bar.finish()
                    return report
            elif report is not None and not report.finished:
                until = clock.monotonic() + _ANSWER_SECONDS
            if work is None and clock.monotonic() > until:
                raise BusError("Nobody checks the warehouse: start 'onward up', or 'onward run collector'.")
            await clock.sleep(_LOOK_SECONDS)


def _is_whole(report: RecoveryReport, lost: dict[str, Lost]) -> bool:
    results: list[dict[str, Any]] = list(report.tables.values())
    unstored = any(result["missing"] > result["restored"] for result in results)
    gone = any(result["lost_rows"] or result["lost_messages"] for result in results)
    damaged = not report.restore and any(result["damaged_parts"] for result in results)
    return not (unstored or gone or damaged or lost or report.without_reward)


def _document(report: RecoveryReport, lost: dict[str, Lost]) -> dict[str, Any]:
    return {
        "at": report.at,
        "restored": report.restore,
        "tables": report.tables,
        "without_reward": report.without_reward,
        "set_aside": report.detached,
        "lost": {table: {"rows": one.rows, "messages": one.messages} for table, one in lost.items()},
    }


def _print(report: RecoveryReport, lost: dict[str, Lost], is_whole: bool) -> None:
    table = Table("table", "missing", "stored again", "lost rows", "lost messages", "damaged parts")
    for name, result in report.tables.items():
        table.add_row(
            name,
            result["missing"],
            result["restored"],
            result["lost_rows"],
            result["lost_messages"],
            len(result["damaged_parts"]),
        )
    print_text(table)
    for name, one in lost.items():
        shown = [f"{key} ({day})" for key, day in list(one.rows.items())[:_SHOWN]]
        shown += [
            f"message {low}" if low == high else f"messages {low} to {high}"
            for low, high in one.messages[:_SHOWN]
        ]
        more = " … (all with --json)" if max(len(one.rows), len(one.messages)) > _SHOWN else ""
        print_text(f"Lost of {name}: {', '.join(shown)}{more}")
    if report.without_reward:
        print_text(f"{report.without_reward} trajectories have no reward: 'onward rescore' scores them.")
    if is_whole:
        typer.echo("Nothing is missing.")
    elif not report.restore and any(r["missing"] or r["damaged_parts"] for r in report.tables.values()):
        typer.echo(runnable("'onward warehouse rebuild' stores again what the streams hold."))
