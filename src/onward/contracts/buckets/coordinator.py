"""rl_coordinator: state of the coordinator."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from onward.contracts.base import nullable, optional, required
from onward.contracts.buckets.document import Document, Moment
from onward.errors import IllegalTransitionError

RequestPhase = Literal["planned", "published"]

REQUEST_TRANSITIONS: dict[RequestPhase | None, frozenset[RequestPhase]] = {
    None: frozenset({"planned", "published"}),
    "planned": frozenset({"published"}),
    "published": frozenset({"planned", "published"}),
}
"""Phases of the coordinator's record; None before the first request. After "published" the next job is
planned in the same key. A job on stored trajectories that someone else requested is recorded as published."""


class LastRequest(Document):
    """Last training request: recorded as planned, then published under its job's id, then marked. Without it
    the coordinator takes the snapshot of the newest job."""

    BUCKET, KEY = "rl_coordinator", "state"

    phase: str | None = optional("A RequestPhase; see REQUEST_TRANSITIONS.")
    snapshot: int = Field(
        default=0, description="Newest stored trajectory when it was made; later ones count next."
    )
    model_digest: str | None = nullable("Policy that is trained; null: a base without a digest.")
    job_id: str | None = optional("Id of the requested job.")
    request: str | None = optional("The request as encoded, published again after a crash.")
    published_at: str | None = optional("Absent while it is only planned.")
    reported: bool | None = optional("True once its start was reported, with the number of the job.")

    def check(self) -> None:
        if self.phase == "planned":
            self.planned()

    def planned(self) -> tuple[str, str]:
        """Returns the request as encoded, and its job's id. Raises ValueError if there is none."""
        if self.request is None or self.job_id is None:
            raise ValueError("There is no request in this record.")
        return self.request, self.job_id

    def checked_phase(self, to: RequestPhase) -> RequestPhase:
        """Returns ``to`` if the table allows it (unknown phase: none). Raises IllegalTransitionError."""
        known: dict[str | None, frozenset[RequestPhase]] = {**REQUEST_TRANSITIONS}
        if to not in known.get(self.phase, REQUEST_TRANSITIONS[None]):
            raise IllegalTransitionError(f"A request that is {self.phase} cannot become {to}.")
        return to


class ScheduleMark(Document):
    """Time from which runs of the schedule count: the first start, a change of the expression, or a run that
    was left out. Without it they count from now on."""

    BUCKET, KEY = "rl_coordinator", "schedule"

    expression: str
    since: Moment
    left_out: str | None = optional("Reason why the last run made no job.")


class ReportMark(Document):
    """Reports that were sent: the time from which daily summaries count, and jobs with a report. Without it
    they count from now on, and jobs that have ended by then get no report."""

    BUCKET, KEY = "rl_coordinator", "reports"

    since: Moment
    jobs: list[str] = Field(default_factory=list, description="Completed jobs that get no further report.")


class PolicyWatch(Document):
    """Frozen baseline of a policy and the state of its test for degradation: ``watch.<id>``. Without it a new
    baseline is collected. An older value never counts: sessions would count twice."""

    BUCKET, KEY = "rl_coordinator", "watch."

    watch_id: str = required("Derived from policy, reward weights and drop: others, another baseline.")
    model_digest: str | None = nullable("The policy; null: a base without a digest.")
    model_id: str = ""
    sequence: int = required("Newest session that counted, by the sequence of its first trajectory.")
    total: float = Field(default=0.0, description="Sum of the values of the baseline.")
    collected: int = Field(default=0, description="Sessions of the baseline.")
    baseline: float | None = nullable("Mean of the baseline's sessions; null while they are collected.")
    frozen_at: str | None = nullable("Time at which the baseline was frozen.")
    sessions: int = Field(default=0, description="Sessions since then.")
    logs: list[float] = Field(default_factory=list, description="Log capital of each bet.")
    trailing: list[float] = Field(default_factory=list, description="Newest values, oldest first.")
    degraded_since: str | None = nullable("Time of the alarm; null: no degradation is shown.")

    def own_key(self) -> str:
        return self.KEY + self.watch_id

    def may_stand_in(self) -> bool:
        return False
