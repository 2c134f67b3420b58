"""Cool-down: the pause after a job or candidate that came to nothing. Pure.

Without it, a trigger whose cause goes on would train on much the same data again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from onward.clock import read_time, utc_text
from onward.contracts import TrainingRequest
from onward.contracts.buckets import JobEntry, ReleaseEntry
from onward.release.plan import State
from onward.training.role.job_table import type_of

CLOCKS_DIFFER = timedelta(minutes=1)
"""Lead that the clock of a trainer or releaser may have: the end that it wrote then lies in the future."""
_NOT_PROMOTED = frozenset({State.REJECTED, State.ROLLED_BACK, State.ABORTED, State.SHADOWED})


@dataclass(frozen=True)
class Cooldown:
    """A pause that goes on."""

    why: str
    """Its cause: "job j1 failed"."""
    until: datetime

    def __str__(self) -> str:
        return f"{self.why}: cool-down until {utc_text(self.until)}"


def cooldown(
    jobs: Iterable[JobEntry], releases: Iterable[ReleaseEntry], minutes: float, now: datetime
) -> Cooldown | None:
    """Returns the pause that goes on now, or None. The newest end of a job or release decides: a promotion
    ends the pause, and jobs of rubric writers and control policies do not count.
    A clock that was set back cannot make it longer than it was, but for ``CLOCKS_DIFFER``."""
    newest = max((*_of_jobs(jobs), *_of_releases(releases)), default=None)
    if newest is None or not newest[1]:
        return None
    at, why = newest
    until = at + timedelta(minutes=minutes)
    return Cooldown(why, until) if at - CLOCKS_DIFFER <= now < until else None


def _of_jobs(jobs: Iterable[JobEntry]) -> Iterator[tuple[datetime, str]]:
    for job in jobs:
        if type_of(job.request) is not TrainingRequest:  # it says nothing about the data of the model
            continue
        if job.state in ("failed", "cancelled") and (at := _moment(job.updated_at)):
            verb = "failed" if job.state == "failed" else "was cancelled"
            yield at, f"job {job.job_id} {verb}"


def _of_releases(releases: Iterable[ReleaseEntry]) -> Iterator[tuple[datetime, str]]:
    """Yields the ends of releases; a promotion has no words."""
    for release in releases:
        at = _moment(release.closed_at)
        if at and release.state in _NOT_PROMOTED:
            yield at, f"the candidate of job {release.job_id} was {str(release.state).replace('_', ' ')}"
        elif at and release.state == State.PROMOTED:
            yield at, ""


def _moment(text: object) -> datetime | None:
    """Returns a stored time, or None if there is none that can be read."""
    try:
        return read_time(text)  # type: ignore[arg-type]
    except ValueError:
        return None
