"""Advantages by hand, by slow references, and for every advantage case of lm-training section 3 (A)."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.errors import TrainingError
from onward.lm.advantages import (
    RunningBaseline,
    asymmetric,
    gae,
    grpo,
    place_reward,
    returns,
    rloo,
    whiten,
)


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values])


# --- returns over observation tokens (cases 1 to 4) --------------------------------------------


def test_case_1_returns_reach_actions_before_an_observation() -> None:
    mask = row(1, 1, 0, 0, 1, 1)
    assert returns(row(0, 0, 0, 0, 0, 1), mask).tolist() == [[1, 1, 0, 0, 1, 1]]


def test_case_2_the_reward_sits_on_the_last_action_not_on_the_trailing_observation() -> None:
    mask = row(1, 1, 0, 0, 1, 1, 0, 0)
    rewards = place_reward(mask, torch.tensor([1.0]))
    assert rewards.tolist() == [[0, 0, 0, 0, 0, 1, 0, 0]]
    assert float((rewards * mask).sum()) == 1.0
    advantages, _ = gae(rewards, torch.zeros(1, 8), mask)
    assert advantages.tolist() == [[1, 1, 0, 0, 1, 1, 0, 0]]


def test_case_2_a_row_without_actions_cannot_swallow_its_reward() -> None:
    with pytest.raises(TrainingError, match="no trainable token"):
        place_reward(row(0, 0), torch.tensor([1.0]))


def test_case_3_tokens_of_a_tool_neither_leak_kl_nor_decay() -> None:
    kl = row(1, 1, 1, 1)
    assert returns(-kl, row(1, 0, 0, 1), gamma=0.9)[0, 0].item() == pytest.approx(-1.9)


def test_case_4_a_value_in_the_padding_is_never_bootstrapped() -> None:
    mask, values = row(1, 1, 0), row(0, 0, 100)
    advantages, targets = gae(row(0, 1, 0), values, mask, gamma=1.0, lam=0.95)
    assert advantages[0].tolist() == pytest.approx([0.95, 1.0, 0.0])
    assert targets[0].tolist() == pytest.approx([0.95, 1.0, 0.0])


def test_case_5_each_step_row_carries_the_advantage_at_its_own_actions() -> None:
    """Two rows of one trajectory, one scalar: every trainable token of both gets it."""
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]])
    assert returns(place_reward(mask, torch.tensor([0.5, 0.5])), mask).tolist() == [
        [0.5, 0.5, 0, 0],
        [0, 0, 0.5, 0.5],
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.5, 1.0), st.floats(0.0, 1.0))
def test_observation_tokens_anywhere_leave_actions_unchanged(seed: int, gamma: float, lam: float) -> None:
    """Acceptance (a), for γ, λ < 1 too; the inserted tokens carry arbitrary rewards and values."""
    rnd = random.Random(seed)
    n = rnd.randint(1, 6)
    rewards = [rnd.gauss(0, 1) for _ in range(n)]
    values = [rnd.gauss(0, 1) for _ in range(n)]
    slots = sorted(rnd.sample(range(n + 5), n))
    long_rewards, long_values = ([rnd.gauss(0, 9) for _ in range(n + 5)] for _ in range(2))
    mask = [0.0] * (n + 5)
    for slot, reward, value in zip(slots, rewards, values, strict=True):
        long_rewards[slot], long_values[slot], mask[slot] = reward, value, 1.0
    ones = torch.ones(1, n)
    short, _ = gae(row(*rewards), row(*values), ones, gamma, lam)
    long, _ = gae(row(*long_rewards), row(*long_values), row(*mask), gamma, lam)
    assert torch.allclose(long[0, slots], short[0], atol=1e-5)
    assert torch.allclose(
        returns(row(*long_rewards), row(*mask), gamma)[0, slots],
        returns(row(*rewards), ones, gamma)[0],
        atol=1e-5,
    )


def test_gae_equals_the_sum_over_transitions() -> None:
    """Acceptance (e): A_t = Σ_k (γλ)^k δ_{t+k}, written out per trainable transition."""
    rnd, gamma, lam = random.Random(3), 0.93, 0.8
    rewards = [rnd.gauss(0, 1) for _ in range(6)]
    values = [rnd.gauss(0, 1) for _ in range(6)]
    deltas = [r + gamma * (values[t + 1] if t < 5 else 0.0) - values[t] for t, r in enumerate(rewards)]
    slow = [sum((gamma * lam) ** k * deltas[t + k] for k in range(6 - t)) for t in range(6)]
    fast, _ = gae(row(*rewards), row(*values), torch.ones(1, 6), gamma, lam)
    assert fast[0].tolist() == pytest.approx(slow, abs=1e-6)


# --- groups ------------------------------------------------------------------------------------


def test_group_advantages_by_hand() -> None:
    rewards, groups = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0], ["a", "a", "a", "a", "b", "b", "b"]
    assert rloo(rewards, groups)[:4] == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert grpo(rewards, groups, normalise_std=False)[4:] == pytest.approx([1 / 3, -2 / 3, 1 / 3])
    std = (1 / 3) ** 0.5  # of [1, 0, 0, 1] with n - 1
    assert grpo(rewards, groups)[0] == pytest.approx(0.5 / std, abs=1e-4)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9))
def test_rloo_is_a_constant_times_grpo_without_std(rewards: list[float]) -> None:
    """Acceptance (d): the factor is n/(n−1)."""
    n, group = len(rewards), ["g"] * len(rewards)
    scaled = [a * n / (n - 1) for a in grpo(rewards, group, normalise_std=False)]
    assert rloo(rewards, group) == pytest.approx(scaled, abs=1e-9)


@pytest.mark.parametrize("method", [rloo, grpo])
def test_a_group_of_one_is_refused_with_the_remedy(method) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TrainingError, match="use reinforce") as caught:
        method([1.0, 0.0, 1.0], ["a", "a", "b"])
    assert caught.value.code == "DATA"


@pytest.mark.parametrize("method", [rloo, grpo])
def test_case_6_a_sample_without_actions_does_not_shift_the_others(method) -> None:  # type: ignore[no-untyped-def]
    with_empty = method([100.0, 1.0, 0.0], ["g"] * 3, [False, True, True])
    assert with_empty == pytest.approx([0.0, *method([1.0, 0.0], ["g"] * 2)])


def test_case_8_and_9_a_group_that_differs_only_by_noise_gets_no_full_size_gradient() -> None:
    assert grpo([0.5, 0.5 + 1e-5, 0.5, 0.5], ["g"] * 4) == [0.0] * 4
    assert max(map(abs, rloo([0.5, 0.5 + 1e-5], ["g"] * 2))) < 1e-4


# --- running baseline --------------------------------------------------------------------------


def test_the_baseline_never_contains_the_sample_itself() -> None:
    """Changing one reward changes that sample's advantage by exactly as much."""
    for i in range(3):
        before = [0.2, 0.9, 0.4]
        after = list(before)
        after[i] += 10.0
        a, b = (RunningBaseline().advantages(r, ["t"] * 3) for r in (before, after))
        assert b[i] - a[i] == pytest.approx(10.0)


def test_the_baseline_by_hand() -> None:
    baseline = RunningBaseline(decay=0.5)
    assert baseline.advantages([1.0, 0.0], ["t", "t"]) == pytest.approx([1.0, -1.0])
    # history: sum 0.5, weight 1; now one sample of its own type
    assert baseline.advantages([1.0], ["t"]) == pytest.approx([1.0 - 0.5])


def test_task_types_have_baselines_of_their_own() -> None:
    baseline = RunningBaseline()
    baseline.advantages([1.0] * 8 + [0.0] * 8, ["easy"] * 8 + ["hard"] * 8)
    assert baseline.advantages([1.0, 1.0], ["easy", "hard"]) == pytest.approx([0.0, 1.0])


def test_a_lone_sample_with_nothing_to_compare_has_no_advantage() -> None:
    baseline = RunningBaseline()
    assert baseline.advantages([1.0], ["t"]) == [0.0]
    assert RunningBaseline().advantages([1.0, 0.0], ["only", "other"]) == pytest.approx([1.0, -1.0])


def test_the_baseline_ignores_samples_without_actions_and_survives_a_restart() -> None:
    baseline = RunningBaseline()
    assert baseline.advantages([9.0, 1.0, 0.0], ["t"] * 3, [False, True, True]) == pytest.approx([0, 1, -1])
    again = RunningBaseline.from_state(baseline.state())
    assert again.advantages([1.0], ["t"]) == baseline.advantages([1.0], ["t"])


# --- whitening ---------------------------------------------------------------------------------


def test_whitening_counts_trainable_tokens_only() -> None:
    out = whiten(row(1, 3, 500), row(1, 1, 0))
    assert out[0].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5, 0.0], abs=1e-5)


def test_case_9_whitening_does_not_blow_noise_up() -> None:
    """Advantages that differ by 1e-5 stay that small; without a difference they are 0."""
    out = whiten(row(0.5, 0.5 + 1e-5), row(1, 1))
    assert float(out.abs().max()) < 1e-4
    assert whiten(row(0.5, 0.5), row(1, 1)).tolist() == [[0, 0]]


def test_whitening_weighs_tokens_or_rows() -> None:
    """Rows [1] and [4, 4, 4]: token mean 13/4 and variance 9/4; row mean 5/2 and variance 9/2."""
    values = torch.tensor([[1.0, 0, 0], [4, 4, 4]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    token, sequence = whiten(values, mask), whiten(values, mask, "sequence")
    assert token[:, 0].tolist() == pytest.approx([-1.5, 0.5], abs=1e-5)
    assert sequence[:, 0].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-5)


def test_whitening_one_token_is_not_nan() -> None:
    assert whiten(row(2, 7), row(1, 0)).tolist() == [[2, 0]]


def test_advantages_below_the_baseline_weigh_less() -> None:
    assert asymmetric([2.0, -1.0, 0.0], 0.5) == [2.0, -0.5, 0.0]
    assert asymmetric([2.0, -1.0, 0.0], 1.0) == [2.0, -1.0, 0.0]
