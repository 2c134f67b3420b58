"""``onward rescore``: scores stored trajectories again under the running service's settings."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer
from rich.console import Console

from onward import host
from onward.bus import Bus
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.output import say
from onward.clock import Clock, SystemClock
from onward.config import Settings
from onward.contracts.buckets import RescoreProgress, RescoreRequest
from onward.errors import ConfigError, runnable
from onward.moments import parse_time
from onward.progress import Bars
from onward.reward.components import components_of
from onward.reward.role import rescoring

_LOOK_SECONDS = 0.3


@app.command()
def rescore(
    since: Annotated[
        str | None,
        typer.Option(help="Trajectories that began then or later: 7d, 12h, or 2026-01-31T12:00:00Z."),
    ] = None,
    component: Annotated[
        str | None,
        typer.Option(help="Compute only this one anew; the others keep their raw scores. Default: all."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many, the oldest first.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would change, write nothing.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the run that is under way.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, no progress bar.")] = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Score stored trajectories again, with present weights and components.

    Each trajectory whose score changes gets a new reward that supersedes the old one; the history stays. The
    running service does the work, after new trajectories. Ctrl-C only ends the display: run the same
    command again to watch. After a restart of the service the run continues where it was.

    onward rescore --dry-run
    onward rescore --since 7d --component code_quality
    """
    if stop and (dry_run or any(given is not None for given in (since, component, limit))):
        raise ConfigError("--stop stands alone: leave the other options out.")

    async def work() -> None:
        settings, clock = load_settings(file, data_dir), SystemClock()
        if component is not None:
            _check_component(component, settings)
        start = parse_time(since, "--since", clock) if since is not None else None
        async with host.attached(settings) as (bus, _):
            if stop:
                ended = await rescoring.stop_run(bus)
                say(f"Run {ended.run_id} ends after the trajectories that it has in hand.")
                return
            request, running = await rescoring.request_run(
                bus, clock, since=start, component=component, limit=limit, dry_run=dry_run
            )
            if not as_json:
                say(f"Run {request.run_id}{' is under way' if running else ''}.")
            done = await _watch(bus, clock, request.run_id, as_json)
        if as_json:
            say(json.dumps(_document(request, done), indent=1))
        else:
            say(_summary(request, done))

    run_async(work())


def _check_component(name: str, settings: Settings) -> None:
    known = sorted(component.name for component in components_of(settings.reward))
    if name not in known:
        raise ConfigError(f"There is no component {name!r}: expected one of {', '.join(known)}.")


async def _watch(bus: Bus, clock: Clock, run_id: str, quiet: bool) -> RescoreProgress:
    console = Console(stderr=True)
    with Bars(console, quiet=quiet or not console.is_terminal) as bars:
        bar = bars.add_bar("Waiting for the rewarder", counted=True)
        while True:
            done = await rescoring.read_progress(bus, run_id)
            if done is not None:
                bar.update(done.seen, total=done.total, title="Scoring again")
                if done.finished:
                    bar.finish(full=not done.stopped)
                    return done
            try:
                await clock.sleep(_LOOK_SECONDS)
            except asyncio.CancelledError:
                say(runnable("The run goes on; 'onward rescore --stop' ends it."), err=True)
                raise


def _document(request: RescoreRequest, done: RescoreProgress) -> dict[str, Any]:
    return {
        "run_id": request.run_id,
        "since": request.since,
        "component": request.component,
        "dry_run": request.dry_run,
        "seen": done.seen,
        "stopped": done.stopped,
        **{
            name: done.counts.get(name, 0) for name in ("changed", "unchanged", "unscored", "waiting", "gone")
        },
    }


def _summary(request: RescoreRequest, done: RescoreProgress) -> str:
    count = done.counts.get
    verb = "would get" if request.dry_run else "got"
    ending = "Stopped after" if done.stopped else "Of"
    text = f"{ending} {done.seen} trajectories, {count('changed', 0)} {verb} a new reward, "
    text += f"{count('unchanged', 0)} stay as they are, {count('unscored', 0)} have no valid score."
    if count("waiting", 0):
        text += f" {count('waiting', 0)} wait for their first reward."
    return text
