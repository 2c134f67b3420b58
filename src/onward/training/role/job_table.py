"""The job table: one record per job in bucket ``rl_jobs``, changed only by compare-and-set.

Invariants: the request message is only a trigger; this record is the source of truth. ``attempt`` increases
with every claim and is the fencing epoch: two workers can never have the same one, so later writes of a lost
worker are recognised by their epoch.
"""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import Field

from onward.bus import Bucket, read_all, read_stored
from onward.clock import Clock, read_time, utc_text
from onward.contracts import TrainingRequest, encode, to_document
from onward.contracts.buckets import ENDED_JOBS, JobEntry, Moment, Piece, Record
from onward.errors import ConflictError, ContractError, IllegalTransitionError, TrainingError
from onward.ids import check_id
from onward.retry import pause_after
from onward.training.checkpoints import Commit

JobState = Literal["queued", "running", "completed", "failed", "cancelled"]

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    "queued": frozenset({"running", "failed", "cancelled"}),
    "running": frozenset({"queued", "completed", "failed", "cancelled"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
TERMINAL = frozenset(state for state, after in TRANSITIONS.items() if not after)
LEAST_PAUSE, MOST_PAUSE = 5.0, 60.0
"""Shortest and longest pause in seconds before the next attempt of an interrupted job; it doubles."""
PRIORITY_ORDER = {"urgent": 0, "high": 1, "normal": 2, "low": 3}


class JobError(Piece):
    code: Literal["OOM", "CONVERGENCE", "DATA", "INFRA", "TIMEOUT", "UNKNOWN"]
    message: str

    @classmethod
    def from_error(cls, error: TrainingError) -> JobError:
        return cls.model_validate({"code": error.code, "message": str(error)})


class JobRecord(Record):
    """One job. ``contracts.buckets.JobEntry`` is the part that other roles read."""

    BUCKET, KEY = JobEntry.BUCKET, JobEntry.KEY

    job_id: str
    state: JobState
    request: dict[str, Any]
    request_sha256: str
    attempt: int = 0
    handed_back: int = 0
    """Attempts that ended by a clean stop of the trainer, or because bus, store or disk was away; they do not
    count as failed."""
    killed: int = 0
    """Attempts whose process was killed from outside, or whose trainer vanished. They do not count as failed,
    but have a limit of their own: the job may be the cause (memory)."""
    interruptions: int = 0
    """Attempts in a row that were killed, or met a part that was away or refused."""
    not_before: Moment | None = None
    """Time at which a job that was interrupted may be claimed again; others run meanwhile."""
    owner: str | None = None
    start_digest: str | None = None
    dataset_sha256: str | None = None
    samples: int | None = None
    commit: Commit | None = None
    error: JobError | None = None
    skip_validation: bool = False
    announced: bool = False
    """True once the event of the record's last state is certainly on the stream."""
    heartbeat: int = 0
    """Counter of renewals: a lease is alive while the revision of this record changes."""
    created_at: str
    updated_at: str
    progress: dict[str, Any] = Field(default_factory=dict)

    @property
    def failed_attempts(self) -> int:
        """Attempts that ended by the job's own fault; the running one counts."""
        return self.attempt - self.handed_back - self.killed

    def waits(self, now: datetime) -> bool:
        """Returns whether the pause after an interruption goes on. A clock that was set back cannot make it
        longer than it was."""
        if self.not_before is None:
            return False
        left = (read_time(self.not_before) - now).total_seconds()
        return 0 < left <= MOST_PAUSE

    @property
    def priority(self) -> int:
        return PRIORITY_ORDER.get(str(self.request.get("priority") or "normal"), 2)

    def check(self) -> None:
        float(self.progress.get("percent_complete") or 0.0)
        if not isinstance(self.progress.get("metrics", {}), dict):
            raise ValueError("metrics is no object")

    def own_key(self) -> str:
        return self.KEY + self.job_id

    def may_stand_in(self) -> bool:
        return self.state in ENDED_JOBS


def key(job_id: str) -> str:
    return f"job.{check_id(job_id, 'job id')}"


class JobTable:
    """Typed access to the job records."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

    async def register(self, request: TrainingRequest) -> tuple[JobRecord, bool]:
        """Records a request once. Returns (record, created). Raises ContractError("id_reuse") when the id is
        taken by a different request."""
        record = self._new(request, "queued")
        try:
            await self._bucket.create(key(record.job_id), record.dump())
        except ConflictError:
            existing, _ = await self.get(record.job_id)
            if existing.request_sha256 != record.request_sha256:
                raise ContractError(
                    "id_reuse", f"Job id {record.job_id} belongs to a different request: send a new id."
                ) from None
            return existing, False
        return record, True

    async def adopt(
        self, request: TrainingRequest, commit: Commit, *, start_digest: str | None, samples: int
    ) -> JobRecord:
        """Records a checkpoint that was made and committed elsewhere as a completed job. Raises ConflictError
        when the job id is taken."""
        record = self._new(request, "completed").model_copy(
            update={
                "commit": commit,
                "start_digest": start_digest,
                "samples": samples,
                "attempt": commit.epoch,
            }
        )
        await self._bucket.create(key(record.job_id), record.dump())
        return record

    def _new(self, request: TrainingRequest, state: JobState) -> JobRecord:
        now = utc_text(self._clock.now())
        metadata = request.model_dump().get("metadata") or {}
        return JobRecord(
            job_id=request.training_job_id,
            state=state,
            request=to_document(request),
            request_sha256=hashlib.sha256(encode(request)).hexdigest(),
            skip_validation=bool(metadata.get("skip_validation")),
            created_at=now,
            updated_at=now,
        )

    async def get(self, job_id: str) -> tuple[JobRecord, int]:
        stored = await read_stored(self._bucket, JobRecord, check_id(job_id, "job id"))
        if stored.document is not None:
            return stored.document, stored.revision
        if not stored.readable:
            raise ContractError(
                "unreadable_job",
                f"The record of job {job_id} cannot be read: see 'onward buckets show rl_jobs {stored.key}'.",
            )
        raise ContractError("unknown_job", f"There is no job {job_id}.")

    async def all(self) -> list[tuple[JobRecord, int]]:
        """Returns every job that can be read, oldest first."""
        stored = await read_all(self._bucket, JobRecord)
        found = [(entry.document, entry.revision) for entry in stored if entry.document is not None]
        return sorted(found, key=lambda pair: (pair[0].created_at, pair[0].job_id))

    async def queued(self) -> list[tuple[JobRecord, int]]:
        """Returns the jobs that may be claimed now, most urgent first, then oldest first."""
        now = self._clock.now()
        waiting = [pair for pair in await self.all() if pair[0].state == "queued" and not pair[0].waits(now)]
        return sorted(waiting, key=lambda pair: (pair[0].priority, pair[0].created_at))

    async def move(
        self, record: JobRecord, revision: int, state: JobState, **changes: Any
    ) -> tuple[JobRecord, int]:
        """Changes the state by compare-and-set. Raises IllegalTransitionError or ConflictError."""
        if state not in TRANSITIONS[record.state]:
            raise IllegalTransitionError(f"Job {record.job_id} is {record.state} and cannot become {state}.")
        return await self._write(record, revision, state=state, **changes)

    async def postpone(
        self, record: JobRecord, revision: int, error: JobError, **changes: Any
    ) -> tuple[JobRecord, int]:
        """Returns an interrupted job to the queue, where it waits, longer each time in a row. Raises
        IllegalTransitionError or ConflictError."""
        interruptions = record.interruptions + 1
        pause = pause_after(interruptions, LEAST_PAUSE, MOST_PAUSE)
        return await self.move(
            record,
            revision,
            "queued",
            owner=None,
            error=error,
            interruptions=interruptions,
            not_before=utc_text(self._clock.now() + timedelta(seconds=pause)),
            **changes,
        )

    async def mark_announced(self, record: JobRecord, revision: int) -> None:
        """Marks the event of the job's final state as published."""
        await self._write(record, revision, announced=True)

    async def claim(self, record: JobRecord, revision: int, owner: str) -> tuple[JobRecord, int]:
        return await self.move(
            record,
            revision,
            "running",
            owner=owner,
            attempt=record.attempt + 1,
            error=None,
            not_before=None,
        )

    async def renew(
        self, record: JobRecord, revision: int, *, deadline: float | None = None, **changes: Any
    ) -> tuple[JobRecord, int]:
        """Renews the lease within ``deadline`` seconds. Raises ConflictError when the lease is lost."""
        return await self._write(
            record, revision, deadline=deadline, heartbeat=record.heartbeat + 1, **changes
        )

    async def _write(
        self, record: JobRecord, revision: int, *, deadline: float | None = None, **changes: Any
    ) -> tuple[JobRecord, int]:
        changed = record.model_copy(update={**changes, "updated_at": utc_text(self._clock.now())})
        patience = {} if deadline is None else {"deadline": deadline}
        return changed, await self._bucket.update(key(record.job_id), changed.dump(), revision, **patience)


class JobLease:
    """The lease on the running job: its record and newest revision; renewals are serialised by ``lock``."""

    def __init__(
        self, table: JobTable, record: JobRecord, revision: int, clock: Clock, term: float, started: float
    ) -> None:
        """``started``: before the claim was sent, so the lease ends before another owner may claim."""
        self.record = record
        self.revision = revision
        self.lock = asyncio.Lock()
        self._table = table
        self._clock = clock
        self._term = term
        self._until = started + term

    async def renew(self, **changes: Any) -> None:
        """Renews the lease. Raises ConflictError for another owner, BusError if it expired without NATS."""
        async with self.lock:
            started = self._clock.monotonic()
            self.record, self.revision = await self._table.renew(
                self.record, self.revision, deadline=max(0.0, self._until - started), **changes
            )
            self._until = started + self._term
