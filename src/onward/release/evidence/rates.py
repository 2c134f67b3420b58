"""Counts of each arm of a release, for people. The E-values show how certain, these show how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from onward.contracts.buckets import Piece
from onward.release.evidence.evidence import ARMS, Evidence


class ArmRates(Piece):
    """One arm: the sessions that each gate has judged. A rate is None if nothing was judged."""

    sessions: int = 0
    """Sessions judged by the error gate: with an outcome, with an error, or lost."""
    errors: int = 0
    error_rate: float | None = None
    outcomes: int = 0
    """Sessions with an outcome (lost ones have none)."""
    mean_outcome: float | None = None
    raw_totals: int = 0
    """Sessions with a raw total. 0 if ``release.reward_signal`` is the outcome."""
    mean_raw_total: float | None = None
    feedback: int = 0
    """Sessions with feedback."""
    negative: int = 0
    lost: int = 0
    """Sessions without any outcome in their time: part of ``errors``."""


class KnownAndLost(NamedTuple):
    """Ended sessions of one arm: those with a known outcome, and the lost ones, which tell nothing."""

    known: int
    lost: int


def step_counts(rates: Mapping[str, ArmRates], before: Mapping[str, ArmRates]) -> dict[str, KnownAndLost]:
    """Returns arm → its sessions in the present step. ``before``: the counts when the step began."""
    counts = {}
    for arm in ARMS:
        now, then = rates.get(arm) or ArmRates(), before.get(arm) or ArmRates()
        counts[arm] = KnownAndLost(now.outcomes - then.outcomes, now.lost - then.lost)
    return counts


def rates_of(evidence: Evidence) -> dict[str, ArmRates]:
    """Returns arm → its counts."""
    return {
        arm: ArmRates(
            sessions=told["judged"],
            errors=told["failed"],
            error_rate=told["error_rate"],
            outcomes=told["rewarded"],
            mean_outcome=told["mean_outcome"],
            raw_totals=told.get("raw_known", 0),
            mean_raw_total=told["mean_raw_total"],
            feedback=told["feedback"],
            negative=told["negative"],
            lost=told["lost"],
        )
        for arm, told in evidence.summary()["arms"].items()
    }


def figures(evidence: Evidence) -> dict[str, Any]:
    """Returns the fields of a release record that are derived from its evidence."""
    return {
        "evidence": evidence.state(),
        "e_values": evidence.gates.e_values(),
        "sessions": {arm: evidence.matured(arm) for arm in ARMS},
        "rates": rates_of(evidence),
    }
