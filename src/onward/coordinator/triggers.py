"""When to train: the published table "Training Job Priority" behind the conditions that forbid it. Pure.

The order of the table is its meaning: the first line that applies gives reason and priority. What
forbids a job comes before all of them, since a job during a release would start from a policy that may
be gone when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["performance_degradation", "manual", "threshold_reached", "scheduled"]
Priority = Literal["urgent", "high", "normal"]


@dataclass(frozen=True)
class Situation:
    """What is known at one moment."""

    rewarded: int
    """Rewarded trajectories of the current policy since the last snapshot."""
    threshold: int
    has_policy: bool = True
    """Whether desired state names a policy that serves."""
    paused: bool = False
    job: str | None = None
    """A job that is queued or running, or that was asked for and not taken in yet."""
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
    """Train, with reason and priority, or wait and say why."""
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
