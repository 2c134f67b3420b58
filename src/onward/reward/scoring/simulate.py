"""Simulates the order of scored trajectories under other weights. Pure.

Nothing is scored again: the stored raw and normalised scores are summed under other weights. That is exact,
since neither depends on the weights. Windows over the totals themselves are not simulated.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onward.config import REWARD_COMPONENTS
from onward.contracts import Reward
from onward.errors import ConfigError

By = Literal["raw_total", "total_reward"]
SUM_SLACK = 1e-6
"""Tolerance of the weights' sum around 1, as in the settings."""
_DIGITS = 12
"""Decimals at which two totals are equal: their last bits come from rounding."""


@dataclass(frozen=True)
class Case:
    """One trajectory under both weights."""

    trajectory_id: str
    task_type: str
    scores: Mapping[str, float]
    """Component → its summand: the raw score, or the normalised one."""
    weights: Mapping[str, float]
    """Component → its stored weight, after rescaling."""
    old: float
    new: float


def parse_weights(
    text: str, *, known: Sequence[str] = REWARD_COMPONENTS, normalize: bool = False
) -> dict[str, float]:
    """Parses ``task_completion=.5,efficiency=.5``; a component that is not named gets 0.

    Raises ConfigError for an unknown name, for anything but a number from 0 up, and for a sum other than 1,
    unless ``normalize`` divides by it.
    """
    weights = dict.fromkeys(known, 0.0)
    named: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, given, value = (word.strip() for word in part.partition("="))
        if name not in weights or not given:
            raise ConfigError(f"{part!r} is not a weight: give NAME=NUMBER with one of {', '.join(known)}.")
        if name in named:
            raise ConfigError(f"{name} is given twice: give each weight once.")
        named.add(name)
        weights[name] = _weight(name, value)
    total = math.fsum(weights.values())
    if normalize and total == 0.0:
        raise ConfigError("The weights sum to 0: give one of them a number above 0.")
    if normalize:
        return {name: weight / total for name, weight in weights.items()}
    if abs(total - 1.0) > SUM_SLACK:
        raise ConfigError(
            f"The weights sum to {total:g}: they must sum to 1 (a component that is not named counts 0), "
            "or give --normalize."
        )
    return weights


def _weight(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise ConfigError(f"The weight of {name} is {value!r}: expected a number from 0 to 1, such as 0.25.")
    return number


def cases(rewards: Sequence[Reward], weights: Mapping[str, float], by: By = "raw_total") -> list[Case]:
    """Builds a case of each reward under ``weights``, which are shared among its components. Rewards without
    a weighted component are left out: they would have no reward."""
    found: list[Case] = []
    for reward in rewards:
        parts = reward.reward_components
        scores = {
            name: part.score if by == "raw_total" else float((part.raw_data or {})["normalized"])
            for name, part in parts.items()
        }
        new = weighted(scores, weights)
        if new is None:
            continue
        old = reward.total_reward
        if by == "raw_total" and reward.metadata.raw_total is not None:
            old = reward.metadata.raw_total
        weights_then = {name: part.weight for name, part in parts.items()}
        kind = reward.metadata.task_type or ""
        found.append(
            Case(reward.trajectory_id, kind, scores, weights_then, round(old, _DIGITS), round(new, _DIGITS))
        )
    return found


def weighted(scores: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    """Returns Σ wᵢ·sᵢ / Σ wᵢ over the components with a score; None where none of them has a weight."""
    shared = _shared(scores, weights)
    if shared is None:
        return None
    return min(1.0, max(0.0, math.fsum(shared[name] * score for name, score in scores.items())))


def _shared(scores: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float] | None:
    whole = math.fsum(weights.get(name, 0.0) for name in scores)
    return {name: weights.get(name, 0.0) / whole for name in scores} if whole > 0.0 else None


def simulate(
    rewards: Sequence[Reward], weights: Mapping[str, float], *, by: By = "raw_total", show: int = 5
) -> dict[str, Any]:
    """Describes the new order of ``rewards`` under ``weights``, as one JSON document.

    ``spearman`` is None below two trajectories or where all totals are equal. ``swapped_share`` is the share
    of formerly ordered pairs whose order would be reversed. Ranks count from 1, the highest total first, ties
    by mid-rank.
    """
    found = cases(rewards, weights, by)
    pairs, swapped = swaps([case.old for case in found], [case.new for case in found])
    kinds = sorted({case.task_type for case in found})
    return {
        "by": by,
        "weights": dict(weights),
        "trajectories": len(found),
        "unscored": len(rewards) - len(found),
        "rescaled": sum(_misses(case, weights) for case in found),
        **_compared(found),
        "pairs": pairs,
        "swapped_share": swapped / pairs if pairs else 0.0,
        "by_task_type": {
            kind: _compared([case for case in found if case.task_type == kind]) for kind in kinds
        },
        "moved_most": _moved(found, weights, show),
    }


def _misses(case: Case, weights: Mapping[str, float]) -> bool:
    return any(weight > 0.0 and name not in case.scores for name, weight in weights.items())


def _compared(found: Sequence[Case]) -> dict[str, Any]:
    old, new = [case.old for case in found], [case.new for case in found]
    count = len(found)
    return {
        "n": count,
        "spearman": spearman(old, new),
        "mean_old": math.fsum(old) / count if count else None,
        "mean_new": math.fsum(new) / count if count else None,
        "mean_shift": math.fsum(b - a for a, b in zip(old, new, strict=True)) / count if count else None,
    }


def _moved(found: Sequence[Case], weights: Mapping[str, float], show: int) -> list[dict[str, Any]]:
    old = [len(found) + 1 - rank for rank in ranks([case.old for case in found])]
    new = [len(found) + 1 - rank for rank in ranks([case.new for case in found])]
    order = sorted(range(len(found)), key=lambda i: (-abs(new[i] - old[i]), found[i].trajectory_id))
    return [
        {
            "trajectory_id": found[i].trajectory_id,
            "task_type": found[i].task_type,
            "old_rank": old[i],
            "new_rank": new[i],
            "old": found[i].old,
            "new": found[i].new,
            "components": _parts(found[i], weights),
        }
        for i in order[:show]
        if new[i] != old[i]
    ]


def _parts(case: Case, weights: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Returns score and both weights of each component, which explain why the total moved."""
    shared = _shared(case.scores, weights) or {}
    return {
        name: {"score": score, "old_weight": case.weights[name], "new_weight": shared[name]}
        for name, score in case.scores.items()
    }


def ranks(values: Sequence[float]) -> list[float]:
    """Returns ranks from 1, the lowest value first; equal values share the mean of their ranks."""
    ordered = sorted(values)
    last = {value: place for place, value in enumerate(ordered, start=1)}
    first = {value: place for place, value in reversed(list(enumerate(ordered, start=1)))}
    return [(first[value] + last[value]) / 2.0 for value in values]


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Returns Pearson's correlation of the mid-ranks (Spearman 1904); None if either side has no spread."""
    a, b = ranks(one), ranks(other)
    middle = (len(a) + 1) / 2.0
    aa = math.fsum((x - middle) ** 2 for x in a)
    bb = math.fsum((y - middle) ** 2 for y in b)
    if aa == 0.0 or bb == 0.0:
        return None
    return math.fsum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True)) / math.sqrt(aa * bb)


def swaps(old: Sequence[float], new: Sequence[float]) -> tuple[int, int]:
    """Returns the number of pairs that ``old`` orders, and of those that ``new`` orders in reverse."""
    ordered = sorted(zip(old, new, strict=True))  # equal in old: rising in new, so never a swap
    seen: list[float] = []
    swapped = pairs = 0
    for place, (value, after) in enumerate(ordered):
        start = bisect_left(ordered, value, key=lambda pair: pair[0])
        pairs += start
        swapped += place - bisect_right(seen, after)
        insort(seen, after)
    return pairs, swapped
