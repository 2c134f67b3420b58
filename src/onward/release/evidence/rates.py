"""Counts of each arm of a release, for people. The E-values show how certain, these show how much."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from onward.release.evidence.evidence import ARMS, Evidence


class ArmRates(BaseModel):
    """One arm: the sessions that each gate has judged. A rate is None if nothing was judged."""

    sessions: int = 0
    """Sessions judged by the error gate: with an outcome, with an error, or lost."""
    errors: int = 0
    error_rate: float | None = None
    outcomes: int = 0
    """Sessions with an outcome (lost ones have none)."""
    mean_outcome: float | None = None
    feedback: int = 0
    """Sessions with feedback."""
    negative: int = 0


def rates_of(evidence: Evidence) -> dict[str, ArmRates]:
    """Returns arm → its counts."""
    arms = evidence.summary()["arms"]
    return {
        arm: ArmRates(
            sessions=arms[arm]["judged"],
            errors=arms[arm]["failed"],
            error_rate=arms[arm]["error_rate"],
            outcomes=arms[arm]["rewarded"],
            mean_outcome=arms[arm]["mean_outcome"],
            feedback=arms[arm]["feedback"],
            negative=arms[arm]["negative"],
        )
        for arm in ARMS
    }


def figures(evidence: Evidence) -> dict[str, Any]:
    """Returns the fields of a release record that are derived from its evidence."""
    return {
        "evidence": evidence.state(),
        "e_values": evidence.gates.e_values(),
        "sessions": {arm: evidence.matured(arm) for arm in ARMS},
        "rates": rates_of(evidence),
    }
