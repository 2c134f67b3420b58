"""``onward streams plan|apply``: differences between the declared and the actual streams."""

from __future__ import annotations

from dataclasses import asdict

import typer

from onward import host
from onward.bus import Bus, streams
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, print_json, print_text
from onward.config import Settings

streams_app = Commands(
    help="""JetStream streams: see and migrate differences.

    onward streams plan
    onward streams apply
    """
)
app.add_typer(streams_app, name="streams")


async def _with_bus(settings: Settings, apply: bool, as_json: bool) -> None:
    async with host.attached(settings) as (bus, _):
        await _work(settings, bus, apply, as_json)


async def _work(settings: Settings, bus: Bus, apply: bool, as_json: bool) -> None:
    volume = settings.streams
    specs = streams.sized(volume.expected_gb_per_month, volume.trajectories_bytes)
    found = await streams.plan(bus, specs)
    if as_json:
        print_json([asdict(one) for one in found])
    elif found:
        table = Table("stream", "field", "declared", "on the server", "can lose data", "why", "migration")
        for one in found:
            table.add_row(
                one.stream, one.field, one.declared, one.server, one.loses_data, one.why, one.migration
            )
        print_text(table)
    else:
        typer.echo("Every stream is as declared.")
    if apply and found:
        await streams.apply(bus, found, specs)
        typer.echo("Applied. No message was removed.", err=as_json)


@streams_app.command()
def plan(file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show how the server's streams differ from what Onward declares. Changes nothing.

    onward streams plan
    """
    run_async(_with_bus(load_settings(file, data_dir), False, as_json))


@streams_app.command()
def apply(file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Migrate the streams without losing a message.

    onward streams apply
    """
    run_async(_with_bus(load_settings(file, data_dir), True, as_json))
