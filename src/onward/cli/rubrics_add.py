"""``onward rubrics add``: a writer that was trained by hand becomes a version that can be promoted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward.cli import ConfigFile, DataDir, load_settings, run_async
from onward.cli.output import AsJson, print_json, print_text, say
from onward.cli.rubrics import rubrics
from onward.cli.rubrics_releases import record_of
from onward.errors import ConfigError, nothing_runs


@rubrics.command()
def add(
    folder: Annotated[Path, typer.Argument(help="A run of 'onward rubrics train' that has ended.")],
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Store a writer that was trained here as a version, so that 'onward rubrics promote' can release it.

    onward rubrics add rubrics-run

    It is compared on the tasks and by the rule of a rubrics job, which takes a minute, and is never released
    by itself. Equal files are one version: a second call compares it again. Works also while nothing runs.
    """
    from onward import host
    from onward.clock import SystemClock
    from onward.contracts.buckets import ReleasedWriter, WriterVersion
    from onward.training.writers import adding
    from onward.warehouse import Objects

    adding.refuse_incomplete(folder)  # before anything is made
    settings, clock = load_settings(file, data_dir), SystemClock()
    if not host.has_records(settings):
        raise ConfigError(nothing_runs(settings.data_dir))
    objects = Objects.open(settings.objects_at)

    async def released() -> tuple[ReleasedWriter | None, Path | None]:
        async with record_of(settings) as (bus, _):
            return await adding.released_with_files(bus, objects, settings, clock)

    async def record(added: adding.AddedWriter) -> WriterVersion:
        async with record_of(settings) as (bus, _):
            return await added.record(bus, objects, settings, clock, figures)

    with adding.AddedWriter(folder) as added:
        now, files = run_async(released())
        against = "its warm start" if now is None else now.version
        say(f"Comparing the writer in {folder} with {against}.", err=True)
        figures = added.figures(now, files)
        version = run_async(record(added))
    if as_json:
        print_json(version.model_dump(mode="json"))
        return
    force = "" if version.passed else " --force"
    print_text(
        f"{version.version} is stored. {version.why}",
        f"Release it with 'onward rubrics promote {version.version}{force} --reason …'.",
    )
