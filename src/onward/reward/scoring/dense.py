"""Dense rewards: shares the raw total among the turns that earned it.

Half goes to the last turn, where the outcome is known. Half goes in equal parts to the turns whose action
succeeded and brought something new; where there are none, all goes to the last. These are differences of a
potential that ends at the raw total (Ng, Harada and Russell, ICML 1999), so they sum to it. Turns that fail
or repeat earn nothing, whatever their number.
"""

from __future__ import annotations

from typing import Any

from onward.contracts import Trajectory
from onward.reward.measures.baselines import repeats

OUTCOME_SHARE = 0.5


def per_turn(trajectory: Trajectory, raw_total: float) -> list[dict[str, Any]]:
    """Returns ``[{"turn_id", "reward"}]`` in the order of turns: each 0 or more, summing to ``raw_total``."""
    repeated = repeats(trajectory)
    useful = [
        turn.result.success and not again for turn, again in zip(trajectory.turns, repeated, strict=True)
    ]
    count = sum(useful)
    part = (1.0 - OUTCOME_SHARE) * raw_total / count if count else 0.0
    rewards = [part if one else 0.0 for one in useful]
    rewards[-1] += OUTCOME_SHARE * raw_total if count else raw_total
    return [
        {"turn_id": turn.turn_id, "reward": reward}
        for turn, reward in zip(trajectory.turns, rewards, strict=True)
    ]
