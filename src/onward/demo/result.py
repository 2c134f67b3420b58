"""Result of a demonstration, in the form that ``--json`` writes. Plain data; rates are in [0, 1]."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

Decision = Literal["promoted", "rolled_back", "rejected", "inconclusive", "shadowed"]


class Check(BaseModel):
    """Passed answers of one kind (format, refusal), of the candidate and of the current model."""

    verdict: str = ""
    """``passed``, ``failed``, or ``not shown`` (the candidate passes none, current fewer than four)."""
    passed: int = 0
    current: int = 0
    of: int = 0
    p: float | None = None


class FailingAnswer(BaseModel):
    """An answer that failed a check."""

    check_id: str
    answer: str


class Rates(BaseModel):
    """Figures of one arm's traffic."""

    sessions: int = 0
    errors: int = 0
    error_rate: float | None = None
    mean_outcome: float | None = None


class Cycle(BaseModel):
    """One turn of the loop."""

    number: int
    trajectories: int
    """Rewarded trajectories that the job was trained on."""
    mean_outcome: float | None
    """Mean over the job's training trajectories; None for a planted candidate, which was not trained."""
    mean_raw_total: float | None
    validation_success: float | None = None
    """Success of the candidate on the validation tasks; None where validation was skipped."""
    validation_current: float | None = None
    """Success of the current model on the same tasks."""
    validation_tasks: int | None = None
    candidate: str
    decision: Decision
    reason: str
    checks: dict[str, Check] = Field(default_factory=dict)
    failing: list[FailingAnswer] = Field(default_factory=list)
    """Failed answers that led to the rejection of the candidate, two at most."""
    share: float | None = None
    """Last share of traffic; None before any traffic."""
    sessions: dict[str, int] = Field(default_factory=dict)
    rates: dict[str, Rates] = Field(default_factory=dict)
    """Arm (``candidate``, ``current``) → figures of its traffic."""
    e_values: dict[str, float] = Field(default_factory=dict)
    crossed_at: str | None = None
    verified_zero_at: str | None = None
    sabotaged: bool = False


class KindResult(BaseModel):
    """Success on the test tasks of one kind."""

    base: float
    final: float
    tries: int


class Result(BaseModel):
    model: str
    seed: int
    decoding: str
    """Sampling method of test answers; the same for every policy that is compared."""
    raw_success: float
    base_success: float
    final_success: float
    best_constant_success: float
    by_kind: dict[str, KindResult]
    warm_up: dict[str, float] = Field(default_factory=dict)
    wall_seconds: float
    stages: dict[str, float]
    cycles: list[Cycle]
    current_model: str
    accepted: int
    lost: int
    duplicates: int

    @property
    def tries(self) -> int:
        """Number of answers behind ``base_success``, and equally behind ``final_success``."""
        return sum(kind.tries for kind in self.by_kind.values())

    @property
    def v0_serves(self) -> bool:
        """True if no candidate was promoted, planted ones included."""
        return all(cycle.decision != "promoted" for cycle in self.cycles)
