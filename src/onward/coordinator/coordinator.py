"""The coordinator role: decides when to train, requests one training job at a time, reports jobs.

The triggers are degradation, a message of the superior agent, the threshold and the schedule
(``onward.coordinator.triggers``).

Invariants: the planned request is recorded by compare-and-set *before* it is published. Its id is derived
from the policy and the snapshot. A restart publishes the recorded bytes again under the same id, and two
coordinators cannot both record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import Any, NamedTuple

from onward.bus import Ack, Bucket, Bus, Disposition, Message, consume, read_all, read_stored
from onward.bus.cancellation import until_cancelled
from onward.bus.documents import is_learning_paused
from onward.capture.make_redactor import redactor_of
from onward.clock import utc_text
from onward.context import Context
from onward.contracts import TrainingStatus, decode, encode, subjects
from onward.contracts.buckets import JobEntry, LastRequest
from onward.coordinator import reports, superior, training_request
from onward.coordinator.open_work import OPEN_JOBS, OpenWork, Waiting, dataset_of
from onward.coordinator.policy import Policy, current_policy
from onward.coordinator.reporting import Reporter, send
from onward.coordinator.schedule import ScheduleKeeper
from onward.coordinator.triggers import Situation, Train, Wait, decide, leaves_out_run
from onward.coordinator.watching import PolicyWatcher
from onward.errors import BusError, ConflictError, ContractError, RedactionError, WarehouseError
from onward.roles import together
from onward.telemetry import logs
from onward.training.data import corrections
from onward.warehouse import Warehouse, queries, reward_queries

log = logs.get("coordinator")

POLL_SECONDS = 1.0
OLD_NEWS_SECONDS = 86_400.0
GROUP_SAMPLE = 200


async def run(ctx: Context) -> None:
    """Runs until cancelled; ready while it can decide."""
    coordinator = Coordinator(ctx)
    await ctx.bus.serve(subjects.TRAINER_MESSAGE, coordinator.answer, queue="coordinator")
    await together(coordinator.watch_jobs(), coordinator.run_decisions(), Reporter(ctx).run())


async def rewarded_since_snapshot(bus: Bus, warehouse: Warehouse) -> int:
    """Counts the rewarded trajectories of the current policy since the last requested job. This is the number
    that is compared with the threshold. It is used to show how far away the next job is."""
    policy = await current_policy(bus)
    if policy is None:
        return 0
    since, _ = await _snapshot((await _last_request(bus))[0], warehouse)
    return await queries.rewarded_count(warehouse, policy.digest or "", since)


async def _last_request(bus: Bus) -> tuple[LastRequest, int]:
    """Returns the last request and its revision. One that was never readable is made from the newest job of a
    coordinator, so that what was trained on does not count again."""
    stored = await read_stored(bus.bucket(LastRequest.BUCKET), LastRequest)
    if stored.document is not None or stored.readable:
        return stored.document or LastRequest(), stored.revision
    newest = LastRequest()
    for entry in await read_all(bus.bucket(JobEntry.BUCKET), JobEntry):
        asked = entry.document.request.get("metadata") if entry.document is not None else None
        until = asked.get("until") if isinstance(asked, dict) else None
        if entry.document is not None and isinstance(until, int) and until >= newest.snapshot:
            newest = LastRequest(phase="published", snapshot=until, job_id=entry.document.job_id)
    return newest, stored.revision


async def _snapshot(record: LastRequest, warehouse: Warehouse) -> tuple[int, int]:
    """Returns stream sequences: (of the last snapshot, of the newest stored trajectory)."""
    since, until = record.snapshot, await queries.latest_seq(warehouse)
    return (since if since <= until else 0), until  # a recreated stream counts from 1


class _Counted(NamedTuple):
    """Data of a request: the policy, the stream sequences of its window, its rewarded trajectories."""

    digest: str | None
    since: int
    until: int
    rewarded: int


class Coordinator:
    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._record: Bucket = ctx.bus.bucket(LastRequest.BUCKET)
        self._waiting = Waiting(ctx.clock)
        self._watcher = PolicyWatcher(ctx)
        self._schedule = ScheduleKeeper(ctx)
        self._one_at_a_time = asyncio.Lock()
        self._said: str | None = None

    async def run_decisions(self) -> None:
        for _ in until_cancelled():
            try:
                await self.tick()
                self.ctx.ready["coordinator"] = True
            except ConflictError:
                log.info("another coordinator was faster")
            except (BusError, WarehouseError) as error:
                self.ctx.ready["coordinator"] = False
                log.warning("no decision possible now", reason=str(error))
            await self.ctx.clock.sleep(POLL_SECONDS)

    async def tick(self, ask: superior.Ask | None = None) -> Train | Wait:
        """Makes one decision and requests a job if it is due. Returns the decision. ``ask`` is what a message
        of the superior agent asks for."""
        async with self._one_at_a_time:
            return await self._decide(ask)

    async def _decide(self, ask: superior.Ask | None) -> Train | Wait:
        record, revision = await _last_request(self.ctx.bus)
        if record.phase == "planned":  # the process ended between the record and the publish
            record, revision = await self._publish(record, revision)
        policy = await current_policy(self.ctx.bus)
        work = await OpenWork.read(self.ctx.bus)
        record, revision = await self._follow_jobs(record, revision, work, policy)
        since, until = await _snapshot(record, self.ctx.warehouse)
        rewarded = 0
        if policy is not None:
            digest = policy.digest or ""
            rewarded = await queries.rewarded_count(self.ctx.warehouse, digest, since, until)
        situation = await self._situation(record, work, policy, rewarded, asked=ask is not None)
        decision = decide(situation)
        if isinstance(decision, Train):
            counted = _Counted(policy.digest if policy else None, since, until, rewarded)
            await self._request(decision, record, revision, counted, ask)
        else:
            if leaves_out_run(situation, decision):
                await self._schedule.leave_out(decision.why)
            if decision.why.split(" of ")[-1] != self._said:
                self._said = decision.why.split(" of ")[-1]
                log.info("waiting", why=decision.why)
        return decision

    async def _situation(
        self, record: LastRequest, work: OpenWork, policy: Policy | None, rewarded: int, *, asked: bool
    ) -> Situation:
        training = self.ctx.settings.training
        cooldown = work.cooldown(training.cooldown_minutes, self.ctx.clock)
        return Situation(
            rewarded=rewarded,
            threshold=training.threshold,
            has_policy=policy is not None,
            paused=await is_learning_paused(self.ctx.bus),
            job=work.job(record, self._waiting),
            release=(policy and policy.release_id) or work.release(record, self._waiting),
            cooldown=None if cooldown is None else str(cooldown),
            min_new=training.min_new,
            degraded=policy is not None and await self._watcher.is_degraded(policy.digest, policy.model_id),
            manual=asked,
            scheduled=await self._schedule.is_due(record),
        )

    async def _request(
        self,
        trigger: Train,
        record: LastRequest,
        revision: int,
        counted: _Counted,
        ask: superior.Ask | None,
    ) -> None:
        asked = training_request.build(
            self.ctx.settings,
            trigger,
            digest=counted.digest,
            since=counted.since,
            until=counted.until,
            rewarded=counted.rewarded,
            group_ids=await self._group_ids(counted.digest),
            corrected=await self._corrected(counted.digest, counted.since),
            previous_job=record.job_id,
            ask=ask,
            now=self.ctx.clock.now(),
        )
        planned = LastRequest(
            phase=record.checked_phase("planned"),
            snapshot=counted.until,
            model_digest=counted.digest,
            job_id=asked.training_job_id,
            request=encode(asked).decode(),
        ).with_unknown_fields(record)
        revision = await self._write(planned, revision)
        await self._publish(planned, revision)
        log.info(
            "training requested",
            job_id=asked.training_job_id,
            reason=trigger.reason,
            priority=trigger.priority,
            rewarded=counted.rewarded,
            since=counted.since,
        )

    async def _publish(self, record: LastRequest, revision: int) -> tuple[LastRequest, int]:
        request, job_id = record.planned()
        await self.ctx.bus.publish(subjects.TRAINING_REQUEST, request.encode(), msg_id=job_id)
        published = record.model_copy(
            update={
                "phase": record.checked_phase("published"),
                "published_at": utc_text(self.ctx.clock.now()),
            }
        )
        return published, await self._write(published, revision)

    async def _write(self, record: LastRequest, revision: int) -> int:
        if revision == 0:
            return await self._record.create(LastRequest.KEY, record.dump())
        return await self._record.update(LastRequest.KEY, record.dump(), revision)

    async def _follow_jobs(
        self, record: LastRequest, revision: int, work: OpenWork, policy: Policy | None
    ) -> tuple[LastRequest, int]:
        """Takes a manual job as the last request, so that its data does not count again, and reports the last
        request once the trainer has accepted it."""
        other = work.job_of_others(record, self._waiting)
        if other is not None and policy is not None:
            record = LastRequest(
                phase=record.checked_phase("published"),
                snapshot=await queries.latest_seq(self.ctx.warehouse),
                model_digest=policy.digest,
                job_id=other,
                published_at=utc_text(self.ctx.clock.now()),
            ).with_unknown_fields(record)
            revision = await self._write(record, revision)
        job = work.jobs.get(record.job_id or "")
        if job is None or record.reported or record.phase != "published":
            return record, revision
        samples = dataset_of(job).get("sample_size")
        if isinstance(samples, int) and job.state in OPEN_JOBS:
            await send(self.ctx, reports.job_begins(job.number, record.job_id or "", samples))
        record = record.model_copy(update={"reported": True})
        return record, await self._write(record, revision)

    async def answer(self, body: bytes) -> bytes:
        """Answers a message of the superior agent: what was done, in a sentence, or why nothing was."""
        return json.dumps(await self._answer(body)).encode()

    async def _answer(self, body: bytes) -> dict[str, Any]:
        try:
            ask = superior.read(body)
            words = redactor_of(self.ctx.settings).document(ask.words).document  # they are stored as notes
            decision = await self.tick(replace(ask, words=str(words)))
        except ConflictError:
            said = "Another coordinator decided at the same moment: send the message again."
            return {"accepted": False, "message": said}
        except (BusError, ContractError, RedactionError, WarehouseError) as error:
            return {"accepted": False, "message": str(error)}
        if isinstance(decision, Wait):
            return {"accepted": False, "message": f"No training job now: {decision.why}."}
        record, _ = await _last_request(self.ctx.bus)
        return {
            "accepted": True,
            "training_job_id": record.job_id,
            "trigger_reason": decision.reason,
            "priority": decision.priority,
            "message": f"Training job {record.job_id} is requested.",
        }

    async def _group_ids(self, digest: str | None) -> list[str | None]:
        rows = await queries.trajectories_for_training(self.ctx.warehouse, [digest], limit=GROUP_SAMPLE)
        found: list[str | None] = []
        for row in rows:
            context = json.loads(row["payload"]).get("task_context") or {}
            found.append(context.get("group_id"))
        return found

    async def _corrected(self, digest: str | None, since: int) -> int:
        """Counts the new answers for which a user wrote a correction that can be trained on."""
        rows = await reward_queries.new_corrections(self.ctx.warehouse, digest or "", since)
        return corrections.usable_count(rows)

    async def watch_jobs(self) -> None:
        """Raises an alert for each failed job."""
        await consume(
            self.ctx.bus,
            stream="RL_TRAINING",
            durable="coordinator",
            subject=subjects.TRAINING_STATUS,
            handler=self.on_status,
        )

    async def on_status(self, messages: list[Message]) -> list[Disposition]:
        for message in messages:
            with contextlib.suppress(ContractError):  # the archiver dead-letters unreadable ones
                status = decode(message.data, TrainingStatus)
                age = (self.ctx.clock.now() - message.timestamp).total_seconds()
                if status.status == "failed" and age < OLD_NEWS_SECONDS:
                    code = (status.error and status.error.code) or "UNKNOWN"
                    text = (status.error and status.error.message) or "no message"
                    await self.ctx.alerts.raise_(
                        "training_failed",
                        f"Training job {status.training_job_id} failed with {code}: {text}",
                        "critical",
                        job_id=status.training_job_id,
                        code=code,
                    )
        return [Ack()] * len(messages)
