"""Updates under masks: what does not change their steps, and what their rows count."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from onward.errors import OnwardError, TrainingError
from onward.lm.algorithms import Ppo, Rloo
from onward.lm.any_model.policy import AnyPolicy
from onward.lm.learner import CriticConfig, Learner, LearnerConfig
from onward.lm.masks import AllowedTokens
from onward.lm.pairs import Pair, usable
from onward.lm.policy import Policy
from onward.lm.sampler import Sampler
from onward.lm.sft import SftConfig, SupervisedLearner
from onward.lm.tokens import Call, TokenRow, rows_from_calls
from onward.lm.trajectories import Selection, Trajectory

from .conftest import noisy_adapter
from .masked_rows import build_criteria, compiled, drawn, gradient_of, rows_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_criteria(tmp_path_factory.mktemp("m") / "m")


@pytest.fixture()
def policy(folder: Path) -> Policy:
    return Policy.load(folder)


# --- invariants of an update -------------------------------------------------------------------------

ONE_STEP = LearnerConfig(learning_rate=1e-3, epochs=1, minibatch_rows=64, max_grad_norm=1e9, kl_coef=0.1,
                         entropy_coef=0.01)  # fmt: skip


def first_gradient(
    policy: Policy | AnyPolicy,
    rows: list[TokenRow],
    advantages: list[float],
    config: LearnerConfig = ONE_STEP,
) -> tuple[dict[str, Tensor], Any]:
    learner = Learner(policy, "x", config)
    return gradient_of(learner, learner.update(rows, advantages))


def same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 2e-5) -> bool:
    scales = {name: float(one.abs().max()) for name, one in b.items()}
    assert any(scales.values())
    return all(float((a[n] - b[n]).abs().max()) <= tolerance * scales[n] + 1e-8 for n in b)


def test_before_the_first_step_ratios_are_one_and_divergences_zero(policy: Policy) -> None:
    chat, grammar = compiled(policy)
    noisy_adapter(policy, "x", [0, 1])
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 6))  # sampled without the adapter
    rows = [replace(row, logprobs=values.tolist())
            for row, values in zip(rows, policy.logprobs(rows, "x"), strict=True)]  # fmt: skip
    _, metrics = first_gradient(policy, rows, [1.0, -1.0, 0.5, 0.0, 2.0, -0.5])
    assert metrics.ratio_max == pytest.approx(1.0, abs=1e-4) and metrics.ratio_mean == pytest.approx(
        1.0, abs=1e-4
    )
    assert metrics.kl < 1e-8 and metrics.reference_kl < 1e-8 and metrics.logprob_difference < 1e-3


def test_masked_gradients_do_not_depend_on_row_order_padding_or_micro_batches(policy: Policy) -> None:
    chat, grammar = compiled(policy)
    noisy_adapter(policy, "x", [0, 1])
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 7, 1.3), 1.3)
    free = TokenRow([5, 6, 7, 8, 9], [False, True, False, True, True], [0.0, -2.0, 0.0, -3.0, -1.0])
    rows.append(free)  # an unconstrained row among them
    advantages = [1.0, -1.0, 0.5, 2.0, -0.3, 0.7, 1.1, -0.9]
    whole, _ = first_gradient(policy, rows, advantages)
    for limit in (1, 60):
        assert same(
            first_gradient(policy, rows, advantages, replace(ONE_STEP, micro_batch_tokens=limit))[0], whole
        )
    assert same(first_gradient(policy, rows[::-1], advantages[::-1])[0], whole)
    longer = [replace(row, ids=[*row.ids, 7, 8], sampled=[*row.sampled, False, False],
                      logprobs=[*row.logprobs, 0.0, 0.0]) for row in rows]  # fmt: skip
    assert same(first_gradient(policy, longer, advantages)[0], whole)


def test_both_paths_have_the_same_gradient_under_masks(folder: Path, tmp_path: Path) -> None:
    policy, other = Policy.load(folder), AnyPolicy.load(folder)
    chat, grammar = compiled(policy)
    noisy_adapter(policy, "x", [0, 1])
    policy.save_adapter("x", tmp_path)
    other.add_adapter("x", tmp_path)
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 5))
    advantages = [1.0, -1.0, 0.5, 2.0, -0.3]
    assert same(first_gradient(other, rows, advantages)[0], first_gradient(policy, rows, advantages)[0], 2e-4)


def test_equal_rewards_teach_nothing(policy: Policy) -> None:
    chat, grammar = compiled(policy)
    noisy_adapter(policy, "x", [0, 1])
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 4))
    selection = Selection([Trajectory([row], 0.75, group="a") for row in rows])
    estimate = Rloo().estimate(selection, None, None)
    before = {name: one.clone() for name, one in policy.adapter("x").params.items()}
    learner = Learner(policy, "x", LearnerConfig(learning_rate=1e-2, epochs=1))
    (metrics,) = learner.update(selection.rows, estimate.advantages)
    assert metrics.grad_norm == 0.0
    assert all(torch.equal(one, before[name]) for name, one in policy.adapter("x").params.items())


def test_an_update_under_masks_that_is_resumed_takes_the_steps_of_one_without_a_stop(
    folder: Path, tmp_path: Path
) -> None:
    config = LearnerConfig(learning_rate=1e-2, epochs=2, minibatch_rows=2, kl_coef=0.1)
    policy = Policy.load(folder)
    chat, grammar = compiled(policy)
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 6))
    advantages = [1.0, -1.0, 0.5, 2.0, -0.3, 0.1]
    noisy_adapter(policy, "x", [0, 1])
    policy.save_adapter("x", tmp_path / "start")

    def learner() -> Learner:
        one = Policy.load(folder)
        one.add_adapter("x", tmp_path / "start")
        return Learner(one, "x", config)

    whole = learner()
    for _ in whole.update(rows, advantages):
        pass
    first = learner()
    steps = first.update(rows, advantages)
    next(steps)
    next(steps)
    first.save(tmp_path / "state")
    again = learner()
    again.restore(tmp_path / "state")
    with pytest.raises(TrainingError):  # other masks are other data
        next(again.update([replace(row, allowed={}) for row in rows], advantages))
    again = learner()
    again.restore(tmp_path / "state")
    for _ in again.update([copy.deepcopy(row) for row in rows], advantages):
        pass
    for name, one in whole.tensors.items():
        assert torch.equal(one, again.tensors[name])


# --- rows --------------------------------------------------------------------------------------------


def test_a_forced_token_is_sampled_but_trained_nowhere() -> None:
    forced, choice = AllowedTokens.of_ids([6], 9), AllowedTokens.of_ids([7, 8], 9)
    row = TokenRow([], [], [])
    row.extend([1, 2], [6, 7, 6], [0.0, -0.7, 0.0], [forced, choice, forced])
    row.extend([3], [5], [-1.5])
    assert row.sampled_count == 4 and row.trained == [3, 6]
    assert row.stretches() == [(0, 1), (0, 1)]  # a forced token does not cut its turn in two
    assert row.cut(4).trained == [3] and set(row.cut(4).allowed) == {2, 3}
    with pytest.raises(OnwardError, match="3 tokens has 1 masks"):
        row.extend([], [1, 2, 3], allowed=[forced])


def test_calls_keep_their_masks_in_rows_and_a_turn_without_a_choice_keeps_its_place() -> None:
    forced, choice = AllowedTokens.of_ids([6], 9), AllowedTokens.of_ids([7, 8], 9)
    calls = [
        Call([1], [7, 6], [-0.7, 0.0], 1.0, "a", allowed=[choice, forced]),
        Call([2], [6, 6], [0.0, 0.0], 1.0, "b", "a", allowed=[forced, forced]),
        Call([3], [5], [-1.5], 1.0, "c", "b"),
    ]
    (row,) = rows_from_calls(calls)
    assert row.allowed == {1: choice, 2: forced, 4: forced, 5: forced} and row.trained == [1, 7]
    one = Trajectory([row], 1.0, turn_rewards=[0.25, 0.5, 0.25])
    assert one.turn_ends() == [0, 0, 1]  # the second turn ends where the choice before it was made
    assert one.token_rewards().tolist() == [0.75, 0.25]
    with pytest.raises(OnwardError, match="1 tokens but 2 masks"):
        rows_from_calls([replace(calls[2], continues=None, allowed=[forced, forced])])


def test_rows_without_masks_are_packed_and_digested_as_before(policy: Policy) -> None:
    row = TokenRow([5, 6, 7, 8, 9], [True, True, False, False, True], [0.0] * 5)
    wanted, _ = policy.states([row], None)
    assert wanted.permitted is None and wanted.places == [(0, 1), (0, 4)] and row.masks_digest() == b""
    masked = replace(row, allowed={1: AllowedTokens.of_ids([6, 7], policy.shape.vocab)})
    assert policy.states([masked], None)[0].permitted is not None and masked.masks_digest() != b""


# --- rows that cannot be what they say ---------------------------------------------------------------


@pytest.mark.parametrize("learn", ["policy", "imitation"])
def test_a_forced_token_other_than_the_one_of_its_mask_is_refused(policy: Policy, learn: str) -> None:
    """It is trained nowhere, but its row has the masks of another answer."""
    vocab = policy.shape.vocab
    forced, choice = AllowedTokens.of_ids([6], vocab), AllowedTokens.of_ids([7, 8], vocab)
    row = TokenRow([], [], [])
    row.extend([1, 2], [9, 7], [0.0, -0.7], [forced, choice])
    policy.new_adapter("x")
    with pytest.raises(TrainingError, match="Token 9 is none of the 1 tokens"):
        if learn == "policy":
            next(Learner(policy, "x", ONE_STEP).update([row], [1.0]))
        else:
            next(SupervisedLearner(policy, "x", SftConfig(1e-3, 1)).update([row]))


def test_masks_of_another_vocabulary_are_refused_beside_good_ones(policy: Policy) -> None:
    vocab = policy.shape.vocab
    rows = [TokenRow([], [], []) for _ in range(2)]
    for row, size in zip(rows, (vocab, vocab - 1), strict=True):
        row.extend([1, 2], [7], [-0.7], [AllowedTokens.of_ids([7, 8], size)])
    with pytest.raises(TrainingError, match=f"masks of {vocab - 1} tokens and the network has {vocab}"):
        policy.logprobs(rows)


def test_a_row_without_a_choice_leaves_its_turn_reward_with_the_turn_before_it() -> None:
    """Rows of a main conversation and of a helper, whose answer was forced: three turns, two rewards."""
    forced, choice = AllowedTokens.of_ids([6], 9), AllowedTokens.of_ids([7, 8], 9)
    calls = [
        Call([1, 1], [7], [-0.7], 1.0, "a", allowed=[choice]),
        Call([3, 3], [6], [0.0], 1.0, "helper", allowed=[forced]),
        Call([2], [8], [-0.7], 1.0, "b", "a", allowed=[choice]),
    ]
    rows = rows_from_calls(calls)
    assert [len(row.trained) for row in rows] == [2, 0]
    tried = [Trajectory(rows, 1.0, turn_rewards=[0.25, 0.5, 0.25], group=0)] * 2
    selection = Ppo().select(tried)
    assert [len(one.rows) for one in selection.trajectories] == [1, 1]
    assert selection.trajectories[0].token_rewards().tolist() == [0.75, 0.25]
    first = [replace(calls[1], generation_id="first"), calls[0], calls[2]]
    tried = [Trajectory(rows_from_calls(first), 1.0, turn_rewards=[0.5, 0.25, 0.25], group=0)] * 2
    one, _ = Ppo().select(tried).trajectories
    assert one.token_rewards().tolist() == [0.75, 0.25]  # nothing before it: the first choice has it


def test_sides_of_a_pair_have_one_prompt_whatever_was_forced_after_it() -> None:
    """A correction by hand, which is free, of an answer whose first token a grammar forced."""
    forced, choice = AllowedTokens.of_ids([6], 9), AllowedTokens.of_ids([7, 8], 9)
    free, masked = TokenRow([], [], []), TokenRow([], [], [])
    free.extend([1, 2], [6, 7])
    masked.extend([1, 2], [6, 8], allowed=[forced, choice])
    found = usable([Pair([free], [masked]), Pair([masked], [free])], 10)
    assert len(found.pairs) == 2 and not found.excluded


def test_attempts_at_one_prompt_stay_in_one_fold_of_the_critic_whatever_was_forced(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt ends where sampling begins, not at the first choice: what followed it may differ."""
    vocab = policy.shape.vocab
    forced, choice = AllowedTokens.of_ids([6], vocab), AllowedTokens.of_ids([7, 8], vocab)
    rows = []
    for seen in (11, 12):  # what the environment replied to a forced call
        row = TokenRow([], [], [])
        row.extend([1, 2], [6], [0.0], [forced])
        row.extend([seen], [7], [-0.7], [choice])
        rows.append(row)
    policy.new_adapter("x")
    learner = Learner(policy, "x", replace(ONE_STEP, critic=CriticConfig()))
    learner.open(rows)
    assert learner.critic is not None
    units: list[Any] = []

    def judge(rows: Any, states: Any, returns: Any, named: Any, *_: Any) -> Any:
        units.extend(named)
        return [torch.zeros(len(one)) for one in returns]

    monkeypatch.setattr(learner.critic, "judge", judge)
    learner.warm_critic([torch.ones(1), torch.zeros(1)])
    assert units[0][-1] == units[1][-1] == ("prompt", 1, 2)
