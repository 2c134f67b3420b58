"""The coordinator role: counts new trajectories, requests one training job at a time, reports failed jobs.

Invariants: the planned request is recorded by compare-and-set *before* it is published. Its id is derived
from the policy and the snapshot. A restart publishes the recorded bytes again under the same id, and two
coordinators cannot both record.
"""

from __future__ import annotations

import contextlib
import json

from onward.bus import Ack, Bucket, Bus, Disposition, Message, consume, read_document
from onward.bus.cancellation import until_cancelled
from onward.clock import utc_text
from onward.context import Context
from onward.contracts import TrainingStatus, decode, encode, subjects
from onward.contracts.buckets import DesiredRoutes, JobEntry, LastRequest, Learning, ReleaseEntry
from onward.coordinator import training_request
from onward.coordinator.triggers import Situation, Train, Wait, decide
from onward.errors import BusError, ConflictError, ContractError, WarehouseError
from onward.release import plan
from onward.roles import together
from onward.telemetry import logs
from onward.training.data import corrections
from onward.training.role import job_table as jobs
from onward.warehouse import Warehouse, queries, reward_queries

log = logs.get("coordinator")

POLL_SECONDS = 1.0
UNANSWERED_SECONDS = 600.0
"""Seconds after which a request that no trainer accepted, or a finished job that no releaser accepted, no
longer blocks the next request."""
OLD_NEWS_SECONDS = 86_400.0
GROUP_SAMPLE = 200
OPEN_JOBS = jobs.TRANSITIONS.keys() - jobs.TERMINAL


async def run(ctx: Context) -> None:
    """Runs until cancelled; ready while it can decide."""
    coordinator = Coordinator(ctx)
    await together(coordinator.watch_jobs(), coordinator.run_decisions())


async def rewarded_since_snapshot(bus: Bus, warehouse: Warehouse) -> int:
    """Counts the rewarded trajectories of the current policy since the last requested job. This is the number
    that is compared with the threshold. It is used to show how far away the next job is."""
    digest, has_policy, _ = await _policy(bus)
    if not has_policy:
        return 0
    since, _ = await _snapshot(await read_document(bus, LastRequest) or LastRequest(), warehouse)
    return await queries.rewarded_count(warehouse, digest or "", since)


async def _policy(bus: Bus) -> tuple[str | None, bool, str | None]:
    """Returns (digest of the current policy, whether any policy serves, release id). The digest is None for a
    bare base model, unless its arm has a ``model_digest``."""
    desired = await read_document(bus, DesiredRoutes)
    if desired is None or not desired.arms:
        return None, False, None
    heaviest = max(desired.arms, key=lambda arm: arm.weight)
    current = next((arm for arm in desired.arms if arm.arm == "current"), heaviest)
    return current.adapter_digest or current.model_digest, True, desired.release_id


async def _snapshot(record: LastRequest, warehouse: Warehouse) -> tuple[int, int]:
    """Returns stream sequences: (of the last snapshot, of the newest stored trajectory)."""
    since, until = record.snapshot, await queries.latest_seq(warehouse)
    return (since if since <= until else 0), until  # a recreated stream counts from 1


class Coordinator:
    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._record: Bucket = ctx.bus.bucket(LastRequest.BUCKET)
        self._waiting_since: dict[str, float] = {}
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

    async def tick(self) -> Train | Wait:
        """Makes one decision and requests a job if it is due. Returns the decision."""
        record, revision = await self._read()
        if record.phase == "planned":  # the process ended between the record and the publish
            record, revision = await self._publish(record, revision)
        digest, has_policy, release = await _policy(self.ctx.bus)
        since, until = await _snapshot(record, self.ctx.warehouse)
        rewarded = 0
        if has_policy:
            rewarded = await queries.rewarded_count(self.ctx.warehouse, digest or "", since, until)
        decision = decide(
            Situation(
                rewarded=rewarded,
                threshold=self.ctx.settings.training.threshold,
                has_policy=has_policy,
                paused=await self._paused(),
                job=await self._open_job(record),
                release=release or await self._open_release(record),
            )
        )
        if isinstance(decision, Wait):
            if decision.why.split(" of ")[-1] != self._said:
                self._said = decision.why.split(" of ")[-1]
                log.info("waiting", why=decision.why)
            return decision
        await self._ask(decision, record, revision, digest, since, until, rewarded)
        return decision

    async def _ask(
        self,
        trigger: Train,
        record: LastRequest,
        revision: int,
        digest: str | None,
        since: int,
        until: int,
        rewarded: int,
    ) -> None:
        asked = training_request.build(
            self.ctx.settings,
            trigger,
            digest=digest,
            since=since,
            until=until,
            rewarded=rewarded,
            group_ids=await self._group_ids(digest),
            corrected=await self._corrected(digest, since),
            previous_job=record.job_id,
            now=self.ctx.clock.now(),
        )
        planned = LastRequest(
            phase=record.checked_phase("planned"),
            snapshot=until,
            model_digest=digest,
            job_id=asked.training_job_id,
            request=encode(asked).decode(),
        )
        revision = await self._write(planned, revision)
        await self._publish(planned, revision)
        log.info("training requested", job_id=asked.training_job_id, rewarded=rewarded, since=since)

    async def _publish(self, record: LastRequest, revision: int) -> tuple[LastRequest, int]:
        if record.request is None or record.job_id is None:
            raise ContractError(
                "coordinator_record",
                "The coordinator's record has a planned request without its text or id: drop the record.",
            )
        await self.ctx.bus.publish(subjects.TRAINING_REQUEST, record.request.encode(), msg_id=record.job_id)
        published = record.model_copy(
            update={
                "phase": record.checked_phase("published"),
                "published_at": utc_text(self.ctx.clock.now()),
            }
        )
        return published, await self._write(published, revision)

    async def _read(self) -> tuple[LastRequest, int]:
        entry = await self._record.get(LastRequest.KEY)
        return (LastRequest(), 0) if entry is None else (LastRequest.load(entry.value), entry.revision)

    async def _write(self, record: LastRequest, revision: int) -> int:
        if revision == 0:
            return await self._record.create(LastRequest.KEY, record.dump())
        return await self._record.update(LastRequest.KEY, record.dump(), revision)

    async def _paused(self) -> bool:
        return (await read_document(self.ctx.bus, Learning) or Learning()).paused

    async def _open_job(self, record: LastRequest) -> str | None:
        """Returns a job that is queued, running, or requested and not yet accepted."""
        known: set[str] = set()
        for entry in await self.ctx.bus.bucket(JobEntry.BUCKET).entries(JobEntry.KEY):
            job = JobEntry.load(entry.value)
            name = str(job.job_id or entry.key.removeprefix(JobEntry.KEY))
            known.add(name)
            if job.state in OPEN_JOBS:
                return name
        mine = record.job_id
        if mine and mine not in known and self._still_waiting(f"job {mine}"):
            return mine
        return None

    async def _open_release(self, record: LastRequest) -> str | None:
        """Returns a release that is not closed, or the completed job that waits for one."""
        released: set[str] = set()
        for entry in await self.ctx.bus.bucket(ReleaseEntry.BUCKET).entries(ReleaseEntry.KEY):
            release = ReleaseEntry.load(entry.value)
            released.add(str(release.job_id))
            if release.state not in plan.TERMINAL:
                return str(release.release_id)
        mine = record.job_id
        if not mine or mine in released:
            return None
        job = await read_document(self.ctx.bus, JobEntry, mine)
        if job is None or job.state != "completed":
            return None
        return f"of job {mine}" if self._still_waiting(f"release of job {mine}") else None

    def _still_waiting(self, what: str) -> bool:
        now = self.ctx.clock.monotonic()
        since = self._waiting_since.setdefault(what, now)
        return now - since < UNANSWERED_SECONDS

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
