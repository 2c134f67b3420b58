"""Rewards of episodes, each computed once: the same rubric for the same task after as many questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onward.lru import Lru
from onward.rubrics.check import Check
from onward.rubrics.language import serialise
from onward.rubrics.policy.episodes import Attempt
from onward.rubrics.reward import ROBUST, RubricReward, RubricRewardSettings, reward_of

Scorer = Callable[[Sequence[Attempt]], list[RubricReward]]
"""Rewards of episodes in their order. ``total`` None: the environment failed, the episode does not count."""
_REMEMBERED = 100_000


class TruthScorer:
    """Judges rubrics by the truth of their tasks."""

    def __init__(self, settings: RubricRewardSettings = ROBUST) -> None:
        self.settings = settings
        self._known: Lru[tuple[bytes, tuple[Check, ...], str, int], RubricReward] = Lru(_REMEMBERED)

    def __call__(self, attempts: Sequence[Attempt]) -> list[RubricReward]:
        return [self.reward(one) for one in attempts]

    def reward(self, one: Attempt) -> RubricReward:
        if not one.finished:
            return RubricReward(total=None, failure=one.problem)
        if one.rubric is None:
            return reward_of(None, one.task, len(one.questions), self.settings)
        key = (one.task.weights.tobytes(), one.task.active, serialise(one.rubric), len(one.questions))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = reward_of(one.rubric, one.task, len(one.questions), self.settings)
        return known
