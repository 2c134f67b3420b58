"""The trainer role: receives requests, claims jobs, and runs one attempt at a time.

Invariants: compute may start twice after a crash; the attempt number and the create-only COMMIT object decide
which attempt counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from onward import extras
from onward.bus import Ack, DeadLetter, Message, consume
from onward.bus.cancellation import until_cancelled
from onward.bus.documents import is_learning_paused
from onward.context import Context
from onward.contracts import TrainingRequest, decode, subjects
from onward.contracts.training import ControlRequest, RubricsRequest
from onward.errors import BusError, ConflictError, ContractError, OnwardError, TrainingError
from onward.files import locked
from onward.ids import local_id, new_id
from onward.roles import beside, ready, together
from onward.telemetry.crashpoints import crashpoint
from onward.training import checkpoints
from onward.training.job.worker import MOST_TRACE
from onward.training.role import status
from onward.training.role.announcer import Announcer
from onward.training.role.attempt import Attempt
from onward.training.role.conclusions import Conclusions
from onward.training.role.control_attempt import ControlAttempt
from onward.training.role.endings import ChildError, Ending
from onward.training.role.job_lease import JobLease
from onward.training.role.job_table import TERMINAL, JobError, JobRecord, JobRequest, JobTable, type_of
from onward.training.role.possible import refuse_impossible
from onward.training.role.rubrics_attempt import RubricsAttempt
from onward.training.spec import request

log = structlog.get_logger(__name__)

IDLE_SECONDS = 0.5
_Result = tuple[checkpoints.Commit | None, dict[str, Any]]
"""Result of an attempt: its commit, which only jobs on the base model have, and the child's last event."""
ATTEND_SECONDS = 1.0
"""Pause between two looks for jobs that were cancelled."""


class Trainer:
    """State of one trainer process. ``owner`` names this run of it; ``node`` names its data folder."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.table = JobTable(ctx.bus.bucket("rl_jobs"), ctx.clock)
        self.node = local_id(ctx.settings.run_dir / "node")
        self.owner = f"{self.node}:{new_id()}"
        self.announcer = Announcer(ctx, self.table)
        self.ends = Conclusions(ctx, self.table, self.announcer)
        self._seen: dict[str, tuple[int, float]] = {}

    async def handle_requests(self, messages: list[Message]) -> list[Ack | DeadLetter]:
        """Records each request once; dead-letters a request that cannot be recorded, with a reason."""
        return await self._take(messages, _training_request)

    async def handle_control(self, messages: list[Message]) -> list[Ack | DeadLetter]:
        """Does the same for requests of control jobs."""
        return await self._take(messages, partial(decode, model=ControlRequest))

    async def handle_rubrics(self, messages: list[Message]) -> list[Ack | DeadLetter]:
        """Does the same for requests of rubrics jobs."""
        return await self._take(messages, partial(decode, model=RubricsRequest))

    async def _take(
        self, messages: list[Message], read: Callable[[bytes], JobRequest]
    ) -> list[Ack | DeadLetter]:
        dispositions: list[Ack | DeadLetter] = []
        for message in messages:
            try:
                asked = read(message.data)
                record, created = await self.table.register(asked, self._impossible(asked))
            except ContractError as error:
                dispositions.append(DeadLetter(error.reason, str(error)))
                continue
            crashpoint("training.intake")
            if created and record.state == "failed":
                self.ctx.metrics.training_jobs.labels(status="failed").inc()
                await self.ends.announce_end(*await self.table.get(record.job_id))
            elif created:
                await self.announcer.announce(record)
                log.info("job queued", job_id=record.job_id)
            dispositions.append(Ack())
        return dispositions

    def _impossible(self, asked: JobRequest) -> JobError | None:
        """Returns why a request can only fail, or None. Behind other jobs, its turn may be hours away."""
        try:
            refuse_impossible(asked, self.ctx.settings)
        except TrainingError as error:
            return JobError.from_error(error)
        return None

    async def answer_status(self, data: bytes) -> bytes:
        """Returns the one answer to a request for the status of a job."""
        return await status.answer(self.table, self.ctx.settings, data)

    async def run_jobs(self) -> None:
        """Claims and runs queued jobs until cancelled; while NATS is away, waits for it."""
        async with beside(self._attend()):
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
            await self.ends.again(record, revision, Ending(why, "outage" if abandoned else "killed"))

    async def _run(self, lease: JobLease) -> None:
        """Runs one attempt, from freezing the data to the commit."""
        renewing = asyncio.create_task(self._renew(lease))
        work = asyncio.create_task(self._attempt(lease))
        cancelled = asyncio.create_task(self._until_cancelled(lease))
        try:
            await asyncio.wait({renewing, work, cancelled}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not cancelled.done():
                # the lease is lost: another worker owns the job now, or soon may
                log.warning("job lease lost", job_id=lease.record.job_id)
                return
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            async with lease.lock:  # never in the middle of a renewal: its revision would be unknown
                renewing.cancel()
            await self._conclude(lease, work)
        except ConflictError:
            log.warning("job lease lost", job_id=lease.record.job_id)
        except asyncio.CancelledError:
            await self._hand_back(lease, renewing, work)
            raise
        finally:
            for task in (renewing, work, cancelled):
                task.cancel()
            await asyncio.gather(renewing, work, cancelled, return_exceptions=True)

    async def _attempt(self, lease: JobLease) -> _Result:
        kind = type_of(lease.record.request)
        if kind is ControlRequest:
            return None, await ControlAttempt(self.ctx, lease, self.announcer).run_control()
        if kind is RubricsRequest:
            return None, await RubricsAttempt(self.ctx, lease, self.announcer).run_rubrics()
        return await Attempt(self.ctx, lease, self.announcer).run()

    async def _until_cancelled(self, lease: JobLease) -> None:
        """Returns when the job is to be cancelled."""
        while True:
            await self.ctx.clock.sleep(ATTEND_SECONDS)
            with contextlib.suppress(BusError, ContractError):
                record, _ = await self.table.get(lease.record.job_id)
                if record.cancel_requested:
                    return

    async def _conclude(self, lease: JobLease, work: asyncio.Task[_Result]) -> None:
        """Records the end of an attempt. Raises ConflictError when the job has another owner by now."""
        try:
            result, ending = work.result(), None
        except asyncio.CancelledError:  # on request; the job ends as cancelled
            result, ending = None, None
        except ConflictError:
            raise
        except (OnwardError, OSError) as error:
            result, ending = None, await self.ends.ending_of(lease.record, error)
        except Exception as error:  # a defect: it costs the job an attempt, and the role goes on
            found = "".join(traceback.format_exception(error))[-MOST_TRACE:]
            unknown = ChildError("UNKNOWN", f"The attempt failed ({type(error).__name__}).", found)
            result, ending = None, await self.ends.ending_of(lease.record, unknown)
        while True:
            await lease.refresh()  # someone may have cancelled the job meanwhile
            with contextlib.suppress(ConflictError):
                if result is not None:
                    return await self.ends.complete(lease.record, lease.revision, *result)
                if ending is not None:
                    return await self.ends.again(lease.record, lease.revision, ending)
                return await self.ends.finish(lease.record, lease.revision, "cancelled", owner=None)

    async def _hand_back(self, lease: JobLease, *tasks: asyncio.Task[Any]) -> None:
        """Returns the job to the queue on a clean stop, so that a restart need not wait for the lease."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if lease.record.state == "running":
                await lease.refresh()
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

    async def _attend(self) -> None:
        """Announces jobs that another process has cancelled, also while a job runs here."""
        while True:
            await self.ctx.clock.sleep(ATTEND_SECONDS)
            try:
                for record, revision in await self.table.all():
                    if record.state in TERMINAL and not record.announced:
                        await self._announce_again(record, revision)
            except Exception as error:  # it is tried again; the running job must not end
                log.warning("the end of a job was not announced", why=repr(error))

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
                await self.ends.announce_end(record, revision)
        elif record.attempt == 0:
            await self.announcer.announce(record)


def _training_request(data: bytes) -> TrainingRequest:
    asked = decode(data, TrainingRequest)
    request.refuse_operators_rights(asked)
    return asked


async def run(ctx: Context) -> None:
    """Accepts requests and runs jobs until cancelled. Raises ConfigError beside another trainer."""
    busy = "Another trainer runs on this data folder: stop it, or give this one a folder of its own (--dir)."
    for name in ctx.settings.training.trackers:
        extras.require(name, name, f"training.trackers = {name!r}")
    with locked(ctx.settings.run_dir / "trainer.lock", busy):
        trainer = Trainer(ctx)
        await trainer.table.number_all()
        await trainer.reannounce()
        intakes = [
            consume(
                ctx.bus,
                stream="RL_TRAINING",
                durable=durable,
                subject=subject,
                handler=handler,
                clock=ctx.clock,
            )
            for durable, subject, handler in (
                ("trainer", subjects.TRAINING_REQUEST, trainer.handle_requests),
                ("trainer-control", subjects.TRAINING_CONTROL, trainer.handle_control),
                ("trainer-rubrics", subjects.TRAINING_RUBRICS, trainer.handle_rubrics),
            )
        ]
        await ctx.bus.serve(subjects.TRAINING_STATUS_REQUEST, trainer.answer_status, queue="trainer")
        with ready(ctx, "trainer"):
            await together(*intakes, trainer.run_jobs())
