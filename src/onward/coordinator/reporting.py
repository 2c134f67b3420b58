"""Sends the daily summary and the report on each completed job to the superior agent.

Invariants: a report is marked as sent, by compare-and-set, before it is sent. So a crash can lose one, like
any report, and none is sent twice, however many coordinators run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from onward.bus import read_document, read_stored
from onward.bus.cancellation import until_cancelled
from onward.clock import read_time, utc_text
from onward.context import Context
from onward.contracts import TrainingRequest, subjects
from onward.contracts.buckets import LastRequest, ReportMark
from onward.coordinator import reports, watching
from onward.coordinator.open_work import UNANSWERED_SECONDS
from onward.coordinator.policy import current_policy
from onward.coordinator.schedule import is_due
from onward.errors import BusError, ConflictError, WarehouseError
from onward.release.plan import State
from onward.release.record import ReleaseRecord, Releases
from onward.telemetry import logs
from onward.training.role.job_table import JobRecord, JobTable, type_of
from onward.warehouse import queries

log = logs.get("coordinator")

LOOK_SECONDS = 15.0
DAY = timedelta(hours=24)
NO_RELEASE_SECONDS = 600.0
"""Age of a completed job at which its report no longer waits for a release."""
TRAINER_AWAY = "trainer_unreachable"
UNSCORED_SHARE = 0.10
_SCHEDULED = frozenset({State.RAMPING, State.BAKING, State.HELD, State.PROMOTED, State.ROLLED_BACK})
_REMEDIES = {
    "OOM": "Give the next job a smaller batch, or its machine more memory.",
    "DATA": "Read the job's reason in 'onward jobs list': its data cannot be trained on.",
    "CONVERGENCE": "Lower training.learning_rate.",
}


async def send(ctx: Context, message: str, **more: Any) -> None:
    """Sends one report. It may be lost, like an alert."""
    log.info("report", message=message)
    body = {"message": message, "timestamp": utc_text(ctx.clock.now()), **more}
    with contextlib.suppress(BusError):
        await ctx.bus.notify(subjects.REPORT, json.dumps(body).encode())


class Reporter:
    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._jobs = JobTable(ctx.bus.bucket("rl_jobs"), ctx.clock)
        self._releases = Releases(ctx.bus, ctx.clock)
        self._unanswered: str | None = None

    async def run(self) -> None:
        """Looks until cancelled."""
        for _ in until_cancelled():
            try:
                await self.look()
            except ConflictError:
                log.info("another coordinator was faster")
            except (BusError, WarehouseError) as error:
                log.warning("no reports now", reason=str(error))
            await self.ctx.clock.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Sends what is due. Raises ConflictError if another coordinator does so at the same moment."""
        jobs = [record for record, _ in await self._jobs.all()]
        await self._alert_without_trainer(jobs)
        completed = [job for job in jobs if job.state == "completed"]
        bucket, now = self.ctx.bus.bucket(ReportMark.BUCKET), self.ctx.clock.now()
        stored = await read_stored(bucket, ReportMark)
        mark = stored.document
        if mark is None:
            first = ReportMark(since=utc_text(now), jobs=[job.job_id for job in completed])
            await bucket.create(ReportMark.KEY, first.dump())
            return
        releases = {record.job_id: record for record in await self._releases.all()}
        told = frozenset(mark.jobs)
        due = [
            job
            for job in completed
            if job.job_id not in told and self._is_decided(job, releases.get(job.job_id), now)
        ]
        daily = is_due(self.ctx.settings.training.summary_schedule, read_time(mark.since), now)
        if not due and not daily:
            return
        # Read first: without the warehouse the summary is tried again.
        summary = await self._summary(jobs, list(releases.values()), now) if daily else None
        after = mark.model_copy(
            update={
                "since": utc_text(now) if daily else mark.since,
                # Every job of the table, so that none is reported again; those that it has forgotten go.
                "jobs": [job.job_id for job in completed if job.job_id in told or job in due],
            }
        )
        await bucket.update(stored.key, after.dump(), stored.revision)
        for job in due:
            figures = job_figures(job, releases.get(job.job_id))
            await send(self.ctx, reports.job_report(figures), kind="training_job", facts=asdict(figures))
        if summary is not None:
            await send(self.ctx, reports.daily_summary(summary), kind="daily_summary", facts=asdict(summary))

    async def _alert_without_trainer(self, jobs: list[JobRecord]) -> None:
        """Raises one alert for a request that no trainer has accepted in ten minutes."""
        record = await read_document(self.ctx.bus, LastRequest)
        job_id = record.job_id if record is not None and record.phase == "published" else None
        if record is None or job_id is None or job_id in {job.job_id for job in jobs}:
            if self._unanswered is not None:
                self._unanswered = None
                await self.ctx.alerts.resolve(TRAINER_AWAY, "A trainer accepts requests again.")
            return
        asked = read_time(record.published_at) if record.published_at else self.ctx.clock.now()
        waited = (self.ctx.clock.now() - asked).total_seconds()
        if waited < UNANSWERED_SECONDS or self._unanswered == job_id:
            return
        self._unanswered = job_id
        await self.ctx.alerts.raise_(
            TRAINER_AWAY,
            f"No trainer has accepted training job {job_id} for {waited / 60:.0f} minutes: start 'onward run "
            f"trainer', or look at its log.",
            "critical",
            job_id=job_id,
        )

    def _is_decided(self, job: JobRecord, release: ReleaseRecord | None, now: datetime) -> bool:
        """True once it is known what becomes of a job's result: a release has left its validation, or none
        follows."""
        if release is not None:
            return release.state not in (State.PROPOSED, State.VALIDATING)
        if type_of(job.request) is not TrainingRequest:
            return True
        return (now - read_time(job.updated_at)).total_seconds() >= NO_RELEASE_SECONDS

    async def _summary(
        self, jobs: list[JobRecord], releases: list[ReleaseRecord], now: datetime
    ) -> reports.Day:
        since, policy = now - DAY, await current_policy(self.ctx.bus)
        digest = (policy.digest if policy else None) or ""
        found = await queries.summary_figures(self.ctx.warehouse, since, digest)
        watch = await watching.stored_watch(self.ctx.bus, self.ctx.settings, digest or None)
        ended = [job for job in jobs if read_time(job.updated_at) >= since]
        closed = [one for one in releases if one.closed_at and read_time(one.closed_at) >= since]
        issues, advice = _issues(found, ended, closed)
        if watch is not None and watch.degraded_since:
            issues.append(f"degraded: {watching.sentence(watch)}")
        return reports.Day(
            trajectories=found["trajectories"],
            mean=found["mean"],
            deviation=found["deviation"],
            completed=sum(job.state == "completed" for job in ended),
            failed=sum(job.state == "failed" for job in ended),
            model=policy.model_id if policy else None,
            deployed=_deployed(releases, policy.model_id) if policy else None,
            model_mean=found["current_mean"] if policy else None,
            baseline=watch.baseline if watch is not None else None,
            issues=tuple(issues),
            recommendations=tuple(dict.fromkeys(advice)),
        )


def job_figures(job: JobRecord, release: ReleaseRecord | None) -> reports.Job:
    """Returns the figures of a completed job and of its release, if one followed."""
    metrics = job.progress.get("metrics") or {}
    found = (release.validation if release else None) or {}
    current, better = found.get("current"), found.get("improvement")
    reward = metrics.get("reward_mean")
    return reports.Job(
        job_id=job.job_id,
        seconds=job.resource_usage.get("total_training_time_seconds"),
        samples=job.samples,
        reward=float(reward) if isinstance(reward, int | float) else None,
        improvement=better / current if current and better is not None else None,
        validation=found.get("verdict"),
        deployment=_deployment(release),
        cost=job.resource_usage.get("cost_usd"),
    )


def _deployment(release: ReleaseRecord | None) -> str:
    if release is None:
        return "none"
    if release.state in _SCHEDULED:
        return f"scheduled ({release.schedule.strategy.replace('_', '-')})" if release.plan else "scheduled"
    if release.state is State.WAITING:
        return "waits for approval"
    if release.state is State.SHADOWED:
        return "none (shadow mode)"
    return f"aborted ({release.reason})" if release.reason else "aborted"


def _deployed(releases: Iterable[ReleaseRecord], model_id: str) -> str | None:
    """Returns the newest time at which a release left ``model_id`` serving alone."""
    served = (one for one in releases if one.left_serving and one.left_serving.model_id == model_id)
    return max((one.closed_at for one in served if one.closed_at), default=None)


def _issues(
    found: queries.Row, jobs: Iterable[JobRecord], releases: Iterable[ReleaseRecord]
) -> tuple[list[str], list[str]]:
    """Returns the issues of a day, and a recommendation for each that has one."""
    issues, advice = list[str](), list[str]()
    if not found["trajectories"]:
        issues.append("no trajectory was collected")
        advice.append("Check that agents reach NATS or the gateway.")
    decided = found["rewarded"] + found["unscored"]
    if decided and found["unscored"] / decided > UNSCORED_SHARE:
        issues.append(f"{found['unscored']:,} of {decided:,} trajectories are unscored")
        advice.append("Look at their causes in 'onward status'.")
    for issue, remedy in (*_of_jobs(jobs), *_of_releases(releases)):
        issues.append(issue)
        if remedy:
            advice.append(remedy)
    return issues, advice


def _of_jobs(jobs: Iterable[JobRecord]) -> Iterator[tuple[str, str | None]]:
    for job in jobs:
        if job.state == "failed":
            code = job.error.code if job.error else "UNKNOWN"
            yield f"training job {job.job_id} failed with {code}", _REMEDIES.get(code)


def _of_releases(releases: Iterable[ReleaseRecord]) -> Iterator[tuple[str, str | None]]:
    for one in releases:
        if one.state in (State.ROLLED_BACK, State.REJECTED):
            words = str(one.state).replace("_", " ")
            remedy = (one.incident or {}).get("recommendation")
            yield f"{one.candidate.model_id} was {words} ({one.reason_code or 'by an operator'})", remedy
