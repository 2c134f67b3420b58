"""Algorithms on scored trajectories: what takes part, where rewards sit, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from onward.errors import ConfigError, TrainingError
from onward.lm.algorithms import (
    ALGORITHMS,
    Grpo,
    Ppo,
    Reinforce,
    ReinforcePlusPlus,
    Rloo,
    from_options,
    learn,
)
from onward.lm.algorithms.base import Algorithm
from onward.lm.learner import CriticConfig, Learner, LearnerConfig
from onward.lm.policy import Policy
from onward.lm.tokens import Call, TokenRow, rows_from_calls
from onward.lm.trajectories import NothingToLearnError, Trajectory

from .conftest import noisy_adapter, random_rows, with_behaviour

EVERY = [Ppo, Rloo, Grpo, Reinforce, ReinforcePlusPlus]
GROUPED = [Rloo, Grpo]


def row(mask: str) -> TokenRow:
    """One token per letter: ``a`` sampled, ``o`` not."""
    return TokenRow(
        list(range(3, 3 + len(mask))), [c == "a" for c in mask], [-1.0 * (c == "a") for c in mask]
    )


def one(mask: str, reward: float | None, group: Any = "g", **more: Any) -> Trajectory:
    success = None if reward is None else reward > 0.5
    return Trajectory([row(m) for m in mask.split()], reward, group, **{"success": success, **more})


def scalars(algorithm: Algorithm, trajectories: list[Trajectory], **facts: Any) -> list[list[float]]:
    """Advantages per row, per trained token."""
    estimate = algorithm.estimate(algorithm.select(trajectories), facts.get("penalty"), facts.get("values"))
    return [[round(float(x), 5) for x in part] for part in estimate.advantages]


# --- where a reward reaches ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
def test_case_2_a_trailing_observation_cannot_swallow_the_reward(kind: type[Algorithm]) -> None:
    """Case 2 (miles#1827): the reward belongs to the last action, not to the observation after it."""
    pair = [one("oaaooaaoo", 1.0), one("oaaooaaoo", 0.0)]
    values = [torch.zeros(4)] * 2
    better, worse = scalars(kind(), pair, values=values)
    assert all(x > 0 for x in better) and all(x < 0 for x in worse), (better, worse)


@pytest.mark.parametrize("kind", EVERY)
def test_case_5_earlier_rows_of_a_trajectory_get_their_advantage(kind: type[Algorithm]) -> None:
    """Case 5 (SkyRL#1492): history broke, so the trajectory has two rows; both have trained tokens."""
    pair = [one("oaa ooooa", 1.0), one("oaa ooooa", 0.0)]
    first, second, *_ = scalars(kind(), pair, values=[torch.zeros(2), torch.zeros(1)] * 2)
    assert len(first) == 2 and len(second) == 1
    assert all(x > 0 for x in [*first, *second])


def test_case_1_returns_reach_the_first_turn_across_an_observation() -> None:
    """Case 1 (verl#7278): mask [1,1,0,0,1,1], reward at the end, γ = 1: every action gets 1."""
    plus = ReinforcePlusPlus()
    returns = plus.select([one("oaaooaa", 1.0), one("oa", 0.0)])
    from onward.lm.algorithms.base import monte_carlo_returns

    assert monte_carlo_returns(returns, None, 1.0)[0].tolist() == [1, 1, 1, 1]
    assert monte_carlo_returns(returns, None, 0.5)[0].tolist() == [1 / 8, 1 / 4, 1 / 2, 1]


def test_gae_runs_over_trained_tokens_of_all_rows() -> None:
    """λ = 0.5 by hand: δ = [.25−.5, .75−.25, 1−.75], A₂ = .25, A₁ = .5+.125, A₀ = −.25+.3125."""
    algorithm = Ppo(lam=0.5, whiten="none")
    selection = algorithm.select([one("oaa oooa", 1.0)])
    found = algorithm.estimate(selection, None, [torch.tensor([0.5, 0.25]), torch.tensor([0.75])])
    assert [x.tolist() for x in found.advantages] == [[0.0625, 0.625], [0.25]]
    assert found.returns is not None
    assert [x.tolist() for x in found.returns] == [[0.5625, 0.875], [1.0]]


def test_returns_come_from_advantages_before_whitening() -> None:
    pair = [one("oaa", 1.0), one("oa", 0.0)]
    values = [torch.tensor([0.5, 0.5]), torch.tensor([0.5])]
    plain, white = (Ppo(whiten=w).estimate(Ppo().select(pair), None, values) for w in ("none", "token"))  # type: ignore[arg-type]
    assert plain.returns is not None and white.returns is not None
    assert all(torch.equal(a, b) for a, b in zip(plain.returns, white.returns, strict=True))
    assert not torch.equal(plain.advantages[0], white.advantages[0])


# --- dense rewards (case 7) ---------------------------------------------------------------------


def test_case_7_rewards_per_turn_are_used() -> None:
    """Case 7 (AGL#390): each turn's reward sits at that turn's last token, over all rows."""
    dense = one("oaaoa oooa", 0.75, turn_rewards=[0.5, 0.0, 0.25])
    assert dense.token_rewards().tolist() == [0, 0.5, 0, 0.25]
    found = ReinforcePlusPlus().monte_carlo
    with pytest.raises(NotImplementedError):
        found(ReinforcePlusPlus().select([dense]), None)
    returns = Ppo().monte_carlo(Ppo().select([dense]), None)
    assert [x.tolist() for x in returns] == [[0.75, 0.75, 0.25], [0.25]]


def interleaved(**more: Any) -> Trajectory:
    """An agent (two turns, one row) and its subordinate (one turn between them, a row of its own)."""
    calls = [
        Call([1, 2], [3, 30], [-1.0, -1.0], 1.0, "agent-1"),
        Call([9, 9], [8], [-1.0], 1.0, "subordinate"),
        Call([4], [5], [-1.0], 1.0, "agent-2", "agent-1"),
    ]
    rows = rows_from_calls(calls)
    assert [r.ids for r in rows] == [[1, 2, 3, 30, 4, 5], [9, 9, 8]]
    return Trajectory(rows, 1.0, **more)


def test_rewards_per_turn_go_to_the_turn_they_are_of_where_conversations_take_turns() -> None:
    """The subordinate answers second and is in the last row; rows are in another order than time."""
    dense = interleaved(turn_rewards=[0.125, 0.25, 0.625])
    algorithm = Ppo(gamma=0.5)
    returns = algorithm.monte_carlo(algorithm.select([dense]), None)
    # in time: 0, 0.125 | 0.25 | 0.625; G = 0.625, 0.25 + 0.3125, 0.125 + 0.28125, half of that
    assert [x.tolist() for x in returns] == [[0.203125, 0.40625, 0.625], [0.5625]]


def test_a_reward_at_the_end_belongs_to_the_last_turn_in_time_not_to_the_last_row() -> None:
    algorithm = Ppo(gamma=0.5, lam=1.0, whiten="none")
    selection = algorithm.select([interleaved()])
    assert [x.tolist() for x in algorithm.monte_carlo(selection, None)] == [[0.125, 0.25, 1.0], [0.5]]
    values = [torch.tensor([0.0, 0.0, 0.4]), torch.tensor([0.2])]
    found = algorithm.estimate(selection, None, values)  # δ = 0, 0.1, 0.2 − 0.2, 1 − 0.4 in time
    assert torch.cat(found.advantages).tolist() == pytest.approx([0.125, 0.25, 0.6, 0.3])


@pytest.mark.parametrize("kind", [Rloo, Grpo, Reinforce])
def test_case_7_or_refused_loudly(kind: type[Algorithm]) -> None:
    pair = [one("oaoa", 1.0, turn_rewards=[0.0, 1.0]), one("oaoa", 0.0)]
    with pytest.raises(TrainingError, match="use ppo or reinforce_plus_plus, or give their sum"):
        kind().select(pair)


def test_case_7_rewards_per_turn_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TrainingError, match="2 rewards for 1 sampled turns"):
        Ppo().select([one("oaa", 1.0, turn_rewards=[0.0, 1.0])])
    with pytest.raises(TrainingError, match=r"reward 1 while its rewards per turn sum to 0\.5"):
        Ppo().select([one("oaa", 1.0, turn_rewards=[0.5])])


# --- what takes part ----------------------------------------------------------------------------


def test_case_24_an_unscored_trajectory_is_no_zero() -> None:
    """Cases 24 and 26 (AGL#74): it leaves baseline and loss, and is counted."""
    some = [one("oa", 1.0), one("oa", 0.0), one("oa", None)]
    for kind in EVERY:
        selection = kind().select(some)
        assert len(selection.trajectories) == 2 and selection.excluded == {"unscored": 1}
    assert scalars(Rloo(), some) == [[1.0], [-1.0]]


def test_case_6_a_trajectory_without_tokens_does_not_shift_the_baseline() -> None:
    """Case 6 (ORLHF#1239): rewards [100, 1, 0], the first has no action."""
    some = [one("ooo", 100.0), one("oa", 1.0), one("oa", 0.0)]
    assert scalars(Rloo(), some) == [[1.0], [-1.0]]
    assert Rloo().select(some).excluded == {"no_tokens": 1}


@pytest.mark.parametrize("kind", EVERY)
def test_data_without_captured_tokens_fails_with_the_remedy(kind: type[Algorithm]) -> None:
    bare = [Trajectory([], 1.0, "g", success=True), Trajectory([], 0.0, "g", success=False)]
    with pytest.raises(TrainingError, match="through Onward's gateway, which captures them, or train with"):
        kind().select(bare)


@pytest.mark.parametrize("kind", GROUPED)
def test_a_group_of_one_is_left_out_and_the_remedy_is_told_if_nothing_is_left(kind: type[Algorithm]) -> None:
    kept = kind().select([one("oa", 1.0, "a"), one("oa", 0.0, "a"), one("oa", 1.0, "b")])
    assert [t.group for t in kept.trajectories] == ["a", "a"] and kept.excluded == {"group_of_one": 1}
    with pytest.raises(NothingToLearnError, match=r"2 group_of_one\): use reinforce"):
        kind().select([one("oa", 1.0, "a"), one("oa", 1.0, "b")])
    with pytest.raises(TrainingError, match="carries no group"):
        kind().select([one("oa", 1.0, None), one("oa", 0.0, None)])


@pytest.mark.parametrize("kind", GROUPED)
def test_a_group_whose_others_are_unscored_is_dropped_and_counted(kind: type[Algorithm]) -> None:
    some = [one("oa", 1.0, "a"), one("oa", None, "a"), one("oa", 1.0, "b"), one("oa", 0.0, "b")]
    assert kind().select(some).excluded == {"unscored": 1, "left_alone": 1}


@pytest.mark.parametrize("kind", GROUPED)
def test_case_8_groups_are_kept_or_dropped_on_the_binary_outcome(kind: type[Algorithm]) -> None:
    """Case 8 (verl-recipe#125): all failed, but shaping ranks them: no gradient from shaping alone."""
    failed = [one("oa", 0.30, "a"), one("oa", 0.10, "a")]
    mixed = [one("oa", 0.9, "b"), one("oa", 0.1, "b")]
    selection = kind().select([*failed, *mixed])
    assert [t.group for t in selection.trajectories] == ["b", "b"]
    assert selection.excluded == {"uniform_group": 2}
    assert len(kind(drop_uniform=False).select([*failed, *mixed]).trajectories) == 4  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", GROUPED)
def test_graded_rewards_decide_where_an_attempt_has_no_outcome(kind: type[Algorithm]) -> None:
    """OpenRLHF#1270: a share of tests passed, a rubric from 1 to 16: success at 1 says nothing about them."""
    below = [one("oa", 0.1 + 0.2 * k, "a", success=None) for k in range(4)]
    above = [one("oa", 1.0 + 5 * k, "b", success=None) for k in range(4)]
    alike = [one("oa", 0.7, "c", success=None) for _ in range(4)]
    some_told = [one("oa", 0.9, "d", success=None), one("oa", 0.1, "d", success=False)]
    selection = kind().select([*below, *above, *alike, *some_told])
    assert [t.group for t in selection.trajectories] == [*"aaaabbbbdd"]
    assert selection.excluded == {"uniform_group": 4}
    with pytest.raises(NothingToLearnError, match=r"4 uniform_group.*leave `success` out"):
        kind().select(alike)


@pytest.mark.parametrize("kind", EVERY)
def test_a_trajectory_that_the_network_cannot_read_is_left_out_and_counted(kind: type[Algorithm]) -> None:
    some = [one("o" * 8 + "a", 1.0, "a"), one("oa", 0.0, "a"), one("oa", 1.0, "b"), one("oa", 0.0, "b")]
    excluded = kind().select(some, max_tokens=8).excluded
    assert excluded == {"too_long": 1} | ({"left_alone": 1} if kind in GROUPED else {})
    fits = [one("oa" + "o" * 8, 1.0, "a"), one("oa", 0.0, "a")]  # nothing is trained after the second token
    assert not kind().select(fits, max_tokens=8).excluded
    with pytest.raises(NothingToLearnError, match=r"2 too_long\): give shorter ones"):
        kind().select(some[:1] * 2, max_tokens=8)


@pytest.mark.parametrize("kind", GROUPED)
def test_attempts_of_two_policies_are_never_compared(kind: type[Algorithm]) -> None:
    some = [one("oa", float(k % 2), policy=p) for p in ("old", "new") for k in range(2)]
    some[0].reward = some[1].reward = 0.9
    some[0].success, some[1].success = True, False
    found = scalars(kind(), some)
    assert found[0] == found[1] == [0.0] and found[2][0] == -found[3][0] != 0.0


@pytest.mark.parametrize("kind", [Rloo, Grpo, Reinforce])
def test_case_28_a_late_member_counts_in_the_baseline_and_is_not_trained(kind: type[Algorithm]) -> None:
    """Case 28 (prime-rl#2960): three members, one late: its reward still moves the mean of the others."""
    some = [one("oa", 1.0), one("oa", 0.0), one("oa", 1.0, trains=False)]
    selection = kind().select(some)
    assert len(selection.rows) == 2 and len(selection.observers) == 1
    found = scalars(kind(), some)
    if kind is not Grpo:
        assert found == [[0.5], [-1.0]]
    else:
        assert found[1][0] == pytest.approx(-2 * found[0][0], rel=1e-3)


def test_rows_that_are_too_old_are_excluded_and_counted() -> None:
    some = [one("oa", 1.0, staleness=2), one("oa", 1.0, staleness=1), one("oa", 0.0)]
    assert Reinforce().select(some).excluded == {"stale": 1}


def test_older_rows_need_importance_weights(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    some = scored(policy)
    some[0].staleness = 1
    selection = Reinforce().select(some)
    with pytest.raises(TrainingError, match="give importance_cap"):
        next(learn(Learner(policy, "x", LearnerConfig()), Reinforce(), selection))
    weighted = Learner(policy, "x", LearnerConfig(importance_cap=2.0))
    assert not next(learn(weighted, Reinforce(), selection)).skipped


def test_nothing_left_says_why() -> None:
    with pytest.raises(TrainingError, match=r"None of the 2 trajectories can be used by ppo \(2 unscored\)"):
        Ppo().select([one("oa", None)] * 2)
    with pytest.raises(TrainingError, match="no trajectories"):
        Ppo().select([])


# --- group statistics ---------------------------------------------------------------------------


def test_case_9_equivalent_estimators_agree_on_nearly_equal_scores() -> None:
    """Case 9 (verl#6348): scores that differ by 1e-5 give no full-size gradient in either."""
    close = [one("oa", 0.5 + 1e-5, success=True), one("oa", 0.5, success=False)]
    for kind in (Rloo(), Grpo(), Grpo(normalise_std=False)):
        assert all(abs(x) <= 1.1e-5 for part in scalars(kind, close) for x in part)


def test_rewards_that_differ_by_a_thousandth_stay_apart() -> None:
    """Rewards in bfloat16 (AGL) make .991, .993 and .994 one number; here they keep their order."""
    some = [one("oa", r, success=r > 0.992) for r in (0.991, 0.993, 0.994)]
    found = [part[0] for part in scalars(Rloo(), some)]
    assert found == pytest.approx([-0.0025, 0.0005, 0.002], abs=1e-5)


def test_reinforce_goes_on_from_its_state() -> None:
    a, b = Reinforce(), Reinforce()
    some = [one("oa", 1.0), one("oa", 0.0)]
    a.estimate(a.select(some), None, None)
    b.load_state(a.state())
    assert scalars(a, [one("oa", 1.0)]) == scalars(b, [one("oa", 1.0)])
    assert scalars(Reinforce(negative_weight=0.5), some) == [[1.0], [-0.5]]


# --- options ------------------------------------------------------------------------------------


OPTIONS: list[dict[str, Any]] = [
    {"type": "ppo"},
    *({"type": "ppo", "whiten": w} for w in ("none", "token", "sequence")),
    {"type": "ppo", "gamma": 0.9, "lam": 0.8},
    {"type": "rloo"},
    {"type": "rloo", "drop_uniform": False},
    {"type": "grpo"},
    {"type": "grpo", "normalise_std": False},
    {"type": "grpo", "eps": 1e-4, "drop_uniform": False},
    {"type": "reinforce"},
    {"type": "reinforce", "decay": 0.5, "negative_weight": 0.5},
    *({"type": "reinforce_plus_plus", "weighting": w} for w in ("token", "sequence")),
    {"type": "reinforce_plus_plus", "gamma": 0.9},
]

TERMS: list[dict[str, Any]] = [
    *({"normaliser": n} for n in ("token", "sequence", "constant")),
    *({"kl_coef": 0.1, "kl_estimator": e} for e in ("k1", "k2", "k3")),
    *({"kl_coef": 0.1, "kl_reference": r} for r in ("start", "base")),
    {"kl_coef": 0.1, "kl_in": "reward", "kl_reference": "base"},
    {"kl_coef": 0.1, "kl_reference": "base", "kl_target": 0.01},
    *({"behaviour": b} for b in ("recorded", "recompute")),
    {"importance_cap": 2.0},
    {"importance_cap": 2.0, "importance_floor": 0.5},
    {"importance_cap": 2.0, "importance_level": "sequence"},
    {"dual_clip": None},
    {"clip_epsilon_high": 0.3},
    {"entropy_coef": 0.01},
    {"gradient_checkpointing": True},
    {"critic": CriticConfig(value_clip=None)},
    {"critic": CriticConfig(trains_policy=True, warmup_steps=0)},
]


def scored(policy: Policy, count: int = 6) -> list[Trajectory]:
    rows = with_behaviour(policy, "x", random_rows(count))
    return [Trajectory([r], float(k % 2), group=k // 2, success=bool(k % 2)) for k, r in enumerate(rows)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_case_15_every_option_of_every_algorithm_runs(policy: Policy, options: dict[str, Any]) -> None:
    """Case 15 (verl#6058): a documented value that never ran is a value that does not work."""
    noisy_adapter(policy, "x")
    algorithm = from_options(options)
    config = LearnerConfig(epochs=1, critic=CriticConfig() if algorithm.uses_critic else None)
    before = {k: v.clone() for k, v in policy.adapter("x").params.items()}
    learner = Learner(policy, "x", config)
    (metrics,) = learn(learner, algorithm, algorithm.select(scored(policy)))
    assert not metrics.skipped and metrics.grad_norm > 0
    assert any(not torch.equal(before[k], v) for k, v in learner.tensors.items())


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_case_15_every_option_of_the_learner_runs(policy: Policy, terms: dict[str, Any]) -> None:
    noisy_adapter(policy, "x")
    algorithm = Ppo() if "critic" in terms else Rloo()
    learner = Learner(policy, "x", LearnerConfig(epochs=1, minibatch_rows=4, **terms))
    for metrics in learn(learner, algorithm, algorithm.select(scored(policy))):
        assert not metrics.skipped and all(
            math.isfinite(x) for x in dataclasses.astuple(metrics) if isinstance(x, float)
        )


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"kl_coef": 0.1, "kl_in": "reward"}, "always 0"),
        ({"kl_target": 0.1}, "steers nothing"),
        ({"behaviour": "recompute", "importance_cap": 2.0}, "corrects nothing"),
        ({"importance_floor": 0.5}, "need importance_cap"),
        ({"importance_level": "sequence"}, "need importance_cap"),
        ({"importance_cap": 0.4, "importance_floor": 0.5}, "must be below"),
        ({"kl_in": "both"}, "kl_in"),
        ({"entropy_coef": -0.1}, "entropy_coef"),
    ],
)
def test_combinations_without_effect_are_refused(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LearnerConfig(**terms)


@pytest.mark.parametrize(
    "options",
    [
        {"type": "ppo", "whiten": "group"},
        {"type": "ppo", "lam": 1.5},
        {"type": "reinforce_plus_plus", "weighting": "row"},
        {"type": "reinforce", "decay": 2.0},
        {"type": "grpo", "eps": -1.0},
    ],
    ids=str,
)
def test_an_option_out_of_range_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"The setting {list(options)[1]} = "):
        from_options(options)


def test_unknown_algorithms_and_options_name_what_exists(policy: Policy) -> None:
    with pytest.raises(ConfigError, match="use one of grpo, ppo, reinforce, reinforce_plus_plus, rloo"):
        from_options({"type": "a3c"})
    assert from_options({"type": "reinforce_pp"}).type == "reinforce_plus_plus"
    with pytest.raises(ConfigError, match="no option 'std': it has normalise_std, eps, drop_uniform"):
        from_options({"type": "grpo", "std": True})
    assert set(ALGORITHMS) == {"ppo", "rloo", "grpo", "reinforce", "reinforce_plus_plus"}
    policy.new_adapter("x", 2, 4.0)
    with pytest.raises(ConfigError, match="ppo needs a critic"):
        next(learn(Learner(policy, "x", LearnerConfig()), Ppo(), Ppo().select([one("oa", 1.0)])))


# --- data rules ---------------------------------------------------------------------------------


def first_metrics(policy: Policy, rows: list[TokenRow], **terms: Any) -> Any:
    return next(Learner(policy, "x", LearnerConfig(epochs=1, **terms)).update(rows, [1.0] * len(rows)))


def test_an_unknown_behaviour_policy_is_refused_or_named_explicitly(policy: Policy) -> None:
    """Rule 11 (ART trains such data as on-policy in silence)."""
    noisy_adapter(policy, "x")
    rows = rows_from_calls([Call([5, 6], [7, 8], None, 1.0, "a")])
    assert rows[0].behaviour_known is False
    with pytest.raises(TrainingError, match="train with dpo or sft, or name behaviour = 'recompute'"):
        first_metrics(policy, rows)
    metrics = first_metrics(policy, rows, behaviour="recompute")
    assert metrics.ratio_max == pytest.approx(1.0, abs=1e-4) and metrics.kl < 1e-6


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 50}])
def test_case_20_truncated_support_is_refused(policy: Policy, cut: dict[str, Any]) -> None:
    """Case 20 (TRL#6789): the engine's log-probs are renormalised over the kept set."""
    policy.new_adapter("x", 2, 4.0)
    rows = rows_from_calls([Call([5, 6], [7, 8], [-1.0, -1.0], 1.0, "a", **cut)])
    with pytest.raises(TrainingError, match="sample with top_p 1 and without top_k"):
        first_metrics(policy, rows)


def test_calls_drawn_under_other_settings_do_not_share_a_row() -> None:
    """Rule 12: settings are recorded per row."""
    rows = rows_from_calls(
        [Call([5], [6], [-1.0], 1.0, "a"), Call([7], [8], [-1.0], 1.0, "b", "a", top_p=0.9)]
    )
    assert [(r.sampled_count, r.top_p) for r in rows] == [(1, 1.0), (1, 0.9)]


# --- KL in the reward ---------------------------------------------------------------------------


def test_kl_in_the_reward_costs_what_each_token_strayed(policy: Policy) -> None:
    """k1 = log π − log π_ref per sampled token, detached; tool tokens cost nothing."""
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(2))
    config = LearnerConfig(kl_coef=0.5, kl_in="reward", kl_reference="base", epochs=1)
    learner = Learner(policy, "x", config)
    learner.open(rows)
    penalty = learner.reward_penalty()
    assert penalty is not None
    for r, cost, mine, base in zip(
        rows, penalty, policy.logprobs(rows, "x"), policy.logprobs(rows), strict=True
    ):
        mask = torch.tensor(r.sampled)
        assert torch.allclose(cost, 0.5 * (mine - base)[mask], atol=1e-5) and not cost.requires_grad
    algorithm = ReinforcePlusPlus()
    selection = algorithm.select([Trajectory([r], 1.0) for r in rows])
    from onward.lm.algorithms.base import padded_rewards

    token_rewards, mask = padded_rewards(selection, penalty)
    assert float(token_rewards[mask].sum()) == pytest.approx(2.0 - sum(float(c.sum()) for c in penalty))


def test_the_kl_coefficient_steers_to_its_target() -> None:
    from onward.lm.objective import KlCoefficient

    coefficient = KlCoefficient(1.0, target=0.1)
    coefficient.observe(0.2)  # twice the target: the error is clipped to 0.2
    assert coefficient.value == pytest.approx(1.02)
    coefficient.observe(0.09)  # a tenth below
    assert coefficient.value == pytest.approx(1.02 * 0.99)
    coefficient.observe(math.nan)
    assert coefficient.value == pytest.approx(1.02 * 0.99)
    fixed = KlCoefficient(1.0)
    fixed.observe(9.0)
    assert fixed.value == 1.0


# --- resume with a critic -----------------------------------------------------------------------


@pytest.mark.parametrize("stop_after", [1, 3])
@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_case_29_a_resumed_ppo_update_equals_an_uninterrupted_one(
    small: Path, tmp_path: Path, stop_after: int, kl_in: str
) -> None:
    """Case 29 (open-r1#450): critic, its old values and the KL coefficient continue as well."""
    config = LearnerConfig(
        learning_rate=1e-2, minibatch_rows=4, kl_coef=0.1, kl_in=kl_in, kl_reference="base",  # type: ignore[arg-type]
        kl_target=0.05, critic=CriticConfig(trains_policy=True),
    )  # fmt: skip
    algorithm = Ppo()

    def fresh() -> Learner:
        policy = Policy.load(small)
        noisy_adapter(policy, "x", [1, 2])
        return Learner(policy, "x", config)

    whole = fresh()
    selection = algorithm.select(scored(whole.policy, 8))
    expected = [*learn(whole, algorithm, selection), *learn(whole, algorithm, selection)]
    part = fresh()
    steps = learn(part, algorithm, selection)
    got = [next(steps) for _ in range(stop_after)]
    part.save(tmp_path)
    again = fresh()
    again.restore(tmp_path)
    got += [*learn(again, algorithm, selection), *learn(again, algorithm, selection)]
    assert got == expected
    tensors: list[tuple[Tensor, Tensor]] = [(v, again.tensors[k]) for k, v in whole.tensors.items()]
    assert whole.critic is not None and again.critic is not None
    tensors += list(zip(whole.critic.parameters, again.critic.parameters, strict=True))
    assert all(torch.equal(a, b) for a, b in tensors)
