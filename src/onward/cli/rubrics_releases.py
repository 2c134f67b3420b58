"""``onward rubrics releases|promote|rollback``: versions of the rubric writer, and which one is released."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli import ConfigFile, DataDir, load_settings, run_async
from onward.cli.output import AsJson, Table, ident, number, print_json, print_text
from onward.cli.rubrics import rubrics
from onward.errors import ConfigError, ConflictError

if TYPE_CHECKING:  # what reads a record is loaded where it is used: most commands of rubrics need none
    from onward.bus import Bus
    from onward.config import Settings
    from onward.contracts.buckets import ReleasedWriter
    from onward.rubrics.writers import NamedWriter
    from onward.training.writers import WriterFiles, Writers

Reason = Annotated[str, typer.Option("--reason", help="Why, in your words; the record keeps it.")]


@rubrics.command()
def releases(
    limit: Annotated[int, typer.Option(help="At most this many, the newest.", min=1)] = 20,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the versions of the rubric writer, newest first, each with its state and its evidence.

    onward rubrics releases

    Works without a running service. --json has every figure of the evidence, and every change of what is
    released.
    """
    from onward.training.writers.record import state_of

    settings = load_settings(file, data_dir)

    async def work() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        async with record_of(settings) as (_, writers):
            pointer, found = await writers.released(), await writers.all()
        rows = [{**one.model_dump(mode="json"), "state": state_of(one, pointer)} for one in found[::-1]]
        return rows, [] if pointer is None else [one.model_dump(mode="json") for one in pointer.changes]

    rows, changes = run_async(work())
    if as_json:
        print_json({"writers": rows[:limit], "changes": changes})
        return
    table = Table(
        ident("version"), "state", ident("job"), number("skill"), number("against the released one"),
        number("invalid"), number("degenerate"),
        empty="no rubric writer was trained by a job or added yet: docs/rubrics-training.md shows how",
    )  # fmt: skip
    for row in rows[:limit]:
        found = row["evidence"]
        table.add_row(
            row["version"], row["state"], row["job_id"], _number(found.get("skill")),
            _interval(found.get("versus_released")), _share(found.get("invalid")),
            _share(found.get("degenerate")),
        )  # fmt: skip
    print_text(table)
    for row in rows[:limit]:
        print_text(f"{row['version']}: {row['why']}")
    if changes:
        last = changes[-1]
        back = last["kind"] == "rolled back"
        what = f"Rolled back to {last['version']}" if back else f"{last['version']} was {last['kind']}"
        print_text(f"{what} by {last['by']} at {last['at']}: {last['why']}")


@rubrics.command()
def promote(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="From the first column of 'releases'.")],
    reason: Reason,
    force: Annotated[
        bool,
        typer.Option("--force", help="Release one that did not pass, or passed against another."),
    ] = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Promote a version to the released rubric writer. Its files are checked; name and reason are recorded.

    onward rubrics promote rubric-writer-v3 --reason "read its report"

    A running service scores the next trajectory with it. Scores that exist stay as they are.
    """
    from onward.telemetry.audit import current_user
    from onward.training.writers.record import RELEASED, WAS_RELEASED, state_of

    settings, why = load_settings(file, data_dir), _reason(reason)

    async def work() -> str:
        async with record_of(settings) as (_, writers):
            found, pointer = await writers.version(version), await writers.released()
            state, expected = state_of(found, pointer), None if pointer is None else pointer.version
            if state == RELEASED:
                return f"{version} is released already."
            if not found.passed and not force:
                raise ConflictError(
                    f"{version} did not pass its validation: {found.why} Give --force to release it all the "
                    f"same."
                )
            other = found.evidence.get("released")
            if state not in WAS_RELEASED and other != expected and not force:
                raise ConflictError(
                    f"{version} passed against {other or 'its warm start'}, and {expected or 'none'} is "
                    f"released now: look at 'onward rubrics compare --a {version} --b {expected or other}', "
                    f"then give --force."
                )
            await _files(settings).fetch(found)
            await writers.release(found, kind="promoted", expected=expected, by=current_user(), why=why)
            return f"{version} is the released rubric writer now, in place of {expected or 'none'}."

    print_text(run_async(work()))


@rubrics.command()
def rollback(reason: Reason, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Roll back to the rubric writer that was released before, at once. Its files are checked first.

    onward rubrics rollback --reason "it favours long answers"
    """
    from onward.telemetry.audit import current_user

    settings, why = load_settings(file, data_dir), _reason(reason)

    async def work() -> str:
        async with record_of(settings) as (_, writers):
            pointer, before = await writers.target_of_rollback()
            await _files(settings).fetch(before)
            await writers.roll_back(pointer.version, before, by=current_user(), why=why)
            return f"{before.version} is the released rubric writer again, in place of {pointer.version}."

    print_text(run_async(work()))


def open_named(name: str, file: Path | None, data_dir: Path | None) -> NamedWriter:
    """Returns a writer by one of ``writers.FORMS``, by ``released``, or by a version. Raises ConfigError,
    NotFoundError, TamperedError."""
    from onward.rubrics.writers import RELEASED as THE_RELEASED
    from onward.rubrics.writers import open_writer

    if ":" in name:  # no version: a wrong name is refused before anything slow is loaded
        return open_writer(name)
    from onward.contracts.buckets import WriterVersion

    if name != THE_RELEASED and not name.startswith(WriterVersion.NAME):
        return open_writer(name)
    settings = load_settings(file, data_dir)

    async def work() -> tuple[str, Path]:
        async with record_of(settings) as (_, writers):
            found: ReleasedWriter | WriterVersion | None
            if name == THE_RELEASED:
                found = await writers.released()
                if found is None:
                    raise ConfigError(
                        "No rubric writer is released: train one with a rubrics job, or name another writer."
                    )
            else:
                found = await writers.version(name)
            return found.version, await _files(settings).fetch(found)

    version, folder = run_async(work())
    return replace(open_writer(str(folder)), name=version)


@asynccontextmanager
async def record_of(settings: Settings) -> AsyncIterator[tuple[Bus, Writers]]:
    """Yields the bus, and the record of writers."""
    from onward import host
    from onward.clock import SystemClock
    from onward.training.writers import Writers

    async with host.records(settings) as bus:
        yield bus, Writers(bus, SystemClock())


def _files(settings: Settings) -> WriterFiles:
    from onward.training.writers import WriterFiles
    from onward.warehouse import Objects

    return WriterFiles(Objects.open(settings.objects_at), settings)


def _reason(text: str) -> str:
    """Returns a reason for the record. Raises ConfigError for one that is empty or too long."""
    if not text.strip() or len(text) > 500:
        raise ConfigError(f"--reason has {len(text.strip())} characters: say why in 1 to 500.")
    return text.strip()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _interval(found: dict[str, float] | None) -> str:
    return "" if found is None else f"{found['mean']:+.3f} ({found['low']:+.3f} … {found['high']:+.3f})"
