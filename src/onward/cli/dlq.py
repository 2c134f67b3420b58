"""``onward dlq list|show|replay``: messages that could not be processed, with the reason."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from onward import host
from onward.bus import deadletter
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands

dlq_app = Commands(
    help="""Dead letters: look, and send again what has become good.

    onward dlq list
    onward dlq show 3
    onward dlq replay 3
    """
)
app.add_typer(dlq_app, name="dlq")
Sequence = Annotated[
    int, typer.Argument(metavar="NUMBER", help="From the first column of 'onward dlq list'.")
]


@dlq_app.command(name="list")
def list_letters(
    file: ConfigFile = None,
    data_dir: DataDir = None,
    limit: Annotated[int, typer.Option(help="At most so many.")] = 100,
    after: Annotated[int, typer.Option(help="Only those with a greater number.")] = 0,
) -> None:
    """Show dead letters with their reasons, oldest first.

    onward dlq list --limit 20
    """

    async def work() -> None:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, _):
            table = Table()
            for name in ("number", "stream", "reason", "detail", "bytes"):
                table.add_column(name)
            for letter in await deadletter.dead_letters(bus, limit=limit, after=after):
                table.add_row(
                    str(letter.sequence), letter.stream, letter.reason, letter.detail, str(letter.size)
                )
            Console().print(table)

    run_async(work())


@dlq_app.command()
def show(sequence: Sequence, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Print one dead letter: reason, headers, body.

    onward dlq show 3
    """

    async def work() -> None:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, _):
            letter = await deadletter.show(bus, sequence)
            typer.echo(f"stream: {letter.stream}\nreason: {letter.reason}\ndetail: {letter.detail}")
            typer.echo(letter.body.decode("utf-8", "replace"))

    run_async(work())


@dlq_app.command()
def replay(sequence: Sequence, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Publish a dead letter again to where it came from, and take it off the list.

    onward dlq replay 3
    """

    async def work() -> None:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, _):
            await deadletter.replay(bus, sequence)
            typer.echo(f"Dead letter {sequence} was published again.")

    run_async(work())
