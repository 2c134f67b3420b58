"""Simulated sessions through the gates of a release: at which of them a worse candidate is found.

Pure. Outcomes are 0 or 1, and each session is judged at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from onward.release.evidence.evidence import MIN_UNITS, GateRules
from onward.release.evidence.gates import Gates


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
            gates.observe_reward(is_candidate, float(chance.random() < own.mean))
            if own.negative is not None:
                gates.observe_feedback(is_candidate, chance.random() < own.negative, share)
            if judged >= MIN_UNITS and gates.crossed(rules.alpha):
                return session
    return None
