"""Turns completed jobs into proposed releases: each commit once, in the order of completion.

A job's record names the policy from which its training started. The releaser refuses a candidate whose
start no longer serves.
"""

from __future__ import annotations

from onward.bus import Bucket, read_stored
from onward.clock import Clock, utc_text
from onward.config import Settings
from onward.contracts.buckets import JobEntry
from onward.errors import NotFoundError
from onward.ids import derived_id
from onward.release.plan import next_model_id
from onward.release.record import Model, ReleaseRecord, Releases, release_id

_CLOSED = ("failed", "cancelled")


def base_model(settings: Settings) -> Model:
    """Returns the base model without an adapter, which serves before anything was released."""
    name = settings.base_model_id
    return Model(
        model_id=name,
        adapter_digest=None,
        object_prefix="",
        training_job_id=derived_id("base", name),
        state="current",
    )


def start_is_current(start_digest: str | None, current: Model) -> bool:
    """True if a candidate trained from ``start_digest`` continues the model that serves."""
    return start_digest == current.adapter_digest


def propose(
    job: JobEntry, current: Model, keys: list[str], settings: Settings, clock: Clock, command: int
) -> ReleaseRecord:
    """Returns the record of a new release for a completed job. The model's number exceeds all in ``keys``."""
    commit, job_id = job.commit, str(job.job_id)
    if commit is None:
        raise NotFoundError(f"Job {job_id} is completed and its record names no checkpoint: train again.")
    config = job.request.get("training_config") or {}
    metrics = job.progress.get("metrics") or {}
    reward = metrics.get("outcome_mean", metrics.get("reward_mean"))
    samples = job.samples
    candidate = Model(
        model_id=next_model_id(settings.model.id_pattern, keys),
        adapter_digest=commit.adapter_digest,
        object_prefix=commit.object_prefix,
        training_job_id=job_id,
        manifest_sha256=commit.manifest_sha256,
        parent=current.model_id,
        info={
            "base_model": config.get("base_model") or settings.model.base,
            "training_samples": samples if isinstance(samples, int) and samples > 0 else None,
            "final_reward": float(reward) if isinstance(reward, int | float) else None,
            "training_date": job.updated_at,
        },
    )
    now = utc_text(clock.now())
    return ReleaseRecord(
        release_id=release_id(job_id, commit.epoch),
        job_id=job_id,
        epoch=commit.epoch,
        created_at=now,
        updated_at=now,
        candidate=candidate,
        current=current,
        start_digest=job.start_digest,
        skip_validation=job.skip_validation,
        command_revision=command,
        history=[
            {"at": now, "state": "proposed", "step": 0, "why": f"job {job_id} committed epoch {commit.epoch}"}
        ],
    )


class CompletedJobs:
    """Finds completed jobs without a release. Caches finished keys; the buckets are the truth."""

    def __init__(self, jobs: Bucket, releases: Releases) -> None:
        self._jobs = jobs
        self._releases = releases
        self._done: set[str] = set()

    async def next(self) -> JobEntry | None:
        """Returns the job that completed first and has no release yet, or None."""
        waiting: list[tuple[int, JobEntry]] = []
        for key in await self._jobs.keys(JobEntry.KEY):
            if key in self._done:
                continue
            entry = await read_stored(self._jobs, JobEntry, key.removeprefix(JobEntry.KEY))
            job = entry.document
            if job is None:
                continue
            state = str(job.state).lower()
            if state in _CLOSED:
                self._done.add(key)
            elif state == "completed" and job.commit:
                if await self._releases.exists(release_id(str(job.job_id), job.commit.epoch)):
                    self._done.add(key)
                else:
                    waiting.append((entry.revision, job))
        return min(waiting, key=lambda pair: pair[0], default=(0, None))[1]
