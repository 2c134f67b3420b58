"""Jobs and releases as the coordinator sees them: what is open, what is new, what came to nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onward.bus import Bus, read_all
from onward.clock import Clock
from onward.contracts.buckets import JobEntry, LastRequest, ReleaseEntry
from onward.coordinator.cooldown import Cooldown, cooldown
from onward.release import plan
from onward.training.role import job_table as table

UNANSWERED_SECONDS = 600.0
"""Seconds after which a request that no trainer accepted, or a finished job that no releaser accepted, no
longer blocks the next request."""
OPEN_JOBS = table.TRANSITIONS.keys() - table.TERMINAL
_STORED = frozenset({"clickhouse", "nats_stream"})
"""Dataset sources that hold the trajectories which the threshold counts."""


class Waiting:
    """Waits of this process for answers, by its monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def goes_on(self, what: str) -> bool:
        now = self._clock.monotonic()
        return now - self._since.setdefault(what, now) < UNANSWERED_SECONDS


@dataclass(frozen=True)
class OpenWork:
    jobs: dict[str, JobEntry]
    """Id → job, for every job that can be read or named by its key."""
    releases: list[ReleaseEntry]

    @classmethod
    async def read(cls, bus: Bus) -> OpenWork:
        """Reads all jobs and releases. Raises BusError."""
        jobs: dict[str, JobEntry] = {}
        for entry in await read_all(bus.bucket(JobEntry.BUCKET), JobEntry):
            job = entry.document or JobEntry()
            jobs[job.job_id or entry.key.removeprefix(JobEntry.KEY)] = job
        releases = await read_all(bus.bucket(ReleaseEntry.BUCKET), ReleaseEntry)
        return cls(jobs, [entry.document for entry in releases if entry.document is not None])

    def job(self, record: LastRequest, waiting: Waiting) -> str | None:
        """Returns a job that is queued, running, or requested and not yet accepted."""
        for name, job in self.jobs.items():
            if job.state in OPEN_JOBS:
                return name
        mine = record.job_id
        if mine and mine not in self.jobs and waiting.goes_on(f"job {mine}"):
            return mine
        return None

    def release(self, record: LastRequest, waiting: Waiting) -> str | None:
        """Returns a release that is not closed, or the completed job that waits for one."""
        for release in self.releases:
            if release.state not in plan.TERMINAL:
                return str(release.release_id)
        mine = record.job_id
        job = self.jobs.get(mine) if mine else None
        if job is None or job.state != "completed" or mine in {r.job_id for r in self.releases}:
            return None
        return f"of job {mine}" if waiting.goes_on(f"release of job {mine}") else None

    def cooldown(self, minutes: float, clock: Clock) -> Cooldown | None:
        """Returns the cool-down that goes on, or None."""
        return cooldown(self.jobs.values(), self.releases, minutes, clock.now())

    def job_of_others(self, record: LastRequest, waiting: Waiting) -> str | None:
        """Returns an open job on stored trajectories that is not the last request: a manual one. None while
        the last request itself is open."""
        mine = record.job_id
        if mine in self.jobs and self.jobs[mine].state in OPEN_JOBS:
            return None
        if mine and mine not in self.jobs and waiting.goes_on(f"job {mine}"):
            return None
        for name, job in self.jobs.items():
            if job.state in OPEN_JOBS and name != record.job_id and dataset_of(job).get("source") in _STORED:
                return name
        return None


def dataset_of(job: JobEntry) -> dict[str, Any]:
    """Returns the dataset of a job's request; empty for one of an environment."""
    config = job.request.get("training_config")
    dataset = config.get("dataset") if isinstance(config, dict) else None
    return dataset if isinstance(dataset, dict) and not dataset.get("environment") else {}
