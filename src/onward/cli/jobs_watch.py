"""``onward jobs watch``: a job while it waits and runs, with its curves in the terminal.

Without a terminal, the same facts are printed as one line for each change.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward import host
from onward.bus import Bus
from onward.cli import ConfigFile, DataDir, load_settings, run_async
from onward.cli.jobs import TheJob, find_job, jobs_app, table_of
from onward.cli.output import console, plain_lines, say
from onward.cli.train_display import SHOWN
from onward.config import Settings
from onward.errors import NotFoundError
from onward.progress import PART, clock
from onward.training import intake
from onward.training.role.job_table import TERMINAL, JobRecord

if TYPE_CHECKING:
    from rich.table import Table

LOOK_SECONDS = 0.5
WIDTH = 48
_MARKS = "▁▂▃▄▅▆▇█"


@jobs_app.command()
def watch(
    job_id: TheJob,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line for each change.")] = False,
) -> None:
    """Follow one job until it ends: place in the queue, progress, time left, live curves.

    Exit code 0: it completed. 1: it failed or was cancelled. Ctrl-C ends the watching, not the job.

    onward jobs watch 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b
    """
    try:
        last = run_async(_watch(load_settings(file, data_dir), job_id, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if last.state != "completed":
        raise typer.Exit(1)


async def _watch(settings: Settings, job_id: str, as_json: bool) -> JobRecord:
    from rich.live import Live

    out = console()
    watched, said = Watched(), ""
    async with host.attached(settings) as (bus, _):
        table = table_of(bus)
        name = await _found(bus, job_id)
        is_drawn = out.is_terminal and not as_json
        with Live(console=out, auto_refresh=False) if is_drawn else nullcontext() as live:
            while True:
                record, _ = await table.get(name)
                place = (await table.positions()).get(name) if record.state == "queued" else None
                watched.add(record)
                line = json.dumps(facts_of(record, place)) if as_json else headline(record, place)
                if live is not None:
                    live.update(watched.drawn(line), refresh=True)
                elif line != said:
                    said = line
                    say(line)
                if record.state in TERMINAL:
                    return record
                await asyncio.sleep(LOOK_SECONDS)


async def _found(bus: Bus, given: str) -> str:
    """Returns the id of the job that ``given`` names or begins; waits for the trainer if its request is the
    newest of its kind. Raises NotFoundError."""
    waits = False
    while True:
        try:
            return await find_job(bus, given)
        except NotFoundError:
            if not waits and not await intake.is_newest(bus, given):
                raise
        if not waits:
            waits = True
            advice = await intake.advice_for_waiting(bus, given)
            say(f"Job {given} waits. {intake.WAITS} {advice}".strip(), err=True)
        await asyncio.sleep(LOOK_SECONDS)


def headline(record: JobRecord, place: int | None) -> str:
    """Returns the state of a job in one line."""
    progress, metrics = record.progress, record.progress.get("metrics") or {}
    number = f" #{record.number}" if record.number else ""
    parts = [f"job{number} {record.job_id}", record.state]
    if place is not None:
        parts.append(f"place {place} in the queue")
    if record.state == "running" and record.attempt > 1:
        parts.append(f"attempt {record.attempt}")
    if "percent_complete" in progress and record.state == "running":
        parts.append(f"{progress['percent_complete']:.0f} %")
        parts.append(f"step {progress.get('current_step', 0):,}/{progress.get('total_steps', 0):,}")
        if progress.get("eta_seconds") is not None:
            parts.append(f"{clock(float(progress['eta_seconds']))} left")
    parts += [form.format(metrics[name]) for name, form in SHOWN.items() if _is_number(metrics.get(name))]
    if record.error is not None:
        parts.append(f"{record.error.code}: {record.error.message}")
    return PART.join(parts)


def facts_of(record: JobRecord, place: int | None) -> dict[str, Any]:
    """Returns the same facts for programs."""
    return {
        "job_id": record.job_id,
        "number": record.number,
        "state": record.state,
        "position": place,
        "attempt": record.attempt,
        "progress": record.progress,
        "changes": record.changes,
        "error": record.error.model_dump() if record.error is not None else None,
    }


class Watched:
    """The metrics of a job since the watching began, one value for each step that was seen."""

    def __init__(self) -> None:
        self.curves: dict[str, list[float]] = {}
        self._step: Any = None

    def add(self, record: JobRecord) -> None:
        metrics = record.progress.get("metrics") or {}
        step = (record.attempt, record.progress.get("current_step"))
        if step == self._step:
            return
        self._step = step
        for name in SHOWN:
            if _is_number(metrics.get(name)):
                self.curves.setdefault(name, []).append(float(metrics[name]))

    def drawn(self, line: str) -> Table:
        """Returns the picture: the line, and a curve for each metric with its range."""
        from rich.table import Table
        from rich.text import Text

        picture = Table.grid(padding=(0, 2))
        picture.title, picture.title_justify = Text(plain_lines(line)), "left"
        for name, values in self.curves.items():
            low, high = min(values), max(values)
            picture.add_row(name, Text(sparkline(values), style="cyan"), f"{low:.4g} to {high:.4g}")
        return picture


def sparkline(values: list[float], width: int = WIDTH) -> str:
    """Returns values as a row of marks, at most ``width``: each mark is the mean of its part."""
    count = min(width, len(values))
    means = []
    for index in range(count):
        part = values[index * len(values) // count : (index + 1) * len(values) // count]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_MARKS[min(len(_MARKS) - 1, int((mean - low) / span * len(_MARKS)))] for mean in means)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
