"""What a demonstration found, in the form that ``--json`` writes. Plain data; rates lie in [0, 1]."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

Decision = Literal["promoted", "rolled_back", "rejected", "inconclusive"]


class Cycle(BaseModel):
    """One turn of the loop."""

    number: int
    trajectories: int
    """Rewarded trajectories that the job was trained on."""
    mean_outcome: float | None
    """Over what the job learned from; None for a planted candidate, which learned from nothing."""
    mean_raw_total: float | None
    validation_success: float | None = None
    """Success of the candidate on the validation tasks; None where validation was skipped."""
    validation_current: float | None = None
    """Success of the current model on the same tasks."""
    candidate: str
    decision: Decision
    reason: str
    sessions: dict[str, int] = Field(default_factory=dict)
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
    """How test answers were drawn; the same for every policy that is compared."""
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
