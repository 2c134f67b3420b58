"""Decides when to train: the published table "Training Job Priority", after the conditions that forbid a job.

Pure. The first line of the table that applies gives reason and priority, so several at once make one job. The
conditions that forbid a job are checked first: a job during a release would start from a policy that may be
gone when the job ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["performance_degradation", "manual", "threshold_reached", "scheduled"]
Priority = Literal["urgent", "high", "normal"]


@dataclass(frozen=True)
class Situation:
    """Facts at one moment."""

    rewarded: int
    """Rewarded trajectories of the current policy since the last snapshot."""
    threshold: int
    has_policy: bool = True
    """True if the desired state names a policy that serves."""
    paused: bool = False
    job: str | None = None
    """A job that is queued or running, or that was requested and not yet accepted."""
    release: str | None = None
    """A release under way, or a completed job that waits for its release."""
    cooldown: str | None = None
    """Cool-down that goes on, in words; a manual request starts all the same."""
    min_new: int = 1
    """Least ``rewarded`` for a job by degradation or schedule; ``threshold``, if that is lower."""
    degraded: bool = False
    manual: bool = False
    scheduled: bool = False

    @property
    def has_new_data(self) -> bool:
        return self.rewarded >= min(self.min_new, self.threshold)


@dataclass(frozen=True)
class Train:
    reason: Reason
    priority: Priority


@dataclass(frozen=True)
class Wait:
    why: str


def decide(now: Situation) -> Train | Wait:
    """Returns Train with reason and priority, or Wait with the reason."""
    forbidden = _forbidden(now)
    if forbidden is not None:
        return Wait(forbidden)
    free = now.cooldown is None
    if now.degraded and free and now.has_new_data:
        return Train("performance_degradation", "urgent")
    if now.manual:
        return Train("manual", "high")
    if now.cooldown is not None:
        return Wait(now.cooldown)
    if now.rewarded >= now.threshold:
        return Train("threshold_reached", "normal")
    if now.scheduled and now.has_new_data:
        return Train("scheduled", "normal")
    return Wait(f"{now.rewarded} of {now.threshold} rewarded trajectories")


def leaves_out_run(now: Situation, decision: Train | Wait) -> bool:
    """Returns whether a run of the schedule that is due makes no job, for want of new data. While something
    forbids a job, or a cool-down goes on, it stays due instead."""
    blocked = _forbidden(now) is not None or now.cooldown is not None
    return now.scheduled and isinstance(decision, Wait) and not blocked


def _forbidden(now: Situation) -> str | None:
    if now.paused:
        return "learning is paused"
    if not now.has_policy:
        return "no policy serves yet"
    if now.job is not None:
        return f"job {now.job} is not finished"
    if now.release is not None:
        return f"release {now.release} is under way"
    return None
