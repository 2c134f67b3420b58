"""``onward quarantine list|show|retry|drop``: messages stored encrypted because redaction failed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from onward import host
from onward.capture.collecting.inspection import Fate
from onward.capture.collecting.quarantine import HeldMessage, Quarantine, QuarantineKeys
from onward.capture.collecting.quarantine_retry import RetryResult, discard, retry
from onward.capture.make_redactor import inspector_of
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.choosing import Yes, check_choice, confirm_drop
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, facts, ident, number, print_json, print_text, say
from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import ConfigError, OnwardError
from onward.warehouse import Objects

quarantine_app = Commands(
    help="""Held bodies: encrypted since they could not be redacted. Look, try again, or drop.

    onward quarantine list
    onward quarantine retry --all
    """
)
app.add_typer(quarantine_app, name="quarantine")
Names = Annotated[list[str] | None, typer.Argument(metavar="ID", help="From the first column of 'list'.")]
All = Annotated[bool, typer.Option("--all", help="Everything that is held.")]
_RESULTS = {
    Fate.STORE: "published clean",
    Fate.DEAD_LETTER: "clean, but not usable: now a dead letter",
    Fate.DROP: "dropped: its session, agent or user opted out",
    Fate.HOLD: "still held",
}


def _quarantine(settings: Settings) -> Quarantine:
    if settings.objects.models_url is None and not settings.data_dir.is_dir():
        raise ConfigError(f"There is no data folder {settings.data_dir}: name it with --dir.")
    return Quarantine(
        Objects.open(settings.objects_at), QuarantineKeys.from_settings(settings), SystemClock()
    )


@quarantine_app.command(name="list")
def list_held(
    file: ConfigFile = None,
    data_dir: DataDir = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """Show what is held and why, by its place in the stream. Needs no running service.

    'show ID' prints the rest: class of the error, subject, trajectory.

    onward quarantine list --limit 20
    """

    async def work() -> list[HeldMessage]:
        return await _quarantine(load_settings(file, data_dir)).list_held(limit)

    found = run_async(work())
    if as_json:
        print_json([asdict(held) for held in found])
        return
    table = Table(ident("id"), ident("since"), "reason", number("bytes"), empty="nothing is held")
    for held in found:
        table.add_row(held.held_id, _to_seconds(held.since), held.reason, held.size)
    print_text(table)


@quarantine_app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="ID", help="From the first column of 'list'.")],
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the facts of one held message. Its content is never printed.

    onward quarantine show 12-4f1c9a07
    """

    async def work() -> HeldMessage:
        return await _quarantine(load_settings(file, data_dir)).facts(name)

    found = asdict(run_async(work()))
    if as_json:
        print_json(found)
    else:
        print_text(facts(found))


@quarantine_app.command(name="retry")
def retry_held(
    names: Names = None, every: All = False, file: ConfigFile = None, data_dir: DataDir = None
) -> None:
    """Redact again with the present rules, in memory, and publish what is now clean.

    Exit code 1 when something is still held.

    onward quarantine retry --all
    """

    async def work() -> int:
        settings = load_settings(file, data_dir)
        inspector, clock, left = inspector_of(settings), SystemClock(), 0
        async with host.attached(settings) as (bus, _):
            quarantine = _quarantine(settings)
            for name in await _chosen(quarantine, names, every):
                try:
                    result = await retry(bus, quarantine, name, clock, inspector)
                except OnwardError as error:
                    if not every:
                        raise
                    say(f"{name}: {error}", err=True)
                    left += 1
                    continue
                say(_sentence(result))
                left += result.fate is Fate.HOLD
        return left

    if run_async(work()):
        raise typer.Exit(1)


@quarantine_app.command()
def drop(
    names: Names = None,
    every: All = False,
    yes: Yes = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Remove held messages for good: their content is then lost. The audit stream records who did it.

    onward quarantine drop --all --yes
    """

    async def work() -> None:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, _):
            quarantine, clock = _quarantine(settings), SystemClock()
            chosen = await _chosen(quarantine, names, every)
            if not yes:
                confirm_drop(len(chosen), "held message")
            for name in chosen:
                await discard(bus, quarantine, name, clock)
                say(f"{name}: dropped for good.")

    run_async(work())


def _to_seconds(since: str) -> str:
    return since[:19].replace("T", " ") + "Z"


async def _chosen(quarantine: Quarantine, names: list[str] | None, every: bool) -> list[str]:
    check_choice(names, every, "onward quarantine list")
    return [held.held_id for held in await quarantine.list_held()] if every else list(names or ())


def _sentence(result: RetryResult) -> str:
    reason = f" ({result.reason})" if result.reason else ""
    return f"{result.held_id}: {_RESULTS[result.fate]}{reason}."
