"""The consequences of an attempt's end: a completed, failed or cancelled job, or the next attempt.

Invariants: the record changes first, by compare-and-set; the status is published afterwards, and again at the
next start if the trainer died between. An alert may come twice, never not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import replace
from typing import Any

import structlog

from onward.capture.make_redactor import redactor_of
from onward.config import Settings
from onward.context import Context
from onward.errors import ConflictError, OnwardError, RedactionError
from onward.telemetry.crashpoints import crashpoint
from onward.training import checkpoints
from onward.training.role import artefacts, remedies
from onward.training.role.announcer import Announcer
from onward.training.role.attempt import folder_of
from onward.training.role.endings import Ending, classify
from onward.training.role.job_table import JobError, JobRecord, JobTable
from onward.training.role.remedies import Remedy

log = structlog.get_logger(__name__)

MOST_KILLED = 10
"""Attempts that may be killed before the job fails: a job that needs too much memory is killed each time."""
ALERT_AT, ALERT_EVERY_SECONDS = 3, 3600.0
"""Interruptions of one job in a row after which an alert is raised, and time after which it is repeated."""
FAILED_IN_A_ROW = 3


class Conclusions:
    def __init__(self, ctx: Context, table: JobTable, announcer: Announcer) -> None:
        self.ctx = ctx
        self._table = table
        self._announcer = announcer

    async def complete(
        self, record: JobRecord, revision: int, commit: checkpoints.Commit | None, done: dict[str, Any]
    ) -> None:
        await self.finish(
            record, revision, "completed", commit=commit, samples=done["samples"],
            progress={**record.progress, "percent_complete": 100.0, "eta_seconds": 0.0,
                      "metrics": done["metrics"]},
            artifacts=done.get("artifacts", {}),
            resource_usage=artefacts.usage(done, self.ctx.settings.training.cost_per_hour),
        )  # fmt: skip
        seconds = done["seconds"]
        self.ctx.metrics.training_duration.observe(seconds)
        self.ctx.metrics.training_samples.set(done["samples"])
        log.info("job completed", job_id=record.job_id, seconds=round(seconds, 1), samples=done["samples"])

    async def finish(self, record: JobRecord, revision: int, state: Any, **changes: Any) -> None:
        """Ends the job. Raises ConflictError when its record changed."""
        record, revision = await self._table.move(record, revision, state, **changes)
        crashpoint("training.finished")
        self.ctx.metrics.training_jobs.labels(status=state).inc()
        await self.announce_end(record, revision)

    async def announce_end(self, record: JobRecord, revision: int) -> None:
        """Publishes how a job ended, and marks it as announced."""
        await self._announcer.announce(record)
        if record.state == "failed":
            await self._alert_of_failures()
        with contextlib.suppress(ConflictError):  # it was announced elsewhere at the same time
            await self._table.mark_announced(record, revision)

    async def _alert_of_failures(self) -> None:
        """Raises an alert at the third failed job in a row, and at each third one after it."""
        ended = [record for record, _ in await self._table.all() if record.state in ("completed", "failed")]
        ended.sort(key=lambda record: (record.updated_at, record.number), reverse=True)
        failed = list(itertools.takewhile(lambda record: record.state == "failed", ended))[::-1]
        if not failed or len(failed) % FAILED_IN_A_ROW:
            return
        codes = ", ".join(record.error.code if record.error else "UNKNOWN" for record in failed)
        await self.ctx.alerts.raise_(
            "training_keeps_failing",
            f"The last {len(failed)} training jobs failed ({codes}): see 'onward jobs list'.",
            "critical",
            job_ids=[record.job_id for record in failed],
        )

    async def ending_of(self, record: JobRecord, error: OnwardError | OSError) -> Ending:
        """Classifies the end of an attempt. An unknown error raises an alert with its traceback, redacted."""
        ending = classify(error, self.ctx.settings.data_dir)
        if ending.error.code != "UNKNOWN":
            return ending
        trace = getattr(error, "traceback", None)
        if trace is not None:
            trace = await asyncio.to_thread(_redacted, trace, self.ctx.settings)
        await self.ctx.alerts.raise_(
            "training_unknown_error",
            f"Attempt {record.attempt} of training job {record.job_id} ended with an error of no known kind: "
            f"{ending.error.message}",
            "critical",
            job_id=record.job_id,
            traceback=trace,
        )
        return replace(ending, error=ending.error.model_copy(update={"traceback": trace}))

    async def again(self, record: JobRecord, revision: int, ending: Ending) -> None:
        """Returns the job to the queue for the next attempt, with what that one does differently, or fails it
        if another attempt is not allowed or would not help. Raises ConflictError."""
        counts = {
            "killed": record.killed + (ending.cause == "killed"),
            "handed_back": record.handed_back + (ending.cause == "outage"),
        }
        if record.cancel_requested:
            await self.finish(record, revision, "cancelled", owner=None, **counts)
            return
        if ending.cause == "final":
            await self.finish(record, revision, "failed", error=ending.error, **counts)
            return
        attempts, most = record.failed_attempts, self.ctx.settings.training.max_attempts
        if ending.cause == "killed":
            attempts, most = counts["killed"], MOST_KILLED
        if ending.cause != "outage" and attempts >= most:
            why = f"This was attempt {attempts} of {most}."
            await self._fail(record, revision, ending.error, why, counts)
            return
        remedy = Remedy()
        if ending.cause == "failed":
            found = await remedies.find(ending.error.code, record, folder_of(self.ctx, record.job_id))
            if isinstance(found, str):
                await self._fail(record, revision, ending.error, found, counts)
                return
            remedy = found
        await self._queue(record, revision, ending, remedy, counts)

    async def _fail(
        self, record: JobRecord, revision: int, error: JobError, why: str, counts: dict[str, int]
    ) -> None:
        error = error.model_copy(update={"message": f"{error.message} {why}"})
        await self.finish(record, revision, "failed", error=error, **counts)

    async def _queue(
        self, record: JobRecord, revision: int, ending: Ending, remedy: Remedy, counts: dict[str, int]
    ) -> None:
        reason = ending.error.message
        log.warning(
            "job queued again", job_id=record.job_id, attempt=record.attempt, reason=reason,
            change=remedy.sentence or None,
        )  # fmt: skip
        changes = {**counts, **remedy.fields}
        if remedy.sentence:
            changes["changes"] = [*record.changes, remedy.sentence]
        if ending.pauses:
            longest = self.ctx.settings.training.infra_pause_seconds
            record, _ = await self._table.postpone(record, revision, ending.error, longest, **changes)
            await self._alert_of_interruptions(record, ending.error, longest)
        else:
            record, _ = await self._table.move(
                record, revision, "queued", owner=None, error=ending.error, interruptions=0, **changes
            )
        await self._announcer.announce(record)

    async def _alert_of_interruptions(self, record: JobRecord, error: JobError, longest: float) -> None:
        times = record.interruptions
        if times != ALERT_AT and times % max(ALERT_AT, round(ALERT_EVERY_SECONDS / longest)):
            return
        await self.ctx.alerts.raise_(
            "training_interrupted",
            f"Training job {record.job_id} was interrupted {times} times in a row from outside, and waits in "
            f"the queue: {error.message}",
            job_id=record.job_id,
            code=error.code,
        )


def _redacted(text: str, settings: Settings) -> str:
    try:
        return str(redactor_of(settings).document(text).document)
    except RedactionError as error:
        return f"The traceback is not shown: {error}"
