"""``onward releases``: shows releases, and sends commands to the one that is under way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from onward import host
from onward.cli import ConfigFile, DataDir, app, load_settings, renamed, run_async
from onward.cli.help import Commands
from onward.cli.release_tables import list_table, show_release
from onward.cli.tables import AsJson, print_json, say
from onward.clock import SystemClock
from onward.contracts.buckets import COMMANDS
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
"""Fields of a record that only the releaser uses."""


async def _records(file: Path | None, data_dir: Path | None) -> list[ReleaseRecord]:
    async with host.records(load_settings(file, data_dir)) as bus:
        return await Releases(bus.bucket("rl_releases"), bus.bucket("rl_models"), SystemClock()).all()


def _document(record: ReleaseRecord) -> dict[str, Any]:
    return {"sentence": what_happened(record), **record.model_dump(mode="json", exclude=set(LEFT_OUT))}


@releases_app.command(name="list")
def list_releases(
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 20,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show releases, newest first, each with the reason for its end. Works without a running loop.

    onward releases list
    onward releases list --limit 5 --json
    """
    records = run_async(_records(file, data_dir))[::-1][:limit]
    if as_json:
        print_json([_document(record) for record in records])
    else:
        say(list_table(records))


@releases_app.command()
def show(
    name: Named = None, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show one release: the reason for its end, its validation, checks and evidence in numbers, its history.

    onward releases show
    onward releases show agent-zero-rl-v2 --json
    """
    *others, record = _found(run_async(_records(file, data_dir)), name)
    if as_json:
        print_json(_document(record))
    else:
        show_release(record)
        for other in others if name else ():
            say("", f"Before it, release {other.release_id}: {what_happened(other)}")


def _found(records: list[ReleaseRecord], name: str | None) -> list[ReleaseRecord]:
    """Returns the releases of that name, oldest first: a model may be released and later rolled back."""
    called = [record for record in records if name is None or record.is_called(name)]
    if not called:
        if name is None:
            raise NotFoundError("There is no release yet: the first one follows the first training job.")
        raise NotFoundError(
            f"There is no release {name!r}: expected the id of a release or of its candidate, as "
            f"'onward releases list' shows them."
        )
    return called


def _tell(what: str, release: str | None, file: Path | None, data_dir: Path | None) -> None:
    async def work() -> None:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, _):
            await command(bus, what, release, clock=SystemClock())

    run_async(work())
    say(f"Sent to the releaser: {what}. 'onward releases show' shows what came of it.")


@releases_app.command()
def abort(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """End the release and send all traffic to the current model again.

    onward releases abort
    """
    _tell("abort", release, file, data_dir)


@releases_app.command()
def promote(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Send nearly all traffic to the candidate now, without waiting for the steps. The bake continues.

    onward releases promote
    """
    _tell("promote", release, file, data_dir)


@releases_app.command()
def hold(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Stay at the present share until 'onward releases resume'. The gates stay active.

    onward releases hold
    """
    _tell("hold", release, file, data_dir)


@releases_app.command()
def resume(release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Resume a held release.

    onward releases resume
    """
    _tell("resume", release, file, data_dir)


# Old names.

release_app = Commands(
    help="""The old name of 'onward releases', which also lists and shows.

    onward releases list
    """
)
app.add_typer(release_app, name="release", hidden=True)
OldOption = Annotated[
    str | None, typer.Option("--release", help="Its id, or its candidate's. Default: the one under way.")
]


def _with_option(name: str) -> Callable[..., None]:
    """Builds the old form of the command ``name``, which takes the release as an option."""

    def tell(release: OldOption = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
        _tell(name, release, file, data_dir)

    return tell


for _name in COMMANDS:
    renamed.keep(release_app, f"release {_name}", _with_option(_name))
