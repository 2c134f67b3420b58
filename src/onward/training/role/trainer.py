"""The trainer role: receives requests, runs one job child at a time, commits one result per job.

Invariants: compute may start twice after a crash; the attempt number and the create-only COMMIT object decide
which attempt counts. All input of the child is frozen into its folder before it starts. The folder survives,
so that a second attempt continues where the first one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any, Literal

import structlog

from onward import children
from onward.bus import Ack, DeadLetter, Message, consume
from onward.bus.cancellation import until_cancelled
from onward.bus.documents import is_learning_paused
from onward.clock import utc_text
from onward.context import Context
from onward.contracts import TrainingRequest, TrainingStatus, decode, encode, subjects
from onward.contracts.codec import validate
from onward.errors import (
    BusError,
    ConflictError,
    ContractError,
    ObjectError,
    OnwardError,
    RefusedError,
    TrainingError,
    WarehouseError,
)
from onward.files import is_disk_failure, locked
from onward.ids import local_id, new_id
from onward.roles import ready, together
from onward.telemetry.crashpoints import crashpoint
from onward.training import checkpoints
from onward.training.data import frozen
from onward.training.job.worker import PASSED, STOPPED
from onward.training.role.job_table import TERMINAL, JobError, JobLease, JobRecord, JobTable
from onward.training.spec import differences, recipes, request

log = structlog.get_logger(__name__)

IDLE_SECONDS = 0.5
PROGRESS_SECONDS = 2.0
MOST_KILLED = 10
"""Attempts that may be killed before the job fails: a job that needs too much memory is killed each time."""
ALERT_AT, ALERT_EVERY = 3, 60
"""Interruptions of one job in a row after which an alert is raised, and after how many it is repeated."""
KILLS = frozenset(signal.Signals) - {
    signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS,
}  # fmt: skip
"""Signals that end a process from outside; the others are its own crashes."""
Cause = Literal["failed", "refused", "killed", "outage"]
"""Reason why an attempt ended without a result. ``refused``: a part answered, and refused. This one and
``failed`` count towards ``training.max_attempts``. After all but ``failed`` the job waits for a while."""


class Trainer:
    """State of one trainer process. ``owner`` names this run of it; ``node`` names its data folder."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.table = JobTable(ctx.bus.bucket("rl_jobs"), ctx.clock)
        self.node = local_id(ctx.settings.run_dir / "node")
        self.owner = f"{self.node}:{new_id()}"
        self._seen: dict[str, tuple[int, float]] = {}

    async def handle_requests(self, messages: list[Message]) -> list[Ack | DeadLetter]:
        """Records each request once; dead-letters a request that cannot be recorded, with a reason."""
        dispositions: list[Ack | DeadLetter] = []
        for message in messages:
            try:
                asked = decode(message.data, TrainingRequest)
                request.refuse_operators_rights(asked)
                record, created = await self.table.register(asked)
            except ContractError as error:
                dispositions.append(DeadLetter(error.reason, str(error)))
                continue
            crashpoint("training.intake")
            if created:
                await self.announce(record)
                log.info("job queued", job_id=record.job_id)
            dispositions.append(Ack())
        return dispositions

    async def run_jobs(self) -> None:
        """Claims and runs queued jobs until cancelled; while NATS is away, waits for it."""
        for _ in until_cancelled():
            try:
                await self._work()
            except BusError as error:
                log.warning("the trainer waits for NATS", reason=str(error))
                await self.ctx.clock.sleep(IDLE_SECONDS)

    async def _work(self) -> None:
        for record, revision in await self.table.all():
            await self._reap(record, revision, grace=0.0 if self._is_mine(record) else None)
        for _ in until_cancelled():
            claimed = None
            started = self.ctx.clock.monotonic()
            if not await is_learning_paused(self.ctx.bus):
                for record, revision in await self.table.queued():
                    with contextlib.suppress(ConflictError):
                        claimed = await self.table.claim(record, revision, self.owner)
                        break
            if claimed is None:
                for record, revision in await self.table.all():
                    await self._reap(record, revision, grace=None)
                await self.ctx.clock.sleep(IDLE_SECONDS)
                continue
            await self._run(JobLease(self.table, *claimed, self.ctx.clock, self._term, started))

    @property
    def _term(self) -> float:
        return self.ctx.settings.training.lease_seconds

    def _is_mine(self, record: JobRecord) -> bool:
        """True if a run on this data folder owns the job: an earlier one (its lock is free) or this one."""
        return (record.owner or "").split(":")[0] == self.node

    async def _reap(self, record: JobRecord, revision: int, grace: float | None) -> None:
        """Requeues a running job whose owner is gone: its revision did not change for a whole lease. It is
        called only while no job runs here, so a running job that this process owns was abandoned by it."""
        if record.state != "running":
            return
        now = self.ctx.clock.monotonic()
        known, since = self._seen.get(record.job_id, (-1, now))
        if known != revision:
            self._seen[record.job_id] = (revision, now)
            since = now
        if now - since < (self._term if grace is None else grace):
            return
        abandoned = record.owner == self.owner  # by this process, while NATS was away
        why = JobError(code="INFRA", message="The worker died and the job was given up.")
        with contextlib.suppress(ConflictError):
            await self._again(record, revision, why, "outage" if abandoned else "killed", pause=False)

    async def _again(
        self, record: JobRecord, revision: int, why: JobError, cause: Cause, *, pause: bool
    ) -> None:
        """Returns the job to the queue for the next attempt, or fails it after the last allowed one. With
        ``pause`` it waits there, longer each time in a row, with an alert if that goes on."""
        counts = {"killed": record.killed + (cause == "killed")}
        counts["handed_back"] = record.handed_back + (cause == "outage")
        attempts, most = record.failed_attempts, self.ctx.settings.training.max_attempts
        if cause == "killed":
            attempts, most = counts["killed"], MOST_KILLED
        if cause != "outage" and attempts >= most:
            message = f"{why.message} This was attempt {attempts} of {most}."
            error = JobError(code=why.code, message=message)
            await self._finish(record, revision, "failed", error=error, **counts)
            return
        log.warning("job queued again", job_id=record.job_id, attempt=record.attempt, reason=why.message)
        if not pause:
            await self.table.move(record, revision, "queued", owner=None, interruptions=0, **counts)
            return
        record, _ = await self.table.postpone(record, revision, why, **counts)
        if record.interruptions == ALERT_AT or record.interruptions % ALERT_EVERY == 0:
            await self.ctx.alerts.raise_(
                "training_interrupted",
                f"Training job {record.job_id} was interrupted {record.interruptions} times in a row from "
                f"outside, and waits in the queue: {why.message}",
                job_id=record.job_id,
                code=why.code,
            )

    async def _run(self, lease: JobLease) -> None:
        """Runs one attempt, from freezing the data to the commit."""
        renewing = asyncio.create_task(self._renew(lease))
        work = asyncio.create_task(self._attempt(lease))
        try:
            await asyncio.wait({renewing, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():  # the lease is lost: another worker owns the job now, or soon may
                log.warning("job lease lost", job_id=lease.record.job_id)
                return
            async with lease.lock:  # never in the middle of a renewal: its revision would be unknown
                renewing.cancel()
            await self._conclude(lease, work)
        except ConflictError:
            log.warning("job lease lost", job_id=lease.record.job_id)
        except asyncio.CancelledError:
            await self._hand_back(lease, renewing, work)
            raise
        finally:
            for task in (renewing, work):
                task.cancel()
            await asyncio.gather(renewing, work, return_exceptions=True)

    async def _conclude(self, lease: JobLease, work: asyncio.Task[tuple[checkpoints.Commit, Any]]) -> None:
        """Records the end of an attempt. Raises ConflictError when the job has another owner by now."""
        record, revision = lease.record, lease.revision
        try:
            commit, done = work.result()
        except ConflictError:
            raise
        except (OnwardError, OSError) as error:
            cause, why = _cause_of(error, self.ctx.settings.data_dir), _as_job_error(error)
            if cause is None:
                await self._finish(record, revision, "failed", error=why)
            else:
                await self._again(record, revision, why, cause, pause=cause != "failed")
        else:
            await self._complete(lease, commit, done)

    async def _hand_back(self, lease: JobLease, *tasks: asyncio.Task[Any]) -> None:
        """Returns the job to the queue on a clean stop, so that a restart need not wait for the lease."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if lease.record.state == "running":
                back = lease.record.handed_back + 1
                await self.table.move(lease.record, lease.revision, "queued", owner=None, handed_back=back)
        except OnwardError as error:
            log.warning("a job was not handed back: its lease must expire", cause=str(error))

    async def _renew(self, lease: JobLease) -> None:
        """Renews the lease; returns when it is lost, or expired without NATS: the work must end then."""
        while True:
            await self.ctx.clock.sleep(self._term / 3)
            try:
                await lease.renew()
            except (ConflictError, BusError):
                return

    async def _attempt(self, lease: JobLease) -> tuple[checkpoints.Commit, dict[str, Any]]:
        record = lease.record
        await self.announce(record)
        try:
            asked = validate(record.request, TrainingRequest)
        except ContractError as error:
            raise TrainingError("DATA", f"The request in the job's record cannot be read: {error}") from None
        request.check(asked, self.ctx.settings)
        folder = self.ctx.settings.data_dir / "jobs" / record.job_id
        folder.mkdir(parents=True, exist_ok=True)
        made = await self._prepare(lease, asked, folder)
        crashpoint("training.frozen")
        done = await self._compute(lease, folder, made)
        checkpoint = folder / "checkpoint"
        manifest = checkpoints.verify(checkpoint)
        crashpoint("training.before_upload")
        prefix = await checkpoints.upload(
            self.ctx.objects, checkpoint, job_id=record.job_id, epoch=record.attempt
        )
        crashpoint("training.before_commit")
        body = (checkpoint / checkpoints.MANIFEST).read_bytes()
        commit = await checkpoints.commit(self.ctx.objects, body, manifest, prefix)
        crashpoint("training.after_commit")
        return commit, done

    async def _prepare(self, lease: JobLease, asked: TrainingRequest, folder: Path) -> dict[str, Any]:
        """Freezes data and start policy into ``folder``, and writes ``spec.json``."""
        made = await frozen.freeze(self.ctx, asked, folder)
        spec = request.resolve(
            asked,
            self.ctx.settings,
            recipes.for_model(asked.training_config.base_model),
            model_folder=str(self.ctx.base_model),
            start_digest=made["start_digest"],
            epoch=lease.record.attempt,
        )
        (folder / "spec.json").write_text(spec.model_dump_json(indent=1))
        await lease.renew(
            start_digest=made["start_digest"], dataset_sha256=made["dataset_sha256"], samples=made["samples"]
        )
        return made

    async def _compute(self, lease: JobLease, folder: Path, made: dict[str, Any]) -> dict[str, Any]:
        """Runs the child to its end and returns its ``done`` event."""
        threads = self.ctx.settings.model.threads or os.cpu_count() or 1
        child = await children.start(
            "onward.training.job.worker",
            str(folder),
            group=True,
            environment={"OMP_NUM_THREADS": str(threads)},
            passed=PASSED,
            log=self.ctx.settings.data_dir / "logs" / f"job-{lease.record.job_id}.log",
        )
        result: dict[str, Any] | None = None
        last = -PROGRESS_SECONDS
        try:
            async for event in children.events(child):
                if event["event"] == "failed":
                    raise TrainingError(event["code"], event["message"])
                if event["event"] == "done":
                    result = event
                now = self.ctx.clock.monotonic()
                if event["event"] == "progress" and now - last >= PROGRESS_SECONDS:
                    last = now
                    await self._progress(lease, event)
            code = await child.wait()
        finally:
            await children.end(child)
        if result is None:
            kind = _ChildKilledError if code == STOPPED or -code in KILLS else _ChildDiedError
            raise kind(
                "OOM" if code == -signal.SIGKILL else "UNKNOWN",
                f"The training process ended with code {code} and no result: "
                f"see logs/job-{lease.record.job_id}.log.",
            )
        samples = made["samples"]
        if samples is None:  # an environment job: the child made its data itself
            samples = int(result["metrics"].get("episodes", 0))
        return {**result, "samples": samples, "excluded": made["excluded"]}

    async def _progress(self, lease: JobLease, event: dict[str, Any]) -> None:
        total, step = event["total_steps"], event["step"]
        epochs = event["total_epochs"]
        progress = {
            "current_epoch": min(epochs, step * epochs // max(1, total)),
            "total_epochs": epochs,
            "current_step": step,
            "total_steps": total,
            "percent_complete": 100.0 * step / total,
            "eta_seconds": event["elapsed"] / max(1, step) * (total - step),
        }
        with contextlib.suppress(ConflictError, BusError):  # the renewer will notice a lost lease
            await lease.renew(progress={**progress, "metrics": event["metrics"]})
        await self._publish(
            lease.record, f"step-{step}", progress=progress, metrics={"current": event["metrics"]}
        )

    async def _complete(self, lease: JobLease, commit: checkpoints.Commit, done: dict[str, Any]) -> None:
        record = await self._finish(
            lease.record, lease.revision, "completed", commit=commit, samples=done["samples"],
            progress={"metrics": done["metrics"]},
        )  # fmt: skip
        seconds = done["seconds"]
        self.ctx.metrics.training_duration.observe(seconds)
        self.ctx.metrics.training_samples.set(done["samples"])
        log.info("job completed", job_id=record.job_id, seconds=round(seconds, 1), samples=done["samples"])

    async def _finish(self, record: JobRecord, revision: int, state: Any, **changes: Any) -> JobRecord:
        record, revision = await self.table.move(record, revision, state, **changes)
        crashpoint("training.finished")
        self.ctx.metrics.training_jobs.labels(status=state).inc()
        await self._announce_end(record, revision)
        return record

    async def _announce_end(self, record: JobRecord, revision: int) -> None:
        await self.announce(record)
        await self.table.mark_announced(record, revision)

    async def announce(self, record: JobRecord) -> None:
        """Publishes the record's state. The same state of the same attempt has the same message id."""
        extra: dict[str, Any] = {}
        if record.commit is not None:
            extra["artifacts"] = {"final_checkpoint": record.commit.object_prefix}
            metrics = record.progress.get("metrics", {})
            extra["metrics"] = {"current": metrics}
            held_out = evaluation_results(metrics)
            if held_out:
                extra["evaluation_results"] = held_out
        if record.error is not None:
            extra["error"] = record.error.model_dump()
        await self._publish(record, record.state, **extra)

    async def _publish(self, record: JobRecord, tag: str, **fields: Any) -> None:
        told = differences.stored_differences(record.request, self.ctx.settings)
        notes = {"not_as_asked": told} if told else {}
        status = TrainingStatus.model_validate(
            {
                "training_job_id": record.job_id,
                "timestamp": utc_text(self.ctx.clock.now()),
                "status": record.state,
                "metadata": {"training_platform": "onward", "attempt": record.attempt, **notes},
                **fields,
            }
        )
        await self.ctx.bus.publish(
            subjects.TRAINING_STATUS, encode(status), msg_id=f"{record.job_id}:{record.attempt}:{tag}"
        )

    async def reannounce(self) -> None:
        """Publishes events that a crash after a state change has prevented. Announced states are skipped: a
        repeat after the dedupe window would look like a new event.
        """
        for record, revision in await self.table.all():
            try:
                await self._announce_again(record, revision)
            except BusError:
                raise
            except Exception as error:  # one damaged record must not stop the other jobs
                log.warning("a job was not announced again", job_id=record.job_id, error=repr(error))

    async def _announce_again(self, record: JobRecord, revision: int) -> None:
        if record.state in TERMINAL:
            if not record.announced:
                await self._announce_end(record, revision)
        elif record.attempt == 0:
            await self.announce(record)


def evaluation_results(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns the status fields of held-out tasks tried before and after; empty without them."""
    told = metrics.get("held_out") or {}
    before, after = (told.get(when, {}).get("reward") for when in ("before", "after"))
    if before is None or after is None:
        return {}
    return {"holdout_reward": after, "improvement_over_baseline": after - before}


class _ChildDiedError(TrainingError):
    """The job child ended without a result; the next attempt continues from its last state."""


class _ChildKilledError(_ChildDiedError):
    """The job child was ended from outside: by a signal, or for lack of memory."""


def _cause_of(error: OnwardError | OSError, folder: Path) -> Cause | None:
    """Returns why an attempt ended; None if no further attempt could succeed."""
    if isinstance(error, _ChildKilledError):
        return "killed"
    if isinstance(error, RefusedError):
        return "refused"
    if isinstance(error, BusError | ObjectError | WarehouseError):
        return "outage"
    if isinstance(error, OSError):
        return "outage" if is_disk_failure(error, folder) else "failed"
    if isinstance(error, TrainingError) and not isinstance(error, _ChildDiedError):
        return "outage" if error.code == "INFRA" else None
    return "failed"  # the child crashed, or a store has wrong content: the next attempt may succeed


def _as_job_error(error: OnwardError | OSError) -> JobError:
    if isinstance(error, TrainingError):
        return JobError.from_error(error)
    if isinstance(error, OSError):
        return JobError(code="INFRA", message=f"The job's folder cannot be used ({error.strerror}).")
    return JobError(code="INFRA", message=str(error))


async def run(ctx: Context) -> None:
    """Accepts requests and runs jobs until cancelled. Raises ConfigError beside another trainer."""
    busy = "Another trainer runs on this data folder: stop it, or give this one a folder of its own (--dir)."
    with locked(ctx.settings.run_dir / "trainer.lock", busy):
        trainer = Trainer(ctx)
        await trainer.reannounce()
        intake = consume(
            ctx.bus,
            stream="RL_TRAINING",
            durable="trainer",
            subject=subjects.TRAINING_REQUEST,
            handler=trainer.handle_requests,
            clock=ctx.clock,
        )
        with ready(ctx, "trainer"):
            await together(intake, trainer.run_jobs())
