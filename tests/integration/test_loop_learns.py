"""The recipe of the tiny model raises success on held-out templates, and only because of the rewards.

So it does for ``tiny`` itself, a Llama, and for its twin with the shape of Qwen2. The same numbers as the
demonstration, without its servers: warm start, two cycles of 256 attempts, two clipped epochs each. The
control gives the same returns to the wrong attempts.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch

from onward.envs import desk
from onward.lm.advantages import RunningBaseline
from onward.lm.learner import Learner, LearnerConfig
from onward.lm.policy import Policy
from onward.training.job.methods import standardised
from onward.training.spec import recipes
from onward.training.warm_start import desk_attempts, warmup

RECIPE = recipes.for_model("tiny")
pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def v0(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> warmup.WarmUpResult:
    family: Literal["llama", "qwen2"] = request.param
    return warmup.warm_up("tiny", tmp_path_factory.mktemp(family), seed=0, threads=1, family=family)


def test_v0_can_be_improved_by_reinforcement(v0: warmup.WarmUpResult) -> None:
    """Three kinds succeed in 5–80 % of tries, and 40 % of the groups of eight are mixed."""
    assert 0.20 <= v0.success <= 0.40
    assert sum(0.05 <= rate <= 0.80 for rate in v0.by_kind.values()) >= 3
    assert v0.mixed_share >= 0.40


def test_success_rises_by_rewards_alone(v0: warmup.WarmUpResult) -> None:
    before, after = _two_cycles(v0, lambda returns: returns)
    assert desk_attempts.success(after) - desk_attempts.success(before) >= 0.25
    old, new = desk_attempts.by_kind(before), desk_attempts.by_kind(after)
    rising = {kind for kind in old if new[kind] > old[kind]}
    assert len(rising) >= 3
    assert rising & {"total", "agenda"}, "one of them needs two tools"


def test_shuffled_rewards_do_not_raise_success(v0: warmup.WarmUpResult) -> None:
    generator = random.Random(1)
    before, after = _two_cycles(v0, lambda returns: generator.sample(returns, len(returns)))
    assert desk_attempts.success(after) - desk_attempts.success(before) < 0.08


def _two_cycles(
    v0: warmup.WarmUpResult, arrange: Callable[[list[float]], list[float]]
) -> tuple[list[desk_attempts.Attempt], list[desk_attempts.Attempt]]:
    torch.set_num_threads(1)
    policy = Policy.load(Path(v0.base_folder))
    policy.add_adapter("policy", Path(v0.adapter_folder))
    panel = [task for seed in range(3) for task in desk.tasks("test", 100, seed)]

    def test() -> list[desk_attempts.Attempt]:
        return desk_attempts.attempt(policy, "policy", panel, max_tokens=RECIPE.max_tokens, seed=7)

    baseline = RunningBaseline()
    before = test()
    for cycle in (1, 2):
        tried = desk_attempts.attempt(
            policy, "policy", desk.tasks("train", 256, cycle), max_tokens=RECIPE.max_tokens, seed=cycle
        )
        returns = arrange([attempt.outcome.completion for attempt in tried])
        advantages = standardised(baseline.advantages(returns, [attempt.task.kind for attempt in tried]))
        config = LearnerConfig(
            learning_rate=RECIPE.learning_rate,
            epochs=RECIPE.epochs,
            minibatch_rows=RECIPE.batch_size,
            clip_epsilon=RECIPE.clip_epsilon,
            normaliser=RECIPE.normaliser,
            seed=cycle,
        )
        for _ in Learner(policy, "policy", config).update([attempt.row for attempt in tried], advantages):
            pass
    return before, test()
