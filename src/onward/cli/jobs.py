"""``onward jobs list|show|cancel|retry``: training jobs, their errors and their results."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer

from onward import host
from onward.bus import Bus
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, facts, ident, number, print_json, print_text, say
from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import ConfigError, NotFoundError
from onward.ids import new_id
from onward.release.record import ReleaseRecord, Releases
from onward.telemetry.audit import current_user
from onward.training import intake
from onward.training.role.job_table import JobRecord, JobState, JobTable

jobs_app = Commands(
    help="""Training jobs: which ran, why one failed, what it came to.

    onward jobs list --state failed
    onward jobs watch 0190a1b2
    onward jobs cancel 0190a1b2
    onward jobs retry 0190a1b2
    """
)
app.add_typer(jobs_app, name="jobs")

STATES = get_args(JobState)
TheJob = Annotated[
    str, typer.Argument(metavar="ID", help="From the first column of 'list'; a unique prefix is enough.")
]


@jobs_app.command(name="list")
def list_jobs(
    state: Annotated[str | None, typer.Option(help=f"Only those: {', '.join(STATES)}.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 20,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show training jobs, newest first, each with its result.

    onward jobs list --state failed
    """
    if state not in (None, *STATES):
        raise ConfigError(f"--state is {state!r}: expected one of {', '.join(STATES)}.")
    found = run_async(_all(load_settings(file, data_dir)))
    shown = [job for job in reversed(found) if state in (None, job["state"])][:limit]
    if as_json:
        print_json(shown)
        return
    table = Table(
        ident("job"), number("#"), "place", "state", "method", number("tries"), number("trajectories"),
        "came to",
        empty=f"no job is {state}" if state else "no job was asked for yet",
    )  # fmt: skip
    for job in shown:
        table.add_row(
            *(
                job[name]
                for name in ("job_id", "number", "position", "state", "algorithm", "attempt", "samples")
            ),
            result_phrase(job),
        )
    print_text(table)


@jobs_app.command()
def show(
    job_id: TheJob,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show one job: its request, its progress or its error, its checkpoint and its release.

    onward jobs show 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b
    """
    settings = load_settings(file, data_dir)
    found = run_async(_one(settings, job_id))
    log = settings.data_dir / "logs" / f"job-{found['job_id']}.log"
    found["log"] = str(log) if log.exists() else None
    if as_json:
        print_json(found)
        return
    phrase, trace = result_phrase(found), (found["error"] or {}).pop("traceback", None)
    print_text(facts({"job": found.pop("job_id"), "came to": phrase, **found}))
    if trace:
        say(f"\n{trace.rstrip()}")


@jobs_app.command()
def cancel(
    job_id: TheJob, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Cancel a job: one that waits at once, one that runs within seconds. Twice is the same.

    onward jobs cancel 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b
    """

    async def work() -> JobRecord:
        async with host.attached(load_settings(file, data_dir)) as (bus, _):
            return await table_of(bus).cancel(await find_job(bus, job_id), by=current_user())

    record = run_async(work())
    if as_json:
        print_json({"job_id": record.job_id, "state": record.state})
    elif record.state == "running":
        print_text(f"Job {record.job_id} ends within seconds: 'onward jobs show {record.job_id}'.")
    else:
        print_text(f"Job {record.job_id} is {record.state}.")


@jobs_app.command()
def retry(job_id: TheJob, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Run the request of a failed or cancelled job again, as a new job.

    onward jobs retry 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b
    """

    async def work() -> tuple[str, JobRecord | None, str]:
        async with host.attached(load_settings(file, data_dir)) as (bus, _):
            done = await intake.submit_again(bus, SystemClock(), await find_job(bus, job_id), new_id())
            name, record = done.request.training_job_id, done.taken()
            advice = "" if record is not None else await intake.advice_for_waiting(bus, name)
            return name, record, f"{intake.WAITS} {advice}".strip()

    name, record, note = run_async(work())
    number, state = (None, "queued") if record is None else (record.number, record.state)
    if as_json:
        print_json({"job_id": name, "number": number, "state": state})
        return
    words = f"is queued. {note}" if record is None else f"(job #{number}) is {state}."
    print_text(f"Job {name} {words} Follow it with 'onward jobs watch {name}'.")


def table_of(bus: Bus) -> JobTable:
    return JobTable(bus.bucket("rl_jobs"), SystemClock())


async def find_job(bus: Bus, given: str) -> str:
    """Returns the id of the job that ``given`` names or begins. Raises NotFoundError."""
    names = [record.job_id for record, _ in await table_of(bus).all()]
    meant = [name for name in names if name == given] or [name for name in names if name.startswith(given)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise NotFoundError(f"{given!r} begins {len(meant)} job ids: 'onward jobs list' shows them whole.")
    raise NotFoundError(f"There is no job {given!r}: 'onward jobs list' shows them.")


async def _all(settings: Settings) -> list[dict[str, Any]]:
    async with host.records(settings) as bus:
        return await _jobs(bus)


async def _one(settings: Settings, job_id: str) -> dict[str, Any]:
    """Returns one job. Raises NotFoundError: it trained a first model elsewhere, or no one requested it."""
    async with host.records(settings) as bus:
        jobs = await _jobs(bus)
        meant = [job for job in jobs if job["job_id"] == job_id] or [
            job for job in jobs if job["job_id"].startswith(job_id)
        ]
        if len(meant) == 1:
            return meant[0]
        models = await Releases(bus, SystemClock()).models()
    for model in models:
        if model.training_job_id == job_id:
            raise NotFoundError(
                f"Job {job_id} trained {model.model_id} before it was installed here, so no job of this "
                f"service has that id: 'onward models show {model.model_id}' says what is known."
            )
    if meant:
        raise NotFoundError(f"{job_id!r} begins {len(meant)} job ids: 'onward jobs list' shows them whole.")
    raise NotFoundError(f"There is no job {job_id!r}: 'onward jobs list' shows them.")


def result_phrase(job: dict[str, Any]) -> str:
    """Returns one phrase: the error, the release, the place of a policy, or the progress."""
    error, release, metrics = job["error"], job["release"], job["metrics"] or {}
    if error is not None and job["state"] in ("failed", "queued"):
        return f"{error['code']}: {error['message']}"
    if release is not None:
        reason = f": {release['reason']}" if release["state"] == "rejected" else ""
        return f"{release['model_id']} {release['state']}{reason}"
    if job["state"] == "completed" and "version" in metrics:
        outcome = "passed, not released" if metrics["passed"] else "not passed"
        outcome = "released" if metrics["released_now"] else outcome
        return f"{metrics['version']} {outcome}: {metrics['why']}"
    if job["state"] == "completed" and "policy" in metrics:
        return f"a policy under {metrics['policy']}"
    if job["state"] == "completed":
        return "a checkpoint that waits for its release"
    return f"{job['percent']:.0f} %" if job["percent"] is not None else "-"


async def _jobs(bus: Bus) -> list[dict[str, Any]]:
    """Returns every job, oldest first, with the release of its checkpoint."""
    table = table_of(bus)
    jobs = await table.all()
    positions = table.positions_among(record for record, _ in jobs)
    records = await Releases(bus, SystemClock()).all()
    releases = {record.job_id: record for record in records if record.kind == "candidate"}
    return [_document(job, releases.get(job.job_id), positions.get(job.job_id)) for job, _ in jobs]


def _document(job: JobRecord, release: ReleaseRecord | None, position: int | None) -> dict[str, Any]:
    asked = job.request
    return {
        "job_id": job.job_id,
        "number": job.number,
        "state": job.state,
        "position": position,
        "priority": job.priority,
        "algorithm": (asked.get("training_config") or asked).get("algorithm"),
        "trigger": asked.get("trigger_reason"),
        "requester": asked.get("requester"),
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "attempt": job.attempt,
        "handed_back": job.handed_back,
        "killed": job.killed,
        "not_before": job.not_before,
        "changes": job.changes,
        "samples": job.samples,
        "percent": job.progress.get("percent_complete"),
        "metrics": job.progress.get("metrics"),
        "start_digest": job.start_digest,
        "adapter_digest": job.commit.adapter_digest if job.commit else None,
        "checkpoint": job.commit.object_prefix if job.commit else None,
        "error": job.error.model_dump() if job.error else None,
        "release": release and {
            "release_id": release.release_id,
            "model_id": release.candidate.model_id,
            "state": str(release.state),
            "reason": release.reason,
        },
    }  # fmt: skip
