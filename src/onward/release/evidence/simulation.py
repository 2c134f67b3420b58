"""Simulated sessions through the gates of a release: at which of them a worse candidate is found.

Pure. Outcomes are 0 or 1, and each session is judged at once. Where the rules judge raw totals, a session
has that of the default weights: no code, no vote, usual effort.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from onward.release.evidence.evidence import MIN_UNITS, GateRules
from onward.release.evidence.gates import BOTH, Gates

RAW_FAILED = 0.25 * 0.5 / 0.85
"""Raw total of a failed session: feedback (weight 0.25, score 0.5) of all weights but that of code (0.85)."""
RAW_SUCCEEDED = (0.40 + 0.20 * 0.5 + 0.25 * 0.5) / 0.85


@dataclass(frozen=True)
class Behaviour:
    """Behaviour of a model: rates of errors and of negative feedback, mean outcome."""

    errors: float = 0.01
    mean: float = 0.75
    negative: float | None = 0.03
    """None: there are no votes."""


def first_crossing(
    steps: Iterable[tuple[float, int]],
    candidate: Behaviour,
    current: Behaviour,
    rules: GateRules,
    chance: random.Random,
    most: int,
) -> int | None:
    """Returns the session of both arms at which the gates cross. None if they do not within ``steps``, which
    are (candidate's share, sessions), or within ``most`` sessions."""
    gates = Gates(ceiling=rules.ceiling, margin=rules.margin)
    judged = session = 0
    for share, sessions in steps:
        for _ in range(sessions):
            session += 1
            if session > most:
                return None
            is_candidate = chance.random() < share
            own = candidate if is_candidate else current
            judged += is_candidate
            gates.observe_error(is_candidate, chance.random() < own.errors, share)
            succeeded = chance.random() < own.mean
            raw_total = RAW_SUCCEEDED if succeeded else RAW_FAILED
            gates.observe_reward(
                is_candidate, float(succeeded), raw_total if rules.reward_signal == BOTH else None
            )
            if own.negative is not None:
                gates.observe_feedback(is_candidate, chance.random() < own.negative, share)
            if judged >= MIN_UNITS and gates.crossed(rules.alpha):
                return session
    return None
