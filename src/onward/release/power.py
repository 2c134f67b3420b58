"""Power of a release: which defects its gates find within the ramp, and how often, at the measured traffic.

Simulated with the gates of the release itself, with a fixed seed. A slow site has few sessions in the hours
of a ramp, so a release may end well without having shown much; these numbers say so before it starts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from onward.release.evidence.evidence import GateRules
from onward.release.evidence.simulation import Behaviour, first_crossing
from onward.release.plan import DAY, Plan

RUNS = 40
MOST_SESSIONS = 3_000
"""Simulated sessions of one run at most. What is found later counts as not found."""
CURRENT = Behaviour(negative=None)
DEFECTS: dict[str, Behaviour] = {
    "errors 20 %": Behaviour(errors=0.20, negative=None),
    "errors 50 %": Behaviour(errors=0.50, negative=None),
    "outcome -0.20": Behaviour(mean=CURRENT.mean - 0.20, negative=None),
    "outcome -0.50": Behaviour(mean=CURRENT.mean - 0.50, negative=None),
}
"""Candidates that are worse than a current model with 1 % errors and a mean outcome of 0.75."""


def ramp_sessions(plan: Plan, per_day: float) -> list[tuple[float, int]]:
    """Returns (share, sessions of both arms) of each step before the bake; of the bake if there is none."""
    steps = plan.steps[: plan.bake] or plan.steps
    counted = []
    for step in steps:
        needed = step.sessions / step.share
        counted.append((step.share, round(max(per_day * step.seconds / DAY, needed))))
    return counted


def simulate(plan: Plan, rules: GateRules, per_day: float) -> dict[str, Any]:
    """Returns ``{per_day, sessions, found: {defect: share of runs in which it was found}}``."""
    steps = ramp_sessions(plan, per_day)
    chance = random.Random(17)
    found = {}
    for name, defect in DEFECTS.items():
        runs = [
            first_crossing(steps, defect, CURRENT, rules, chance, MOST_SESSIONS) is not None
            for _ in range(RUNS)
        ]
        found[name] = sum(runs) / RUNS
    return {
        "per_day": round(per_day, 1),
        "sessions": sum(number for _, number in steps),
        "candidate_sessions": round(sum(share * number for share, number in steps)),
        "found": found,
    }


def words(power: Mapping[str, Any]) -> str:
    """Formats ``at 1,000 sessions a day the ramp has 170 sessions (57 of the candidate); found in it: …``."""
    parts = ", ".join(f"{name} with {share:.0%}" for name, share in power["found"].items())
    return (
        f"at {power['per_day']:,.0f} sessions a day the ramp has {power['sessions']:,} sessions "
        f"({power['candidate_sessions']:,} of the candidate); it finds {parts} probability"
    )
