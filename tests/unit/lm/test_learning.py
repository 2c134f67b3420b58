"""Learning itself: success must rise from one half to nearly one, and only because of the reward."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from onward.lm.advantages import RunningBaseline, rloo
from onward.lm.learner import Learner, LearnerConfig
from onward.lm.policy import Policy
from onward.lm.sampler import Sampler, SampleRequest
from onward.lm.tokens import Call, rows_from_calls

from .conftest import ARMS, OBSERVATION, START

EPISODES = 64


def play(policy: Policy, seed: int) -> list[list[Call]]:
    """Two turns: an arm, two observation tokens, an arm again."""
    sampler = Sampler(policy, EPISODES)
    calls: list[list[Call]] = [[] for _ in range(EPISODES)]
    for turn in range(2):
        for i in range(EPISODES):
            delta = [OBSERVATION, OBSERVATION] if turn else [START]
            prompt = [START, *calls[i][0].token_ids, *delta] if turn else delta
            request = SampleRequest(str(i), prompt, 1, adapter="x", seed=seed * 1000 + turn * 100 + i)
            sampler.submit(request)
        while sampler.busy:
            for s in sampler.step():
                i = int(s.request_id)
                delta = [OBSERVATION, OBSERVATION] if turn else [START]
                continues = f"{i}.0" if turn else None
                calls[i].append(Call(delta, s.token_ids, s.logprobs, 1.0, f"{i}.{turn}", continues))
    return calls


def run(
    folder: Path, method: str, *, shuffled: bool = False, updates: int = 14, seed: int = 0
) -> list[float]:
    """Success (the *first* arm is right) at each update; the second turn's tokens are trained as well."""
    policy = Policy.load(folder)
    policy.new_adapter("x", 4, 8.0)
    learner = Learner(policy, "x", LearnerConfig(learning_rate=1e-2, epochs=2, minibatch_rows=32))
    baseline, rnd, history = RunningBaseline(), random.Random(seed), []
    for update in range(updates):
        episodes = play(policy, seed * 100 + update)
        rows = [rows_from_calls(calls) for calls in episodes]
        assert all(len(r) == 1 for r in rows), "observation tokens must not break the row"
        reward = [float(calls[0].token_ids[0] == ARMS[0]) for calls in episodes]
        history.append(sum(reward) / len(reward))
        if shuffled:
            rnd.shuffle(reward)
        if method == "reinforce":
            advantages = baseline.advantages(reward, ["arm"] * EPISODES)
        else:
            advantages = rloo(reward, [i // 8 for i in range(EPISODES)])
        for metrics in learner.update([r[0] for r in rows], advantages):
            assert metrics.kl >= 0 and not metrics.skipped
    return history


@pytest.mark.parametrize("method", ["reinforce", "rloo"])
def test_success_rises_over_observation_tokens(two_armed: Path, method: str) -> None:
    history = run(two_armed, method)
    print(history)
    assert 0.3 < history[0] < 0.7
    assert sum(history[-3:]) / 3 > 0.95, history


def test_a_shuffled_reward_teaches_nothing(two_armed: Path) -> None:
    finals = []
    for seed in range(6):  # each is a short random walk; a direction would show in their mean
        history = run(two_armed, "reinforce", shuffled=True, updates=6, seed=seed)
        finals.append(history[-1])
    print(finals)
    assert 0.3 < sum(finals) / len(finals) < 0.7, finals
