"""``onward status``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from onward import host, warehouse
from onward.api import status as facts
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.clock import SystemClock
from onward.reward.unscored import SHARE


@app.command()
def status(
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show streams and lag, counts, the current model, jobs, releases, and settings not active yet.

    onward status
    onward status --dir data --json
    """

    async def work() -> None:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, endpoints):
            view = await warehouse.connect(settings)
            try:
                found = await facts.collect(bus, view, settings, SystemClock())
            finally:
                await view.close()
        if as_json:
            typer.echo(json.dumps({**found, "endpoints": endpoints}, indent=1, default=str))
        else:
            _show(found, endpoints, Console())

    run_async(work())


def _show(found: dict[str, Any], endpoints: dict[str, Any], console: Console) -> None:
    for name, address in endpoints.items():
        if name.endswith("_url"):
            console.print(f"{name.removesuffix('_url')}: {address}", highlight=False)
    console.print(_streams(found["streams"]))
    counts = found["counts"]
    console.print(
        f"{_counted(counts['trajectories'], 'trajectory', 'trajectories')} stored, "
        f"{counts['rewarded']} rewarded, {counts['unscored']} unscored; "
        f"{_counted(counts['outcomes'], 'session outcome')} in releases, "
        f"{_counted(counts['deployments'], 'deployment')}, "
        f"{_counted(counts['status_events'], 'training status event')}.",
        highlight=False,
    )
    if found["unscored"]:
        recent = found["unscored_share"]
        causes = ", ".join(f"{name} {count}" for name, count in sorted(found["unscored"].items()))
        console.print(
            f"Unscored: {causes}; {recent['unscored']} of the last {recent['n']}.",
            style="yellow" if recent["n"] and recent["unscored"] / recent["n"] > SHARE else None,
            highlight=False,
        )
    if found["rescore"] and not found["rescore"]["finished"]:
        run = found["rescore"]
        console.print(f"Scoring again: {run['seen']} of {run['total']} (run {run['run_id']}).")
    if found["held"]:
        console.print(
            f"{found['held']} held in quarantine ('onward quarantine list' says why).",
            style="yellow",
            highlight=False,
        )
    if found["opted_out"]:
        console.print(f"Opted out: {found['opted_out']} dropped before storage.", highlight=False)
    job = found["next_job"]
    console.print(
        f"Next training job: {job['rewarded']} of {job['threshold']} rewarded trajectories of this policy.",
        highlight=False,
    )
    serving = found["serving"]
    if serving is None:
        console.print("No model was released yet: the base model serves.")
    else:
        arms = ", ".join(f"{arm['model_id']} ({arm['arm']}) {arm['weight']:.0%}" for arm in serving["arms"])
        console.print(f"Serving: {arms}.", highlight=False)
    for title, columns, rows in (
        ("Jobs", ("job_id", "state", "attempt", "samples", "percent", "error"), found["jobs"]),
        ("Releases", ("model_id", "state", "sessions", "e_values", "reason"), found["releases"]),
    ):
        console.print(_table(title, columns, rows) if rows else f"{title}: none yet.")
    if found["learning_paused"]:
        console.print("Learning is paused ('onward resume').", style="yellow")
    if found["pinned"]:
        console.print(f"{found['pinned']} is pinned ('onward unpin').", style="yellow")
    for name, why in found["not_active"].items():
        console.print(f"Not active: {name}: {why}.", style="dim", highlight=False)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _streams(streams: list[dict[str, Any]]) -> Table:
    table = Table(title="Streams", title_justify="left")
    for name in ("stream", "messages", "bytes", "lag by consumer"):
        table.add_column(name, justify="left" if name in {"stream", "lag by consumer"} else "right")
    for stream in streams:
        if stream.get("missing"):
            table.add_row(stream["name"], "-", "-", "missing: see 'onward streams plan'")
            continue
        lag = ", ".join(f"{name} {count}" for name, count in stream["lag"].items())
        table.add_row(stream["name"], str(stream["messages"]), str(stream["bytes"]), lag or "-")
    return table


def _table(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name)
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(entry)}" for key, entry in value.items()) or "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
