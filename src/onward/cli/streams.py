"""``onward streams plan|apply``: the difference between declared and real streams."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from onward import host
from onward.bus import Bus, streams
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.clock import SystemClock
from onward.config import Settings

streams_app = Commands(
    help="""JetStream streams: see and migrate differences.

    onward streams plan
    onward streams apply
    """
)
app.add_typer(streams_app, name="streams")


async def _with_bus(settings: Settings, apply: bool) -> None:
    if settings.nats.url is None:
        async with host.attached(settings) as (bus, _):
            await _work(bus, apply)
        return
    token = settings.nats.token.get_secret_value() if settings.nats.token else None
    bus = await Bus.connect(settings.nats.url, token=token, clock=SystemClock(), name="onward-cli")
    try:
        await _work(bus, apply)
    finally:
        await bus.close()


async def _work(bus: Bus, apply: bool) -> None:
    found = await streams.plan(bus)
    if not found:
        typer.echo("Every stream is as declared.")
        return
    table = Table()
    for name in ("stream", "field", "declared", "on the server", "can lose data", "why", "migration"):
        table.add_column(name)
    for one in found:
        shown = (one.stream, one.field, one.declared, one.server, one.loses_data, one.why, one.migration)
        table.add_row(*(_text(value) for value in shown))
    Console().print(table)
    if apply:
        await streams.apply(bus, found)
        typer.echo("Applied. No message was removed.")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


@streams_app.command()
def plan(file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Show how the server's streams differ from what Onward declares. Changes nothing.

    onward streams plan
    """
    run_async(_with_bus(load_settings(file, data_dir), False))


@streams_app.command()
def apply(file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Migrate the streams without losing a message.

    onward streams apply
    """
    run_async(_with_bus(load_settings(file, data_dir), True))
