"""The command ``onward status``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onward import host, warehouse
from onward.api import status as facts
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.output import AsJson, Table, ident, number, plain, print_json, print_text
from onward.clock import SystemClock
from onward.health.levels import DISK_LEVELS, STREAM_LEVELS
from onward.release.evidence.rates import ArmRates
from onward.release.wording import EVIDENCE_MEANS, error_rates, evidence_against
from onward.reward.role.monitoring import SHARE


@app.command()
def status(file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what serves, what comes next and the last release; then streams, jobs, releases and counts.

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
            print_json({**found, "endpoints": endpoints})
        else:
            show(found, endpoints)

    run_async(work())


def show(found: dict[str, Any], endpoints: dict[str, Any]) -> None:
    """Prints a document of ``api.status.collect``: sentences on the loop and its triggers, points that need
    attention, tables."""
    for sentence in found["sentences"].values():
        print_text(plain(sentence))
    for sentence in (found["triggers"] or {}).get("sentences", []):
        print_text(plain(sentence))
    for sentence in _attention(found):
        print_text(plain(sentence), style="yellow")
    print_text("", _releases(found["releases"]))
    if any(release["rates"] for release in found["releases"]):
        print_text(EVIDENCE_MEANS)
    print_text("", _jobs(found["jobs"]))
    for job in found["jobs"]:
        if job["error"]:
            print_text(plain(f"Job {job['job_id']} ({job['state']}): {job['error']}"))
    print_text("", _streams(found["streams"]), "")
    for sentence in _counts(found):
        print_text(plain(sentence))
    for name, address in endpoints.items():
        if name.endswith("_url"):
            print_text(f"{name.removesuffix('_url')}: {address}")


def _attention(found: dict[str, Any]) -> Iterator[str]:
    """Yields sentences on operator switches (pause, pin) and on what waits for an operator."""
    for part in found["no_answer"]:
        yield f"No answer from the {part}: what only it knows is left out ('/ready' on the api says more)."
    if found["disk"] and found["disk"]["used"] >= DISK_LEVELS[0]:
        yield f"The disk of the data folder is {found['disk']['used']:.0%} full."
    for stream in found["streams"]:
        if (used := _used(stream)) >= STREAM_LEVELS[0]:
            yield (
                f"{stream['name']} has used {used:.0%} of its byte limit: raise "
                f"streams.expected_gb_per_month and start again."
            )
    if found["learning_paused"]:
        yield "Learning is paused ('onward resume')."
    if found["pinned"]:
        yield f"{found['pinned']} is pinned ('onward unpin')."
    if found["held"]:
        yield f"{found['held']} held in quarantine ('onward quarantine list' says why)."
    for failing in found["failing_roles"]:
        yield (
            f"The {failing['role']} failed and was started again ({failing['restarts']} times, last at "
            f"{failing['failed_at']}): {failing['error']}"
        )
    if found["set_aside"]:
        yield f"{found['set_aside']} unreadable records are set aside ('onward buckets list' names them)."
    recent = found["unscored_share"]
    if recent["n"] and recent["unscored"] / recent["n"] > SHARE:
        yield _unscored(found)


def _used(stream: dict[str, Any]) -> float:
    """Returns the used share of a stream's byte limit."""
    limit = stream.get("limit") or 0
    return stream["bytes"] / limit if limit > 0 else 0.0


def _unscored(found: dict[str, Any]) -> str:
    recent = found["unscored_share"]
    causes = ", ".join(f"{name} {count}" for name, count in sorted(found["unscored"].items()))
    return f"Unscored: {causes}; {recent['unscored']} of the last {recent['n']}."


def _counts(found: dict[str, Any]) -> Iterator[str]:
    if counts := found["counts"]:
        yield (
            f"{_counted(counts['trajectories'], 'trajectory', 'trajectories')} stored, "
            f"{counts['rewarded']} rewarded, {counts['unscored']} unscored; "
            f"{_counted(counts['outcomes'], 'session outcome')} in releases, "
            f"{_counted(counts['deployments'], 'deployment')}, "
            f"{_counted(counts['status_events'], 'training status event')}."
        )
    recent = found["unscored_share"]
    if found["unscored"] and not (recent["n"] and recent["unscored"] / recent["n"] > SHARE):
        yield _unscored(found)
    run = found["rescore"]
    if run and not run["finished"]:
        yield f"Scoring again: {run['seen']} of {run['total']} (run {run['run_id']})."
    if found["opted_out"]:
        yield f"Opted out: {found['opted_out']} dropped before storage."


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _streams(streams: list[dict[str, Any]]) -> Table:
    table = Table(
        ident("stream"), number("messages"), number("bytes"), "used", "lag by consumer", title="Streams"
    )
    for stream in streams:
        if stream.get("missing"):
            table.add_row(stream["name"], None, None, None, "missing: see 'onward streams plan'")
        else:
            used = f"{_used(stream):.0%}"
            table.add_row(stream["name"], stream["messages"], stream["bytes"], used, stream["lag"])
    return table


def _jobs(jobs: list[dict[str, Any]]) -> Table:
    table = Table(
        ident("job"), "state", number("attempt"), number("samples"), number("percent"), title="Jobs"
    )
    for job in jobs:
        table.add_row(*(job[name] for name in ("job_id", "state", "attempt", "samples", "percent")))
    return table


def _releases(releases: list[dict[str, Any]]) -> Table:
    table = Table(
        ident("candidate"), "state", "evidence", title="Releases ('onward releases show' says more)"
    )
    for release in releases:
        table.add_row(release["model_id"], release["state"], _evidence(release))
    return table


def _evidence(release: dict[str, Any]) -> str:
    """Returns the validation's verdict, then rates and E of a release with traffic, otherwise the reason why
    it had none."""
    if not release["rates"]:
        found = release["reason"] or ""
    else:
        rates = {arm: ArmRates(**values) for arm, values in release["rates"].items()}
        e_all = release["e_values"].get("all", 1.0)
        found = f"{error_rates(rates)}, {evidence_against(e_all, release['evidence_needed'])}"
    return "; ".join(filter(None, (release["validation"], found))) or "-"
