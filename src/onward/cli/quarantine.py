"""``onward quarantine list|show|retry|drop``: messages held encrypted because they could not be redacted."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from onward import host
from onward.capture.judge import Fate
from onward.capture.policy import judge_of
from onward.capture.quarantine import Held, Keys, Quarantine
from onward.capture.retry import Retried, discard, retry
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
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
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
_RESULTS = {
    Fate.STORE: "published clean",
    Fate.BURY: "clean, but not usable: now a dead letter",
    Fate.DROP: "dropped: its session, agent or user opted out",
    Fate.HOLD: "still held",
}


def _quarantine(settings: Settings) -> Quarantine:
    if settings.objects.models_url is None and not settings.data_dir.is_dir():
        raise ConfigError(f"There is no data folder {settings.data_dir}: name it with --dir.")
    return Quarantine(Objects.open(settings.objects_at), Keys.of(settings), SystemClock())


@quarantine_app.command(name="list")
def list_held(
    file: ConfigFile = None,
    data_dir: DataDir = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """Show what is held and why, by its place in the stream. Needs no running service.

    'show ID' says the rest: class of the error, subject, trajectory.

    onward quarantine list --limit 20
    """

    async def work() -> list[Held]:
        return await _quarantine(load_settings(file, data_dir)).held(limit)

    found = run_async(work())
    if as_json:
        typer.echo(json.dumps([asdict(held) for held in found], indent=1))
        return
    if not found:
        typer.echo("Nothing is held.")
        return
    table = Table()  # no wider than 80 columns, so that ids and times stay whole
    for name in ("id", "since", "reason", "bytes"):
        table.add_column(name, justify="right" if name == "bytes" else "left", no_wrap=True)
    for held in found:
        table.add_row(held.held_id, _to_seconds(held.since), held.reason, str(held.size))
    Console().print(table)


@quarantine_app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="ID", help="From the first column of 'list'.")],
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Print the facts of one held message as JSON. Its content is never printed.

    onward quarantine show 12-4f1c9a07
    """

    async def work() -> Held:
        return await _quarantine(load_settings(file, data_dir)).facts(name)

    typer.echo(json.dumps(asdict(run_async(work())), indent=1))


@quarantine_app.command(name="retry")
def retry_held(
    names: Names = None, every: All = False, file: ConfigFile = None, data_dir: DataDir = None
) -> None:
    """Redact again with the present rules, in memory, and publish what is clean now.

    Exit code 1 when something is still held.

    onward quarantine retry --all
    """

    async def work() -> int:
        settings = load_settings(file, data_dir)
        judge, clock, left = judge_of(settings), SystemClock(), 0
        async with host.attached(settings) as (bus, _):
            quarantine = _quarantine(settings)
            for name in await _chosen(quarantine, names, every):
                try:
                    result = await retry(bus, quarantine, name, clock, judge)
                except OnwardError as error:
                    if not every:
                        raise
                    typer.echo(f"{name}: {error}", err=True)
                    left += 1
                    continue
                typer.echo(_sentence(result))
                left += result.fate is Fate.HOLD
        return left

    if run_async(work()):
        raise typer.Exit(1)


@quarantine_app.command()
def drop(
    names: Names = None,
    every: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Remove held messages for good: what they recorded is then lost. The audit stream records who did it.

    onward quarantine drop --all --yes
    """

    async def work() -> None:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, _):
            quarantine, clock = _quarantine(settings), SystemClock()
            chosen = await _chosen(quarantine, names, every)
            if not yes:
                _confirm(len(chosen))
            for name in chosen:
                await discard(bus, quarantine, name, clock)
                typer.echo(f"{name}: dropped for good.")

    run_async(work())


def _to_seconds(since: str) -> str:
    return since[:19].replace("T", " ") + "Z"


async def _chosen(quarantine: Quarantine, names: list[str] | None, every: bool) -> list[str]:
    if every == bool(names):
        raise ConfigError("Give the ids of held messages ('onward quarantine list'), or --all.")
    return [held.held_id for held in await quarantine.held()] if every else list(names or ())


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("Nobody can be asked here: give --yes to drop held messages for good.")
    typer.confirm(f"Drop {count} held message{'s' if count != 1 else ''} for good?", abort=True)


def _sentence(result: Retried) -> str:
    reason = f" ({result.reason})" if result.reason else ""
    return f"{result.held_id}: {_RESULTS[result.fate]}{reason}."
