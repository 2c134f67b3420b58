"""Reward: gives every trajectory a score that a person can check and that missing reports cannot raise.

Reading order: ``components`` (one score each), ``scoring.score`` (one trajectory), ``measures`` (what the
scores are based on), ``code`` (analysis of code that agents wrote), ``role`` (the rewarder).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.reward.components import NotApplicable, Scored, ScoringContext, Unscored, components_of
    from onward.reward.scoring.score import Provenance, reward_id, score
    from onward.reward.scoring.state import State

__all__ = [
    "NotApplicable", "Provenance", "Scored", "ScoringContext", "State", "Unscored", "components_of",
    "reward_id", "score",
]  # fmt: skip
__getattr__ = attributes(
    __name__,
    {
        "onward.reward.components": "NotApplicable Scored ScoringContext Unscored components_of",
        "onward.reward.scoring.score": "Provenance reward_id score",
        "onward.reward.scoring.state": "State",
    },
)
