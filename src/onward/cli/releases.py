"""``onward releases``: shows releases, and sends commands to the one that is under way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from onward import host
from onward.cli import ConfigFile, DataDir, app, load_settings, renamed, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, print_json, print_text
from onward.cli.release_tables import list_table, show_release
from onward.clock import SystemClock
from onward.contracts.buckets import COMMANDS
from onward.errors import NotFoundError
from onward.release.commands import ANSWERS, send_command
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
        return await Releases(bus, SystemClock()).all()


def load_records(file: Path | None, data_dir: Path | None) -> list[ReleaseRecord]:
    """Returns every release that can be read, oldest first."""
    return run_async(_records(file, data_dir))


def _document(record: ReleaseRecord) -> dict[str, Any]:
    return {"sentence": what_happened(record), **record.model_dump(mode="json", exclude=set(LEFT_OUT))}


@releases_app.command(name="list")
def list_releases(
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 20,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show releases, newest first, each with the reason for its end. Works without a running service.

    onward releases list
    onward releases list --limit 5 --json
    """
    records = run_async(_records(file, data_dir))[::-1][:limit]
    if as_json:
        print_json([_document(record) for record in records])
    else:
        print_text(list_table(records))


@releases_app.command()
def show(
    name: Named = None, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show one release: the reason for its end, its validation, checks and evidence in numbers, its history.

    onward releases show
    onward releases show agent-zero-rl-v2 --json
    """
    *others, record = found_by_name(run_async(_records(file, data_dir)), name)
    if as_json:
        print_json(_document(record))
    else:
        show_release(record)
        for other in others if name else ():
            print_text("", f"Before it, release {other.release_id}: {what_happened(other)}")


def found_by_name(records: list[ReleaseRecord], name: str | None) -> list[ReleaseRecord]:
    """Returns the releases of that name, oldest first: a model may be released and later rolled back."""
    called = [record for record in records if name is None or record.has_name(name)]
    if not called:
        if name is None:
            raise NotFoundError("There is no release yet: the first one follows the first training job.")
        raise NotFoundError(
            f"There is no release {name!r}: expected the id of a release or of its candidate, as "
            f"'onward releases list' shows them."
        )
    return called


def _tell(
    what: str,
    release: str | None,
    file: Path | None,
    data_dir: Path | None,
    *,
    by: str | None = None,
    reason: str | None = None,
) -> None:
    async def work() -> None:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, _):
            await send_command(bus, what, release, clock=SystemClock(), by=by, reason=reason)

    run_async(work())
    print_text(f"Sent to the releaser: {what}. 'onward releases show' shows what came of it.")


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


By = Annotated[str, typer.Option("--by", help="Who decides.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Why.", show_default=False)]


@releases_app.command()
def approve(
    by: By, reason: Reason, release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None
) -> None:
    """Approve the release that waits: its first step begins. Name and reason are recorded.

    onward releases approve agent-zero-rl-v2 --by ada --reason "read the report"
    """
    _tell("approve", release, file, data_dir, by=by, reason=reason)


@releases_app.command()
def refuse(
    by: By, reason: Reason, release: UnderWay = None, file: ConfigFile = None, data_dir: DataDir = None
) -> None:
    """Refuse the release that waits: the candidate gets no traffic. Name and reason are recorded.

    onward releases refuse agent-zero-rl-v2 --by ada --reason "freeze until Monday"
    """
    _tell("refuse", release, file, data_dir, by=by, reason=reason)


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


release_app.command(name="approve")(approve)
release_app.command(name="refuse")(refuse)
for _name in (name for name in COMMANDS if name not in ANSWERS):
    renamed.keep_old_name(release_app, f"release {_name}", _with_option(_name))
