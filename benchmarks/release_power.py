"""Power and false alarms of the release gates, beside the medians of the design's own simulation.

    python benchmarks/release_power.py [--runs 200] [--equal 1000] [--quick] [--json FILE]

Each gate stands alone with its share of α, as in that simulation. Its medians are in sessions of both arms.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

from onward.release.evidence.gates import WEIGHTS, Gates

ALPHA = 0.045
MOST = 8_000
DESIGN: dict[tuple[str, float, float], float] = {
    ("error", 0.10, 0.2): 332, ("error", 0.10, 0.5): 73, ("error", 0.10, 1.0): 28,
    ("error", 0.25, 0.1): 930, ("error", 0.25, 0.2): 144, ("error", 0.25, 0.5): 30,
    ("feedback", 0.10, 0.2): 690, ("feedback", 0.10, 0.4): 159, ("feedback", 0.25, 0.2): 381,
    ("reward", 0.10, 0.15): 879, ("reward", 0.10, 0.2): 568, ("reward", 0.10, 0.3): 309,
}  # fmt: skip
"""(gate, share, what is wrong) → median of the design's simulation."""


def beta(chance: random.Random, mean: float, deviation: float = 0.25) -> float:
    """Returns an outcome in [0, 1] with this mean and standard deviation."""
    size = mean * (1 - mean) / deviation**2 - 1
    return chance.betavariate(mean * size, (1 - mean) * size)


def first_crossing(gate: str, share: float, wrong: float, chance: random.Random) -> int | None:
    """Returns the session at which one gate alone crosses its share of α; None if it never does."""
    gates = Gates(ceiling=0.05, margin=0.05)
    limit = -math.log(ALPHA * WEIGHTS[gate])
    for session in range(1, MOST + 1):
        candidate = chance.random() < share
        if gate == "error":
            gates.observe_error(candidate, chance.random() < (wrong if candidate else 0.01), share)
        elif gate == "feedback":
            gates.observe_feedback(candidate, chance.random() < (wrong if candidate else 0.03), share)
        else:
            gates.observe_reward(candidate, beta(chance, 0.75 - (wrong if candidate else 0.0)))
        if gates.log_e()[gate] >= limit:
            return session
    return None


def equal_arms(runs: int, sessions: int) -> int:
    """Counts releases of equal arms that all gates together take back; each gate observes each session."""
    taken = 0
    for run in range(runs):
        chance, gates = random.Random(run), Gates(ceiling=0.05, margin=0.05)
        for _ in range(sessions):
            candidate = chance.random() < 0.1
            gates.observe_error(candidate, chance.random() < 0.01, 0.1)
            gates.observe_reward(candidate, float(chance.random() < 0.75))
            gates.observe_feedback(candidate, chance.random() < 0.03, 0.1)
            if gates.crossed(ALPHA):
                taken += 1
                break
    return taken


def power(runs: int) -> dict[str, dict[str, float | None]]:
    """Returns each case of ``DESIGN`` with its median, the design's, and the share of runs that found it."""
    cases: dict[str, dict[str, float | None]] = {}
    for (gate, share, wrong), design in DESIGN.items():
        chance = random.Random(f"{gate}/{share}/{wrong}")
        found = [first_crossing(gate, share, wrong, chance) for _ in range(runs)]
        known = [session for session in found if session is not None]
        median = statistics.median(known) if known else None
        name = f"{gate} {wrong:g} at {share:.0%}"
        cases[name] = {"median": median, "design": design, "found": len(known) / runs}
        beside = "never" if median is None else f"median {median:.0f} ({median / design - 1:+.0%})"
        print(f"{name}: {beside}, design {design:.0f}, found {len(known) / runs:.0%}", flush=True)
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--equal", type=int, default=0, help="releases of equal arms")
    parser.add_argument("--quick", action="store_true", help="3 runs: only to see that it works")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    begun = time.perf_counter()
    result: dict[str, Any] = {"power": power(3 if given.quick else given.runs)}
    if given.equal:
        taken = equal_arms(given.equal, 2000)
        result["equal_arms"] = {"releases": given.equal, "taken_back": taken}
        print(f"equal arms taken back: {taken} of {given.equal}")
    print(f"({time.perf_counter() - begun:.0f} s)")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
