"""``onward datasets list|show|verify|rebuild|export``: data of jobs, its origin, and checks of it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from onward import host
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.exporting import Force, Out, check_format
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, facts, ident, number, print_json, print_text, say
from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import NotFoundError, TamperedError
from onward.export import snapshots as exporting
from onward.export import writers
from onward.training.data import snapshots
from onward.training.data.rebuilding import Rebuilt, rebuild
from onward.training.data.sources import Stores
from onward.warehouse import Objects
from onward.warehouse.client import connect

datasets_app = Commands(
    help="""Frozen datasets of jobs: where each row came from, and whether it is unchanged.

    onward datasets list
    onward datasets verify 3f0c3ce4
    onward datasets export 3f0c3ce4 --format parquet --out rows.parquet
    """
)
app.add_typer(datasets_app, name="datasets")

Id = Annotated[
    str, typer.Argument(metavar="ID", help="From the first column of 'list'; a unique prefix is enough.")
]
SHOWN = 20
"""Faults that are printed; --json prints all."""
_LETTERS = 12


@datasets_app.command(name="list")
def list_(
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 20,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the datasets of jobs, newest first.

    onward datasets list --limit 5
    """
    found = run_async(_all(load_settings(file, data_dir)))[:limit]
    if as_json:
        print_json(found)
        return
    table = Table(
        ident("dataset"), "job", "source", "sampling", number("rows"), "requested",
        empty="no job has frozen a dataset yet",
    )  # fmt: skip
    for one in found:
        table.add_row(
            one["id"][:_LETTERS],
            one["job_id"],
            one["source"],
            one["sampling"],
            one["rows"],
            one["requested_at"],
        )
    print_text(table)


@datasets_app.command()
def show(dataset: Id, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show where a dataset came from: source, filters, sampling, redaction rules and exclusions.

    --json prints ids and hashes of every row as well.

    onward datasets show 3f0c3ce4
    """
    name, description = run_async(_one(load_settings(file, data_dir), dataset))
    if as_json:
        print_json({"id": name, **description})
        return
    shown = {key: value for key, value in description.items() if key not in ("members", "format")}
    print_text(facts({"id": name, **shown}))


@datasets_app.command()
def verify(dataset: Id, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Compare the stored rows with their hashes. Exit code 1 if a row was changed, added or lost.

    onward datasets verify 3f0c3ce4
    """

    async def checked() -> tuple[str, list[str], int]:
        settings = load_settings(file, data_dir)
        objects = _store(settings)
        name = await snapshots.find(objects, dataset)
        description = await snapshots.load(objects, name)
        return name, await snapshots.verify(objects, name), description["samples"]

    name, faults, count = run_async(checked())
    _report(name, faults, f"All {count:,} rows of {name[:_LETTERS]} are as they were stored.", as_json)


@datasets_app.command(name="rebuild")
def rebuild_(dataset: Id, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Rebuild the rows from the source, and compare. If all are equal, lost or damaged ones are replaced.

    Needs the stream, warehouse or files of the dataset; works beside a running service and while nothing
    runs. Exit code 1 if a row cannot be made again.

    onward datasets rebuild 3f0c3ce4
    """
    name, made, restored = run_async(_rebuilt(load_settings(file, data_dir), dataset))
    count = made.rows.count(b"\n")
    words = f"All {count:,} rows of {name[:_LETTERS]} were made again and are equal."
    _report(name, made.faults, words + (" They were stored again." if restored else ""), as_json)


@datasets_app.command()
def export(
    dataset: Id,
    *,
    out: Out,
    format: Annotated[
        str,
        typer.Option(help="; ".join(f"{name}: {words}" for name, words in exporting.FORMATS.items()) + "."),
    ] = "jsonl",
    force: Force = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Export the rows of a dataset to a file or folder, once they are verified.

    onward datasets export 3f0c3ce4 --out rows.jsonl
    onward datasets export 3f0c3ce4 --format datasets --out rows
    """
    form = check_format(format, exporting.FORMATS)
    exporting.check_extra(form)
    writers.check(out, force=force, folder=form == "datasets")

    async def exported() -> tuple[str, int]:
        objects = _store(load_settings(file, data_dir))
        name = await snapshots.find(objects, dataset)
        return name, await exporting.export(objects, name, form, out)

    name, count = run_async(exported())
    if as_json:
        print_json({"id": name, "out": str(out), "written": count})
    else:
        print_text(f"Wrote {count:,} rows of {name[:_LETTERS]} to {out}.")


def _report(name: str, faults: list[str], words: str, as_json: bool) -> None:
    """Prints the result of a check. Exits with code 1 if there are faults."""
    if as_json:
        print_json({"id": name, "whole": not faults, "faults": faults})
    elif faults:
        for fault in faults[:SHOWN]:
            say(fault)
        if len(faults) > SHOWN:
            say(f"… and {len(faults) - SHOWN:,} more (all with --json).")
    else:
        say(words)
    if faults:
        raise typer.Exit(1)


async def _all(settings: Settings) -> list[dict[str, Any]]:
    objects = _store(settings)
    found: list[dict[str, Any]] = []
    for name in await snapshots.ids(objects):
        try:
            one = await snapshots.load(objects, name)
        except TamperedError:
            found.append(_summary(name, {}))
        else:
            found.append(_summary(name, one))
    return sorted(found, key=lambda one: (one["requested_at"], one["id"]), reverse=True)


def _summary(name: str, one: snapshots.Description) -> dict[str, Any]:
    """Returns the facts of a list; a description that was changed shows no more than its id."""
    return {
        "id": name,
        "job_id": one.get("job_id", "changed: 'verify' says how"),
        "source": one.get("dataset", {}).get("source", "-"),
        "sampling": one.get("sampling", {}).get("strategy", "-"),
        "rows": one.get("samples", 0),
        "requested_at": one.get("requested_at", ""),
    }


async def _one(settings: Settings, prefix: str) -> tuple[str, snapshots.Description]:
    objects = _store(settings)
    name = await snapshots.find(objects, prefix)
    return name, await snapshots.load(objects, name)


async def _rebuilt(settings: Settings, prefix: str) -> tuple[str, Rebuilt, bool]:
    """Returns the id, the rows made again, and whether they were stored again."""
    name, description = await _one(settings, prefix)
    async with _stores(settings) as stores:
        made = await rebuild(stores, description)
    objects = _store(settings)
    equal = not made.faults and hashlib.sha256(made.rows).hexdigest() == description["rows_sha256"]
    if not equal or not await snapshots.verify(objects, name):
        return name, made, False
    await snapshots.put_rows_back(objects, description, made.rows)
    return name, made, True


@asynccontextmanager
async def _stores(settings: Settings) -> AsyncIterator[Stores]:
    """Opens what a source reads, beside a running service or while nothing runs."""
    async with host.at_rest(settings) as ctx:
        if ctx is not None:
            yield Stores.of(ctx)
            return
        async with host.attached(settings) as (bus, _):
            warehouse = await connect(settings)
            try:
                yield Stores(settings, bus, warehouse, Objects.open(settings.objects_at), SystemClock())
            finally:
                await warehouse.close()


def _store(settings: Settings) -> Objects:
    """Opens the store of datasets. Raises NotFoundError instead of making a folder where nothing ever ran."""
    place = settings.datasets_at
    if "://" not in place and not settings.data_dir.is_dir():
        raise NotFoundError(f"There is no data folder {settings.data_dir}: name it with --dir.")
    return Objects.open(place)
