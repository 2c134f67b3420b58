"""Bias check of ``min_reward``: the policy still improves, because failures beside a success stay.

The same task as in test_learning, with attempts in pairs, so that a quarter of the groups has no success and
is left out. Applied to members, the limit would leave equal rewards, and nothing to learn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from onward.lm import paths
from onward.lm.algorithms import learn
from onward.lm.learner import Learner
from onward.lm.trajectories import NothingToLearnError, Trajectory
from onward.training.data.dataset import select_lines

from .test_learning import METHODS, trajectories

pytestmark = pytest.mark.slow

PAIR, LIMIT = 2, 0.5
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3, 4))]


def admitted(played: list[Trajectory], method: str, excluded: Counter[str]) -> list[Trajectory]:
    """The attempts that a job with ``min_reward`` keeps."""
    lines = [
        {"trajectory_id": n, "group_key": f"g{one.group}", "raw_total": one.reward}
        for n, one in enumerate(played)
    ]
    kept = select_lines(lines, method, excluded, min_reward=LIMIT)
    return [played[line["trajectory_id"]] for line in kept]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("method", ["rloo", "grpo", "reinforce"])
def test_with_min_reward_the_policy_still_improves(two_armed: Path, method: str, seed: int) -> None:
    kind, options, config = METHODS[method]
    policy = paths.load(two_armed)
    policy.new_adapter("x", 4, 8.0, seed=seed)
    config = replace(config, learning_rate=5e-3, epochs=2, minibatch_rows=32, seed=seed)
    learner, algorithm = Learner(policy, "x", config), kind(**options)
    history: list[float] = []
    excluded: Counter[str] = Counter()
    for update in range(14):
        played = trajectories(policy, seed * 100 + update)
        for n, one in enumerate(played):
            one.group = n // PAIR
        history.append(sum(bool(one.success) for one in played) / len(played))
        if history[-1] < 1.0:
            for _ in learn(learner, algorithm, algorithm.select(admitted(played, method, excluded))):
                assert learner.finite
    print(history, excluded)
    assert 0.3 < history[0] < 0.7 and sum(history[-3:]) / 3 > 0.95, history
    assert (excluded["below_min_reward"] > 0) is (method != "reinforce")


def test_on_single_attempts_the_limit_would_leave_nothing_to_learn(two_armed: Path) -> None:
    kind, options, _ = METHODS["rloo"]
    policy = paths.load(two_armed)
    policy.new_adapter("x", 4, 8.0, seed=0)
    played = trajectories(policy, 0)
    best = [one for one in played if one.reward is not None and one.reward >= LIMIT]
    assert 0 < len(best) < len(played)
    with pytest.raises(NothingToLearnError):
        kind(**options).select(best)
