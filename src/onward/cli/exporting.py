"""Shared parts of the export commands: progress bar, checks of the output path, and the final sentence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from onward.cli import run_async
from onward.cli.output import print_json, print_text
from onward.cli.trajectory_options import left_out_sentence
from onward.config import Settings
from onward.errors import ConfigError, NotFoundError
from onward.export import writers
from onward.export.run import Export, Report
from onward.progress import Bars
from onward.warehouse.embedded import reading
from onward.warehouse.trajectory_queries import TrajectorySelection

Out = Annotated[Path, typer.Option(metavar="PATH", help="Where to. It must not exist yet, but with --force.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there, once the new one is complete.")]
Name = TypeVar("Name", bound=str)


def check_format(given: str, formats: Mapping[Name, str]) -> Name:
    """Returns the format that was given. Raises ConfigError when there is no such one."""
    for name in formats:
        if name == given:
            return name
    raise ConfigError(f"There is no format {given[:40]!r}: give one of {', '.join(formats)}.")


def run_export(
    settings: Settings,
    which: TrajectorySelection,
    limit: int | None,
    out: Path,
    work: Callable[[Export], Awaitable[Report]],
    words: Callable[[Report], str],
    *,
    force: bool,
    folder: bool = False,
    as_json: bool = False,
) -> None:
    """Runs ``work`` and prints the result. ``words`` describes what was written, for the final sentence.

    Raises ConfigError when ``out`` already exists or cannot be written, NotFoundError when nothing was
    written.
    """
    writers.check(out, force=force, folder=folder)

    async def exported() -> Report:
        async with reading(settings) as w:
            with Bars(Console(stderr=True), quiet=as_json) as bars:
                job = Export(w, which, limit, out)
                bar = bars.add_bar("Exporting", await job.count())
                job.on_progress = bar.update
                report = await work(job)
                bar.finish(full=report.written > 0)
                return report

    report = run_async(exported())
    rest = left_out_sentence(report.left_out)
    if not report.written:
        stored = f"of {report.stored:,} trajectories; {rest}" if report.stored else "since nothing is stored"
        raise NotFoundError(f"Nothing was written to {out}: none {stored}.")
    if as_json:
        left_out = {reason: count for reason, count in report.left_out.items() if count}
        print_json(
            {
                "out": str(out),
                "written": report.written,
                "trajectories": report.used,
                "stored": report.stored,
                "left_out": left_out,
            }
        )
    else:
        print_text(f"Wrote {words(report)} to {out}{f'; {rest}' if rest else ''}.")
