"""Detection delays: how long the gates of a release take to find a worse candidate, at a given traffic.

Simulated with the release's own gates and a fixed seed, for one share of the traffic. Invariants: a delay is
counted in sessions of both arms; the time that a session needs to mature is added to it.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from onward.files import write_whole
from onward.release.evidence.evidence import GateRules
from onward.release.evidence.simulation import Behaviour, first_crossing

VERSION = 2
RUNS = 15
MOST_SESSIONS = 4_000
"""Sessions of one run. What is found later counts as not found."""


CURRENT = Behaviour()
CASES: tuple[tuple[str, str, Behaviour], ...] = (
    ("errors 20 %", "error", Behaviour(errors=0.2)),
    ("errors 50 %", "error", Behaviour(errors=0.5)),
    ("every session fails", "error", Behaviour(errors=1.0)),
    ("outcome lower by 0.20", "reward", Behaviour(mean=0.55)),
    ("outcome lower by 0.50", "reward", Behaviour(mean=0.25)),
    ("negative feedback 20 %", "feedback", Behaviour(negative=0.2)),
    ("negative feedback 40 %", "feedback", Behaviour(negative=0.4)),
)
"""Name of a defect, the gate that should find it, and the candidate's behaviour. Current: 1 %, 0.75, 3 %."""


@dataclass(frozen=True)
class Delay:
    """Delay until one defect is found. ``sessions`` is the median of the runs in which it was found."""

    defect: str
    gate: str
    sessions: float | None
    found: float
    """Share of the runs in which it was found within ``MOST_SESSIONS``."""

    def minutes(self, per_day: float, rules: GateRules) -> float | None:
        """Returns the median delay in minutes at ``per_day`` sessions of both arms, with their maturity."""
        if self.sessions is None:
            return None
        return self.sessions / per_day * 1440 + rules.maturity[self.gate] / 60_000


def simulate(share: float, rules: GateRules, runs: int = RUNS) -> list[Delay]:
    """Returns the delay of each of ``CASES`` at one share of the traffic."""
    found = []
    for name, gate, behaviour in CASES:
        chance = random.Random(f"{name}/{share}")
        steps = [(share, MOST_SESSIONS)]
        crossings = [
            first_crossing(steps, behaviour, CURRENT, rules, chance, MOST_SESSIONS) for _ in range(runs)
        ]
        known = [session for session in crossings if session is not None]
        found.append(Delay(name, gate, median(known) if known else None, len(known) / runs))
    return found


def cached(shares: Sequence[float], rules: GateRules, folder: Path | None) -> dict[float, list[Delay]]:
    """Returns the delays of each share, from ``folder`` where they were simulated before; None: no cache."""
    found = {}
    for share in shares:
        key: dict[str, Any] = {"version": VERSION, "share": share, "rules": asdict(rules), "runs": RUNS}
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        path = None if folder is None else folder / f"detection-{name}.json"
        delays = None if path is None else _stored(path)
        if delays is None:
            delays = simulate(share, rules)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, json.dumps([asdict(one) for one in delays]).encode())
        found[share] = delays
    return found


def _stored(path: Path) -> list[Delay] | None:
    """Returns the delays in ``path``; None if it is missing or damaged, then they are simulated again."""
    try:
        return [Delay(**one) for one in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError):
        return None
