"""``onward dlq list|show|retry|drop``: messages that could not be processed, with the reason."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Annotated, Any

import typer

from onward import host
from onward.bus import Bus, deadletter
from onward.cli import ConfigFile, DataDir, app, load_settings, renamed, run_async
from onward.cli.choosing import Yes, check_choice, confirm_drop
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, number, print_json, print_text, say
from onward.clock import SystemClock
from onward.errors import OnwardError
from onward.telemetry import audit

dlq_app = Commands(
    help="""Dead letters: messages that could not be processed. Look, send again, or drop.

    onward dlq list
    onward dlq show 3
    onward dlq retry 3
    """
)
app.add_typer(dlq_app, name="dlq")
_NUMBER = "From the first column of 'onward dlq list'."
Number = Annotated[int, typer.Argument(metavar="NUMBER", help=_NUMBER)]
Numbers = Annotated[list[int] | None, typer.Argument(metavar="NUMBER", help=_NUMBER)]
All = Annotated[bool, typer.Option("--all", help="Every dead letter.")]
_MOST = 1_000_000


@dlq_app.command(name="list")
def list_letters(
    file: ConfigFile = None,
    data_dir: DataDir = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 100,
    after: Annotated[int, typer.Option(help="Only those with a greater number.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show dead letters with their reasons, oldest first.

    onward dlq list --limit 20
    """

    async def work() -> list[deadletter.DeadLetterRecord]:
        async with host.attached(load_settings(file, data_dir)) as (bus, _):
            return await deadletter.dead_letters(bus, limit=limit, after=after)

    found = run_async(work())
    if as_json:
        print_json([_facts(letter) for letter in found])
        return
    table = Table(number("number"), "stream", "reason", "detail", number("bytes"), empty="no dead letters")
    for letter in found:
        table.add_row(letter.sequence, letter.stream, letter.reason, letter.detail, letter.size)
    print_text(table)


@dlq_app.command()
def show(
    sequence: Number, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Print one dead letter: reason, headers, body.

    onward dlq show 3
    """

    async def work() -> deadletter.DeadLetterRecord:
        async with host.attached(load_settings(file, data_dir)) as (bus, _):
            return await deadletter.read_one(bus, sequence)

    letter = run_async(work())
    if as_json:
        print_json({**_facts(letter), "headers": letter.headers, **_body(letter.body)})
        return
    print_text(f"stream: {letter.stream}", f"reason: {letter.reason}", f"detail: {letter.detail}")
    for name, value in letter.headers.items():
        print_text(f"header {name}: {value}")
    say(letter.body.decode("utf-8", "replace").removesuffix("\n"))


@dlq_app.command()
def retry(
    numbers: Numbers = None, every: All = False, file: ConfigFile = None, data_dir: DataDir = None
) -> None:
    """Publish dead letters again to their original subjects, and remove them from the list.

    onward dlq retry 3
    """

    async def work() -> int:
        failed = 0
        async with host.attached(load_settings(file, data_dir)) as (bus, _):
            for one in await _chosen(bus, numbers, every):
                try:
                    await deadletter.replay(bus, one)
                    say(f"Dead letter {one} was published again.")
                except OnwardError as error:
                    if not every:
                        raise
                    say(f"{one}: {error}", err=True)
                    failed += 1
        return failed

    if run_async(work()):
        raise typer.Exit(1)


@dlq_app.command()
def drop(
    numbers: Numbers = None,
    every: All = False,
    yes: Yes = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Remove dead letters for good. The audit stream records who did it.

    onward dlq drop 3 --yes
    """

    async def work() -> None:
        clock = SystemClock()
        async with host.attached(load_settings(file, data_dir)) as (bus, _):
            chosen = [await deadletter.read_one(bus, one) for one in await _chosen(bus, numbers, every)]
            if not yes:
                confirm_drop(len(chosen), "dead letter")
            for letter in chosen:
                await audit.record(bus, clock, "dlq.drop", **_facts(letter), result="dropped")
                await deadletter.drop(bus, letter.sequence)
                say(f"Dead letter {letter.sequence} was dropped for good.")

    run_async(work())


renamed.keep_old_name(dlq_app, "dlq replay", retry)


async def _chosen(bus: Bus, numbers: list[int] | None, every: bool) -> list[int]:
    check_choice(numbers, every, "onward dlq list")
    if not every:
        return list(numbers or ())
    return [letter.sequence for letter in await deadletter.dead_letters(bus, limit=_MOST)]


def _facts(letter: deadletter.DeadLetterRecord) -> dict[str, Any]:
    """Returns all fields except headers and body."""
    return {name: value for name, value in asdict(letter).items() if name not in ("headers", "body")}


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
