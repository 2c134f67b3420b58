"""``onward releases explain|replay|watch|plan``: why a release went as it did, what its gates can find."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward import host
from onward.capture import provenance
from onward.cli import ConfigFile, DataDir, load_settings, run_async
from onward.cli.output import AsJson, Table, console, facts, number, print_json, print_text, say
from onward.cli.releases import Named, found_by_name, release_app, releases_app
from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import BusError
from onward.release.evidence.evidence import GateRules
from onward.release.evidence.outcome_source import OutcomeStream
from onward.release.explaining import delays, picture, story
from onward.release.explaining.replay import Replay, replay
from onward.release.plan import State
from onward.release.record import ReleaseRecord, Releases
from onward.release.wording import what_happened

if TYPE_CHECKING:
    from rich.console import RenderableType

LOOK_SECONDS = 0.5
DAY_SESSIONS = 1_000
"""Sessions a day without ``--per-day``: the traffic that the published schedule was made for."""
CACHE = "detection"
"""Folder in the data folder."""


def _everywhere(name: str | None = None) -> Any:
    """Registers a command under ``onward releases`` and under its old name ``onward release``."""

    def register(command: Any) -> Any:
        for group in (releases_app, release_app):
            group.command(name=name)(command)
        return command

    return register


@_everywhere()
def explain(
    name: Named = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the picture here: .png or .svg.")
    ] = None,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Explain a release: each decision, the gate that led and its numbers, and the evidence as a picture.

    onward releases explain
    onward releases explain agent-zero-rl-v2 --out evidence.svg
    """
    record, found, gone = run_async(_replayed(load_settings(file, data_dir), name))
    if as_json:
        return print_json(_document(record, found, gone))
    print_text(*story.paragraphs(record, found))
    if gone:
        print_text("", gone)
    if found is None or not found.trace.points:
        return
    limit = 1 / story.alpha_of(record)
    print_text("", _chart(found, limit))
    if out is not None:
        for path in _draw(record, found, limit, out):
            say(f"Written: {path}")


@_everywhere("replay")
def replay_command(
    name: Named = None, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Recompute each decision of a release from the stored outcomes, and compare it with the record.

    Exit code 0: the same bytes. 1: a difference, which is named.

    onward releases replay agent-zero-rl-v2
    """
    record, found, gone = run_async(_replayed(load_settings(file, data_dir), name))
    if found is None:
        raise BusError(gone or "")
    if as_json:
        print_json(_document(record, found, None))
    else:
        print_text(_decisions(found))
        compared = sum(one.same is not None for one in found.decisions)
        print_text(
            f"The replay differs: {found.difference}."
            if found.difference
            else f"Replayed {found.outcomes:,} outcomes: {compared} decisions and the evidence have the same "
            f"bytes as the record."
        )
    if found.difference:
        raise typer.Exit(1)


@_everywhere()
def watch(name: Named = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Follow a release until it ends: its step, share and evidence. Without a terminal, a line per change.

    Exit code 0: promoted. 1: any other end. Ctrl-C ends the watching, not the release.

    onward releases watch
    """
    try:
        last = run_async(_watch(load_settings(file, data_dir), name))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if last.state is not State.PROMOTED:
        raise typer.Exit(1)


@_everywhere()
def plan(
    per_day: Annotated[float, typer.Option(min=1, help="Sessions a day.")] = DAY_SESSIONS,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show how long the gates take to find a worse candidate at your traffic, step by step.

    Simulated with the release's own gates; the first run takes some seconds, then the result is kept.

    onward releases plan --per-day 5000
    """
    settings = load_settings(file, data_dir)
    release, rules = settings.release, GateRules.from_settings(settings.release)
    shares = [min(share, 1.0 - release.bake_share) for share in release.steps]
    folder = settings.data_dir / CACHE if settings.data_dir.is_dir() else None
    found = delays.cached(shares, rules, folder)
    if as_json:
        return print_json(
            {
                "per_day": per_day,
                "shares": {str(share): [vars(one) for one in found[share]] for share in shares},
            }
        )
    print_text(_delays(found, per_day, rules))
    print_text(
        f"Median minutes at {per_day:,.0f} sessions a day, with the time to mature; current has 1 % errors, "
        f"a mean outcome of 0.75 and 3 % negative feedback. In brackets: the share that is found within "
        f"{delays.MOST_SESSIONS:,} sessions, where it is not every one."
    )


async def _replayed(settings: Settings, name: str | None) -> tuple[ReleaseRecord, Replay | None, str | None]:
    """Returns the release, its replay, and the reason if there is none."""
    async with host.records(settings) as bus:
        releases = Releases(bus, SystemClock())
        record = found_by_name(await releases.all(), name)[-1]
        if record.evidence is None:
            return record, Replay([story.bare(line) for line in record.history]), None
        outcomes = OutcomeStream(bus, provenance.load_key(settings.run_dir))
        try:
            return record, await replay(record, outcomes), None
        except BusError as error:
            return record, None, str(error)
        finally:
            await outcomes.close()


def _document(record: ReleaseRecord, found: Replay | None, gone: str | None) -> dict[str, Any]:
    return {
        "release_id": record.release_id,
        "sentence": what_happened(record),
        "not_replayed": gone,
        "difference": found.difference if found else None,
        "outcomes": found.outcomes if found else None,
        "decisions": [
            {**vars(one), "rates": {arm: rates.model_dump() for arm, rates in one.rates.items()}}
            for one in (found.decisions if found else [])
        ],
        "points": [point._asdict() for point in (found.trace.points if found else [])],
    }


def _chart(found: Replay, limit: float) -> Table:
    table = Table("over time", "", "", title=f"Evidence (a full mark of E is the limit, {limit:.1f})")
    for row in picture.lines(found.trace.points, limit):
        table.add_row(*row)
    return table


def _draw(record: ReleaseRecord, found: Replay, limit: float, out: Path) -> list[Path]:
    if importlib.util.find_spec("matplotlib") is None:
        say("No picture: matplotlib is not installed ('pip install matplotlib').", err=True)
        return []
    return picture.draw(found.trace.points, limit, _title(record), out)


def _title(record: ReleaseRecord) -> str:
    return f"{record.candidate.model_id}: {str(record.state).replace('_', ' ')}"


def _decisions(found: Replay) -> Table:
    words = {True: "same bytes", False: "differs", None: "no evidence then"}
    table = Table(number("n"), "at", "state", "why", "replayed", title="Decisions")
    for count, one in enumerate(found.decisions, 1):
        replayed = "no mark" if one.same is None and one.e_values else words[one.same]
        table.add_row(count, one.at[:19].replace("T", " "), one.state, one.why, replayed)
    return table


def _delays(found: dict[float, list[delays.Delay]], per_day: float, rules: GateRules) -> Table:
    table = Table("the candidate", *(number(f"{share:.0%}") for share in found), title="Time to find it")
    for index, (defect, *_) in enumerate(delays.CASES):
        table.add_row(defect, *(_minutes(of[index], per_day, rules) for of in found.values()))
    return table


def _minutes(delay: delays.Delay, per_day: float, rules: GateRules) -> str:
    minutes = delay.minutes(per_day, rules)
    if minutes is None:
        return "not found"
    words = f"{minutes:,.0f} min" if minutes < 300 else f"{minutes / 60:,.0f} h"
    return words if delay.found == 1 else f"{words} ({delay.found:.0%})"


async def _watch(settings: Settings, name: str | None) -> ReleaseRecord:
    from rich.live import Live

    out, said = console(), ""
    seen: list[dict[str, float]] = []
    async with host.attached(settings) as (bus, _):
        releases = Releases(bus, SystemClock())
        release_id = found_by_name(await releases.all(), name)[-1].release_id
        with Live(console=out, auto_refresh=False) if out.is_terminal else nullcontext() as live:
            while True:
                stored = await releases.get(release_id)
                if stored is None:
                    raise BusError(
                        f"The record of release {release_id} cannot be read: see 'onward buckets'."
                    )
                record = stored[0]
                if record.e_values and (not seen or seen[-1] != record.e_values):
                    seen.append(record.e_values)
                if live is not None:
                    live.update(_picture(record, seen), refresh=True)
                elif what_happened(record) != said:
                    said = what_happened(record)
                    say(said)
                if record.closed:
                    return record
                await asyncio.sleep(LOOK_SECONDS)


def _picture(record: ReleaseRecord, seen: list[dict[str, float]]) -> RenderableType:
    from rich.console import Group

    return Group(*_watched(record, seen))


def _watched(record: ReleaseRecord, seen: list[dict[str, float]]) -> Iterator[Any]:
    limit = 1 / story.alpha_of(record)
    yield facts({"release": what_happened(record)}, title=record.candidate.model_id)
    if seen:
        table = Table("gate", "since the watching began", "", title=f"E, taken back at {limit:.1f} of all")
        for gate in picture.GATES:
            table.add_row(gate, *picture.e_line([values.get(gate, 1.0) for values in seen], limit))
        yield table
