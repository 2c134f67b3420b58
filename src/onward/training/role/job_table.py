"""The job table: one record per job in bucket ``rl_jobs``, changed only by compare-and-set.

Invariants: the request message is only a trigger; this record is the source of truth. ``attempt`` increases
with every claim and is the fencing epoch: two workers can never have the same one, so later writes of a lost
worker are recognised by their epoch.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import Field

from onward.bus import Bucket, read_all, read_stored
from onward.clock import Clock, read_time, utc_text
from onward.contracts import TrainingRequest, encode, to_document
from onward.contracts.buckets import ENDED_JOBS, JobEntry, JobNumber, Moment, Piece, Record
from onward.contracts.codec import validate
from onward.contracts.training import ControlRequest, RubricsRequest
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
LEAST_PAUSE = 5.0
"""Shortest pause in seconds before the next attempt of an interrupted job; it doubles."""
PRIORITY_ORDER = {"urgent": 0, "high": 1, "normal": 2, "low": 3}
PRIORITY_OF_TRIGGER = {"performance_degradation": "urgent", "manual": "high"}
"""Priority of a request that names none; ``normal`` for every other trigger."""


class JobError(Piece):
    code: Literal["OOM", "CONVERGENCE", "DATA", "INFRA", "TIMEOUT", "UNKNOWN"]
    message: str
    traceback: str | None = None
    """Redacted traceback."""

    @classmethod
    def from_error(cls, error: TrainingError) -> JobError:
        return cls.model_validate({"code": error.code, "message": str(error)})


class JobRecord(Record):
    """One job. ``contracts.buckets.JobEntry`` is the part that other roles read."""

    BUCKET, KEY = JobEntry.BUCKET, JobEntry.KEY

    job_id: str
    number: int = 0
    """Place in the sequence of all jobs, from 1: "job #47". 0: not numbered yet."""
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
    pause_seconds: float = 60.0
    """Length of the pause that ends then."""
    owner: str | None = None
    start_digest: str | None = None
    dataset_sha256: str | None = None
    samples: int | None = None
    commit: Commit | None = None
    error: JobError | None = None
    changes: list[str] = Field(default_factory=list)
    """Differences of later attempts from the request, as sentences."""
    batch_halvings: int = 0
    rate_halvings: int = 0
    cancel_requested: bool = False
    """True for a running job whose attempt is to end."""
    cancelled_by: str | None = None
    skip_validation: bool = False
    announced: bool = False
    """True once the event of the record's last state is certainly on the stream."""
    heartbeat: int = 0
    """Counter of renewals: a lease is alive while the revision of this record changes."""
    created_at: str
    updated_at: str
    progress: dict[str, Any] = Field(default_factory=dict)
    artifacts: dict[str, str] = Field(default_factory=dict)
    """Places in the object store of what the job made, by the names of the status."""
    resource_usage: dict[str, float] = Field(default_factory=dict)
    """Time, memory and cost of the job, by the names of the status."""

    @property
    def places(self) -> dict[str, str]:
        """Places of what a completed job made, its checkpoint included, by the names of the status."""
        made = {} if self.commit is None else {"final_checkpoint": self.commit.object_prefix}
        return {**made, **self.artifacts}

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
        return 0 < left <= self.pause_seconds

    @property
    def priority(self) -> str:
        """Priority of the request, else that of its trigger."""
        given = str(self.request.get("priority"))
        if given in PRIORITY_ORDER:
            return given
        return PRIORITY_OF_TRIGGER.get(str(self.request.get("trigger_reason")), "normal")

    @property
    def place(self) -> tuple[int, str, int]:
        """Order in the queue: priority, then age."""
        return PRIORITY_ORDER[self.priority], self.created_at, self.number

    def check(self) -> None:
        float(self.progress.get("percent_complete") or 0.0)
        if not isinstance(self.progress.get("metrics", {}), dict):
            raise ValueError("metrics is no object")

    def own_key(self) -> str:
        return self.KEY + self.job_id

    def may_stand_in(self) -> bool:
        return self.state in ENDED_JOBS


JobRequest = TrainingRequest | ControlRequest | RubricsRequest


def type_of(request: dict[str, Any]) -> type[TrainingRequest] | type[ControlRequest] | type[RubricsRequest]:
    """Returns the type of a stored request."""
    if "training_config" in request:
        return TrainingRequest
    if request.get("kind") == "rubrics":
        return RubricsRequest
    return ControlRequest if "environment" in request else TrainingRequest


def key(job_id: str) -> str:
    return f"job.{check_id(job_id, 'job id')}"


class JobTable:
    """Typed access to the job records."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

    async def register(self, request: JobRequest, error: JobError | None = None) -> tuple[JobRecord, bool]:
        """Records a request once, one that cannot run because of ``error`` as failed. Returns (record,
        created). Raises ContractError("id_reuse") when the id is taken by a different request."""
        record = self._new(request, "queued" if error is None else "failed")
        record = record.model_copy(update={"error": error})
        try:
            await self._bucket.create(key(record.job_id), record.dump())
        except ConflictError:
            existing, _ = await self.get(record.job_id)
            if existing.request_sha256 != record.request_sha256:
                raise ContractError(
                    "id_reuse", f"Job id {record.job_id} belongs to a different request: send a new id."
                ) from None
            return await self._numbered(record.job_id), False
        return await self._numbered(record.job_id), True

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
        return await self._numbered(record.job_id)

    async def cancel(self, job_id: str, by: str) -> JobRecord:
        """Cancels a queued job at once, and requests the end of a running one. A job that has ended stays as
        it is. ``by``: who cancels. Raises ContractError("unknown_job")."""
        while True:
            record, revision = await self.get(job_id)
            if record.state in TERMINAL or record.cancel_requested:
                return record
            with contextlib.suppress(ConflictError):  # it was claimed, or it ended, just now
                if record.state == "queued":
                    record, _ = await self.move(
                        record, revision, "cancelled", cancelled_by=by, not_before=None
                    )
                else:
                    record, _ = await self._write(record, revision, cancel_requested=True, cancelled_by=by)
                return record

    async def request_again(self, job_id: str, new_id: str) -> JobRequest:
        """Returns the request of a job that failed or was cancelled, for a new job. Raises
        IllegalTransitionError for a job in another state, ContractError for an unknown one."""
        record, _ = await self.get(job_id)
        if record.state not in ("failed", "cancelled"):
            raise IllegalTransitionError(
                f"Job {job_id} is {record.state}: only a failed or cancelled job can be run again."
            )
        request = {**record.request, "training_job_id": check_id(new_id, "job id")}
        return validate(request, type_of(request))

    async def positions(self) -> dict[str, int]:
        """Returns the place of each queued job, from 1, which is claimed next. Jobs that wait after an
        interruption come last, by the end of their pause."""
        return self.positions_among([record for record, _ in await self.all()])

    def positions_among(self, records: Iterable[JobRecord]) -> dict[str, int]:
        """Returns the ``positions`` of records that were read already: those of every job."""
        now = self._clock.now()
        queued = [record for record in records if record.state == "queued"]
        ready = sorted((one for one in queued if not one.waits(now)), key=lambda one: one.place)
        waiting = sorted(
            (one for one in queued if one.waits(now)), key=lambda one: (one.not_before or "", one.place)
        )
        return {record.job_id: place for place, record in enumerate([*ready, *waiting], start=1)}

    async def _numbered(self, job_id: str) -> JobRecord:
        """Gives a job the next number, once, and returns it.

        The counter names the job that holds its last number. Whoever takes the next number first writes the
        last one into that job, so a crash between both writes leaves neither a gap nor two numbers.
        """
        while True:
            counter = await read_stored(self._bucket, JobNumber)
            record, revision = await self.get(job_id)
            if record.number:
                return record
            with contextlib.suppress(ConflictError):  # another process numbers a job, or changes this one
                last = counter.document
                if last is None:
                    last = JobNumber(last=max(one.number for one, _ in await self.all()), job_id="")
                if last.job_id == job_id:
                    record, _ = await self._write(record, revision, number=last.last)
                    return record
                if last.job_id:
                    await self._finish_numbering(last)
                taken = JobNumber(last=last.last + 1, job_id=job_id).dump()
                if counter.revision:
                    await self._bucket.update(JobNumber.KEY, taken, counter.revision)
                else:
                    await self._bucket.create(JobNumber.KEY, taken)

    async def _finish_numbering(self, last: JobNumber) -> None:
        """Writes the last number into the job that holds it. Raises ConflictError."""
        try:
            holder, revision = await self.get(last.job_id)
        except ContractError:  # its record is gone, or cannot be read
            return
        if not holder.number:
            await self._write(holder, revision, number=last.last)

    async def number_all(self) -> None:
        """Numbers the jobs of earlier versions, oldest first, and one whose creator died."""
        found = await read_all(self._bucket, JobRecord)  # not a record that stands in for a newer one
        records = [entry.document for entry in found if entry.document is not None and entry.readable]
        for record in sorted(records, key=lambda one: (one.created_at, one.job_id)):
            if not record.number:
                await self._numbered(record.job_id)

    def _new(self, request: JobRequest, state: JobState) -> JobRecord:
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
        return sorted(waiting, key=lambda pair: pair[0].place)

    async def move(
        self, record: JobRecord, revision: int, state: JobState, **changes: Any
    ) -> tuple[JobRecord, int]:
        """Changes the state by compare-and-set. A job that was cancelled meanwhile is not queued again, but
        ends. Raises IllegalTransitionError or ConflictError."""
        if state == "queued" and record.cancel_requested:
            state = "cancelled"
        if state not in TRANSITIONS[record.state]:
            raise IllegalTransitionError(f"Job {record.job_id} is {record.state} and cannot become {state}.")
        return await self._write(record, revision, state=state, **changes)

    async def postpone(
        self, record: JobRecord, revision: int, error: JobError, longest: float, **changes: Any
    ) -> tuple[JobRecord, int]:
        """Returns an interrupted job to the queue, where it waits, longer each time in a row and at most
        ``longest`` seconds. Raises IllegalTransitionError or ConflictError."""
        interruptions = record.interruptions + 1
        pause = pause_after(interruptions, min(LEAST_PAUSE, longest), longest)
        return await self.move(
            record,
            revision,
            "queued",
            owner=None,
            error=error,
            interruptions=interruptions,
            pause_seconds=pause,
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
