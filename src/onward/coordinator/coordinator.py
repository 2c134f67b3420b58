"""The coordinator role: counts new trajectories, requests one training job at a time, reports failed jobs.

Invariants: the planned request is recorded by compare-and-set *before* it is published. Its id is derived
from the policy and the snapshot. A restart publishes the recorded bytes again under the same id, and two
coordinators cannot both record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from onward.bus import Ack, Bucket, Bus, Disposition, Message, consume
from onward.bus.cancellation import until_cancelled
from onward.clock import utc_text
from onward.context import Context
from onward.contracts import TrainingStatus, decode, encode, subjects
from onward.coordinator import request
from onward.coordinator.triggers import Situation, Train, Wait, decide
from onward.errors import BusError, ConflictError, ContractError, WarehouseError
from onward.telemetry import logs
from onward.training.data import corrections
from onward.warehouse import Warehouse, queries, reward_queries

log = logs.get("coordinator")

POLL_SECONDS = 1.0
UNANSWERED_SECONDS = 600.0
"""Seconds after which a request that no trainer accepted, or a finished job that no releaser accepted, no
longer blocks the next request."""
OLD_NEWS_SECONDS = 86_400.0
STATE = "state"
GROUP_SAMPLE = 200
OPEN_JOBS = ("queued", "running")
CLOSED_RELEASES = ("promoted", "rolled_back", "rejected", "aborted")


async def run(ctx: Context) -> None:
    """Runs until cancelled."""
    coordinator = Coordinator(ctx)
    async with asyncio.TaskGroup() as group:
        group.create_task(coordinator.watch_jobs())
        group.create_task(coordinator.decide_for_ever())


async def rewarded_since_snapshot(bus: Bus, warehouse: Warehouse) -> int:
    """Counts the rewarded trajectories of the current policy since the last requested job.

    This is the number that is compared with the threshold. It is used to show how far away the next job is.
    """
    digest, has_policy, _ = await _policy(bus.bucket("rl_releases"))
    if not has_policy:
        return 0
    entry = await bus.bucket("rl_coordinator").get(STATE)
    since, _ = await _snapshot({} if entry is None else json.loads(entry.value), warehouse)
    return await queries.rewarded_count(warehouse, digest or "", since)


async def _policy(releases: Bucket) -> tuple[str | None, bool, str | None]:
    """Returns (digest of the current policy, whether any policy serves, release id). The digest is None for a
    bare base model, unless its arm has a ``model_digest``."""
    entry = await releases.get("desired")
    desired = {} if entry is None else json.loads(entry.value)
    arms = desired.get("arms") or []
    if not arms:
        return None, False, None
    heaviest = max(arms, key=lambda arm: arm.get("weight", 0.0))
    current = next((arm for arm in arms if arm.get("arm") == "current"), heaviest)
    digest = current.get("adapter_digest") or current.get("model_digest")
    return digest, True, desired.get("release_id")


async def _snapshot(record: dict[str, Any], warehouse: Warehouse) -> tuple[int, int]:
    """Returns stream sequences: (of the last snapshot, of the newest stored trajectory)."""
    since, until = int(record.get("snapshot", 0)), await queries.latest_seq(warehouse)
    return (since if since <= until else 0), until  # a recreated stream counts from 1


class Coordinator:
    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._record: Bucket = ctx.bus.bucket("rl_coordinator")
        self._jobs: Bucket = ctx.bus.bucket("rl_jobs")
        self._releases: Bucket = ctx.bus.bucket("rl_releases")
        self._control: Bucket = ctx.bus.bucket("rl_control")
        self._waiting_since: dict[str, float] = {}
        self._said: str | None = None

    async def decide_for_ever(self) -> None:
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
        if record.get("phase") == "planned":  # the process ended between the record and the publish
            record, revision = await self._publish(record, revision)
        digest, has_policy, release = await _policy(self._releases)
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
        record: dict[str, Any],
        revision: int,
        digest: str | None,
        since: int,
        until: int,
        rewarded: int,
    ) -> None:
        asked = request.build(
            self.ctx.settings,
            trigger,
            digest=digest,
            since=since,
            until=until,
            rewarded=rewarded,
            group_ids=await self._group_ids(digest),
            corrected=await self._corrected(digest, since),
            previous_job=record.get("job_id"),
            now=self.ctx.clock.now(),
        )
        planned = {
            "phase": "planned",
            "snapshot": until,
            "model_digest": digest,
            "job_id": asked.training_job_id,
            "request": encode(asked).decode(),
        }
        revision = await self._write(planned, revision)
        await self._publish(planned, revision)
        log.info("training requested", job_id=asked.training_job_id, rewarded=rewarded, since=since)

    async def _publish(self, record: dict[str, Any], revision: int) -> tuple[dict[str, Any], int]:
        body = record["request"].encode()
        await self.ctx.bus.publish(subjects.TRAINING_REQUEST, body, msg_id=record["job_id"])
        published = {**record, "phase": "published", "published_at": utc_text(self.ctx.clock.now())}
        return published, await self._write(published, revision)

    async def _read(self) -> tuple[dict[str, Any], int]:
        entry = await self._record.get(STATE)
        return ({}, 0) if entry is None else (json.loads(entry.value), entry.revision)

    async def _write(self, record: dict[str, Any], revision: int) -> int:
        value = json.dumps(record, sort_keys=True).encode()
        if revision == 0:
            return await self._record.create(STATE, value)
        return await self._record.update(STATE, value, revision)

    async def _paused(self) -> bool:
        entry = await self._control.get("learning")
        return bool(entry and json.loads(entry.value).get("paused"))

    async def _open_job(self, record: dict[str, Any]) -> str | None:
        """Returns a job that is queued, running, or requested and not yet accepted."""
        known: set[str] = set()
        for entry in await self._jobs.entries("job."):
            job = json.loads(entry.value)
            name = str(job.get("job_id") or entry.key.removeprefix("job."))
            known.add(name)
            if job.get("state") in OPEN_JOBS:
                return name
        mine = record.get("job_id")
        if mine and mine not in known and self._still_waiting(f"job {mine}"):
            return mine
        return None

    async def _open_release(self, record: dict[str, Any]) -> str | None:
        """Returns a release that is not closed, or the completed job that waits for one."""
        released: set[str] = set()
        for entry in await self._releases.entries("release."):
            release = json.loads(entry.value)
            released.add(str(release.get("job_id")))
            if release.get("state") not in CLOSED_RELEASES:
                return str(release.get("release_id"))
        mine = record.get("job_id")
        if not mine or mine in released:
            return None
        entry = await self._jobs.get(f"job.{mine}")
        if entry is None or json.loads(entry.value).get("state") != "completed":
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
            handler=self.hear,
        )

    async def hear(self, messages: list[Message]) -> list[Disposition]:
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
