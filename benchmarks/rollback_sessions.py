"""Sessions until a candidate with errors is rolled back, by E-values and by the threshold rule.

    python benchmarks/rollback_sessions.py [--runs 200] [--quick] [--json FILE]

A candidate fails in 8 % of its sessions, current in 1 %, each with half of the traffic; success and raw
totals are alike, and there are no votes. Counted are the sessions of both arms until the crossing, without
the time to mature. Beside it: how many candidates that equal current are taken back in the four hours of a
canary.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.config import ReleaseSettings
from onward.release.evidence.evidence import ARMS, MIN_UNITS, GateRules
from onward.release.evidence.simulation import RAW_FAILED, RAW_SUCCEEDED, Behaviour, first_crossing
from onward.release.evidence.threshold import KINDS, RAW_KINDS, ThresholdRule

CURRENT, BAD = Behaviour(errors=0.01, negative=None), Behaviour(errors=0.08, negative=None)
SHARE = 0.5
MOST = 20_000
"""Sessions of one run. What is found later counts as not found."""
MINUTE = 60_000
HOURS = 4


@dataclass(frozen=True)
class Found:
    """Sessions until the crossing, in the runs in which it was found."""

    median: float | None
    nine_in_ten: float | None
    share: float


def rules(consecutive: int = 1) -> GateRules:
    settings = {"gates": "threshold", "consecutive": consecutive}
    return GateRules.from_settings(ReleaseSettings.model_validate(settings))


def by_limits(
    candidate: Behaviour, rules: GateRules, per_minute: int, chance: random.Random, most: int
) -> int | None:
    """Returns the session at which the threshold rule crosses; None if it does not within ``most``."""
    rule = ThresholdRule(
        rules.threshold_ms,
        rules.consecutive,
        ceiling=rules.ceiling,
        margin=rules.margin,
        least=rules.least_sessions,
    )
    counts: dict[str, dict[str, float]] = {arm: dict.fromkeys((*KINDS, *RAW_KINDS), 0.0) for arm in ARMS}
    for session in range(1, most + 1):
        is_candidate = chance.random() < SHARE
        own, tally = (candidate if is_candidate else CURRENT), counts[ARMS[is_candidate]]
        succeeded = chance.random() < own.mean
        tally["judged"] += 1
        tally["failed"] += chance.random() < own.errors
        tally["rewarded"] += 1
        tally["reward_sum"] += succeeded
        tally["raw_known"] += 1
        tally["raw_sum"] += RAW_SUCCEEDED if succeeded else RAW_FAILED
        if counts["candidate"]["judged"] < MIN_UNITS:
            continue
        if rule.check(session * MINUTE // per_minute, counts) is not None:
            return session
    return None


def summary(crossings: list[int | None]) -> Found:
    """Returns the median and the 9th decile of the runs in which the candidate was found."""
    known = sorted(session for session in crossings if session is not None)
    if not known:
        return Found(None, None, 0.0)
    return Found(statistics.median(known), known[(9 * len(known) - 1) // 10], len(known) / len(crossings))


def measured(runs: int) -> dict[str, dict[str, Found]]:
    """Returns rule → traffic → what was found of the bad candidate, with a fixed seed."""
    evidence = GateRules.from_settings(ReleaseSettings.model_validate({}))
    found: dict[str, dict[str, Found]] = {"E-values": {}, "threshold, 1 check": {}, "threshold, 3 checks": {}}
    chance = random.Random(5)
    crossings = [first_crossing([(SHARE, MOST)], BAD, CURRENT, evidence, chance, MOST) for _ in range(runs)]
    for per_minute in (10, 60):
        found["E-values"][str(per_minute)] = summary(crossings)  # they do not depend on time
        for name, consecutive in (("threshold, 1 check", 1), ("threshold, 3 checks", 3)):
            chance = random.Random(per_minute)
            crossed = [by_limits(BAD, rules(consecutive), per_minute, chance, MOST) for _ in range(runs)]
            found[name][str(per_minute)] = summary(crossed)
    return found


def equal_taken(runs: int) -> dict[str, dict[str, float]]:
    """Returns rule → traffic → share of candidates that equal current and are taken back in four hours."""
    evidence = GateRules.from_settings(ReleaseSettings.model_validate({}))
    taken: dict[str, dict[str, float]] = {"E-values": {}, "threshold, 1 check": {}, "threshold, 3 checks": {}}
    for per_minute in (10, 60):
        most, chance = per_minute * 60 * HOURS, random.Random(per_minute + 1)
        crossed = [
            first_crossing([(SHARE, most)], CURRENT, CURRENT, evidence, chance, most) for _ in range(runs)
        ]
        taken["E-values"][str(per_minute)] = summary(crossed).share
        for name, consecutive in (("threshold, 1 check", 1), ("threshold, 3 checks", 3)):
            chance = random.Random(per_minute + 2)
            crossed = [by_limits(CURRENT, rules(consecutive), per_minute, chance, most) for _ in range(runs)]
            taken[name][str(per_minute)] = summary(crossed).share
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="3 runs: only to see that it works")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    runs, begun = 3 if given.quick else given.runs, time.perf_counter()
    found, taken = measured(runs), equal_taken(runs)
    result: dict[str, Any] = {"runs": runs, "found": {}, "equal_taken": taken}
    for rule, by_traffic in found.items():
        result["found"][rule] = {traffic: vars(one) for traffic, one in by_traffic.items()}
        for traffic, one in by_traffic.items():
            numbers = "never" if one.median is None else f"{one.median:,.0f} ({one.nine_in_ten:,.0f})"
            equal = taken[rule][traffic]
            print(
                f"{rule}, {traffic} a minute: {numbers}, found {one.share:.0%}, equal {equal:.1%}", flush=True
            )
    print(f"({time.perf_counter() - begun:.0f} s)")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
