"""Decides when to train: the published table "Training Job Priority", after the conditions that forbid a job.

Pure. The first line of the table that applies gives reason and priority. The conditions that forbid a job are
checked first: a job during a release would start from a policy that may be gone when the job ends.
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
    degraded: bool = False
    manual: bool = False
    scheduled: bool = False


@dataclass(frozen=True)
class Train:
    reason: Reason
    priority: Priority


@dataclass(frozen=True)
class Wait:
    why: str


def decide(now: Situation) -> Train | Wait:
    """Returns Train with reason and priority, or Wait with the reason."""
    if now.paused:
        return Wait("learning is paused")
    if not now.has_policy:
        return Wait("no policy serves yet")
    if now.job is not None:
        return Wait(f"job {now.job} is not finished")
    if now.release is not None:
        return Wait(f"release {now.release} is under way")
    if now.degraded:
        return Train("performance_degradation", "urgent")
    if now.manual:
        return Train("manual", "high")
    if now.rewarded >= now.threshold:
        return Train("threshold_reached", "normal")
    if now.scheduled:
        return Train("scheduled", "normal")
    return Wait(f"{now.rewarded} of {now.threshold} rewarded trajectories")
