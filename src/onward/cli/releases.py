"""``onward releases``: look at releases, and tell the one that is under way what to do.

``onward release abort|promote|hold|resume`` are the names of before 0.2: they work and say the new ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onward import host
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.release_tables import list_table, show_release
from onward.cli.tables import AsJson, print_json, say
from onward.clock import SystemClock
from onward.errors import NotFoundError
from onward.release.operator import command
from onward.release.record import ReleaseRecord, Releases
from onward.release.wording import what_happened

releases_app = Commands(
    help="""What was released and why not; what the release that is under way shall do.

    onward releases list
    onward releases show agent-zero-rl-v2
    onward releases hold
    """
)
app.add_typer(releases_app, name="releases")
Named = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Of the release or of its candidate. Default: the newest one."),
]
UnderWay = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Of the release or of its candidate. Default: the one under way."),
]
LEFT_OUT = frozenset({"evidence", "outbox"})
"""Fields of a record that are the releaser's own book-keeping."""


async def _records(file: Path | None, data_dir: Path | None) -> list[ReleaseRecord]:
    async with host.records(load_settings(file, data_dir)) as bus:
        return await Releases(bus.bucket("rl_releases"), bus.bucket("rl_models"), SystemClock()).all()


def _document(record: ReleaseRecord) -> dict[str, Any]:
    return {"sentence": what_happened(record), **record.model_dump(mode="json", exclude=set(LEFT_OUT))}


@releases_app.command(name="list")
def list_releases(file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show every release in a line, oldest first; also while nothing runs.

    onward releases list
    """
    records = run_async(_records(file, data_dir))
    if as_json:
        print_json([_document(record) for record in records])
    else:
        say(list_table(records))


@releases_app.command()
def show(
    name: Named = None, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show one release: why it ended, its validation, checks and evidence in numbers, its history.

    onward releases show
    onward releases show agent-zero-rl-v2 --json
    """
    record = _found(run_async(_records(file, data_dir)), name)
    if as_json:
        print_json(_document(record))
    else:
        show_release(record)


def _found(records: list[ReleaseRecord], name: str | None) -> ReleaseRecord:
    """The newest release that is called ``name``."""
    called = [record for record in records if name is None or record.is_called(name)]
    if not called:
        if name is None:
            raise NotFoundError("There is no release yet: the first one follows the first training job.")
        raise NotFoundError(
            f"There is no release {name!r}: expected the id of a release or of its candidate, as "
            f"'onward releases list' shows them."
        )
    return called[-1]


def _tell(what: str, release: str | None, file: Path | None, data_dir: Path | None) -> None:
    async def work() -> None:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, _):
            await command(bus, what, release, clock=SystemClock())

    run_async(work())
    typer.echo(f"The releaser was told: {what}. 'onward releases show' shows what came of it.")


@releases_app.command()
def abort(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Give all traffic back to the current model and end the release.

    onward releases abort
    """
    _tell("abort", release, file, data_dir)


@releases_app.command()
def promote(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Give the candidate nearly all traffic now, without waiting for the steps; the bake goes on.

    onward releases promote
    """
    _tell("promote", release, file, data_dir)


@releases_app.command()
def hold(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Stay at the present share until 'onward releases resume'. Gates go on watching.

    onward releases hold
    """
    _tell("hold", release, file, data_dir)


@releases_app.command()
def resume(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Let a held release go on.

    onward releases resume
    """
    _tell("resume", release, file, data_dir)


# The names of before.

release_app = Commands(
    help="""The former name of 'onward releases', which also lists and shows.

    onward releases --help
    """
)
app.add_typer(release_app, name="release", hidden=True)
Release = Annotated[
    str | None, typer.Option("--release", help="Its id, or its candidate's. Default: the one under way.")
]


def _former(name: str) -> None:
    """Register ``onward release NAME``."""

    def tell(release: Release = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
        words = f"'onward release {name}' is now 'onward releases {name}'"
        typer.echo(f"{words}: the old name goes with the next version.", err=True)
        _tell(name, release, file, data_dir)

    release_app.command(name=name, help=f"Now 'onward releases {name}'.\n\nonward releases {name}")(tell)


for _name in ("abort", "promote", "hold", "resume"):
    _former(_name)
