"""Mutants of the learner's mathematics: each must make a named test fail.

A mutant is a change of the source of one function, put in place by its code object, so that every caller
sees it. For each one the named test is run as it is, which passes, and again under the mutant, which must
fail by an assertion: a test that a wrong sign survives protects nothing.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from onward.lm import advantages, head, losses, packing, pairs, tokens, trajectories
from onward.lm.algorithms import Grpo, Ppo, Reinforce, Rloo, base
from onward.lm.learner import Learner
from onward.lm.objective import PolicyObjective
from onward.lm.policy import Policy
from onward.lm.preference import PreferenceLearner
from onward.lm.stepper import Stepper

from . import (
    test_advantages,
    test_algorithms,
    test_learner,
    test_losses,
    test_policy,
    test_precision,
    test_preference,
    test_sharing,
    test_tokens,
    test_value,
)

pytestmark = pytest.mark.slow


@dataclass
class Mutant:
    """``changes`` are (what the source says, what the mutant says); ``test`` notices."""

    name: str
    function: Any
    changes: list[tuple[str, str]]
    test: Callable[..., None]
    given: dict[str, Any] = field(default_factory=dict)


# fmt: off
MUTANTS = [
    # rewards and advantages
    Mutant("returns: the running return is multiplied by the mask", advantages.returns,
           [("rewards[:, t] + gamma * running, running)", "rewards[:, t] + gamma * running, 0.0)")],
           test_advantages.test_case_1_returns_reach_actions_before_an_observation),
    Mutant("returns: one decay per position", advantages.returns,
           [("rewards[:, t] + gamma * running, running)",
             "rewards[:, t] + gamma * running, gamma * running)")],
           test_advantages.test_case_3_tokens_of_a_tool_neither_leak_kl_nor_decay),
    Mutant("returns: KL of tool tokens leaks", advantages.returns,
           [("rewards = torch.where(mask, rewards, 0.0)\n", "pass\n"),
            ("rewards[:, t] + gamma * running, running)",
             "rewards[:, t] + gamma * running, rewards[:, t] + running)")],
           test_advantages.test_case_3_tokens_of_a_tool_neither_leak_kl_nor_decay),
    Mutant("reward on the trailing observation", advantages.place_reward,
           [("mask.shape[-1] - 1 - mask.flip(-1).int().argmax(-1)",
             "torch.full((len(mask),), mask.shape[-1] - 1)")],
           test_advantages.test_case_2_the_reward_sits_on_the_last_action_not_on_the_trailing_observation),
    Mutant("GAE: the next value is not carried over observations", advantages.gae,
           [("torch.where(mask[:, t], values[:, t], next_value)", "values[:, t]")],
           test_advantages.test_observation_tokens_anywhere_leave_actions_unchanged),
    Mutant("GAE: decays through observations", advantages.gae,
           [("delta + gamma * lam * running, running)",
             "delta + gamma * lam * running, gamma * lam * running)")],
           test_advantages.test_observation_tokens_anywhere_leave_actions_unchanged),
    Mutant("GAE: a padded value is bootstrapped", advantages.gae,
           [("torch.where(mask, values, 0.0)\n", "values\n"),
            ("torch.where(mask[:, t], values[:, t], next_value)", "values[:, t]")],
           test_advantages.test_case_4_a_value_in_the_padding_is_never_bootstrapped),
    Mutant("GAE: λ forgotten", advantages.gae, [("delta + gamma * lam * running", "delta + gamma * running")],
           test_advantages.test_gae_equals_the_sum_over_transitions),
    Mutant("PPO: whitening before returns", Ppo.estimate,
           [("unpadded(selection, returns)", "unpadded(selection, found + expected)")],
           test_algorithms.test_returns_come_from_advantages_before_whitening),
    Mutant("whitening counts padding", advantages.whiten,
           [("weight = mask.float()", "weight = torch.ones_like(advantages)")],
           test_advantages.test_whitening_counts_trainable_tokens_only),
    Mutant("RLOO: baseline includes the sample", advantages.rloo,
           [("(total - rewards[i]) / (len(members) - 1)", "total / len(members)")],
           test_advantages.test_group_advantages_by_hand),
    Mutant("REINFORCE: baseline includes the sample", advantages.RunningBaseline.advantages,
           [("(sums[kind] - reward) / other_weight", "sums[kind] / weights[kind]")],
           test_advantages.test_the_baseline_never_contains_the_sample_itself),
    Mutant("GRPO: σ with n", advantages.grpo, [("/ (len(members) - 1)) ** 0.5", "/ len(members)) ** 0.5")],
           test_advantages.test_group_advantages_by_hand),
    Mutant("GRPO: noise divided by its σ", advantages.grpo,
           [("if normalise_std and std < MIN_STD:", "if False:")],
           test_advantages.test_case_8_and_9_a_group_that_differs_only_by_noise_gets_no_full_size_gradient),
    Mutant("only the last row of a trajectory gets its advantage", base.spread,
           [("float(value))", "float(value) * (count == one.counts[-1]))")],
           test_algorithms.test_case_5_earlier_rows_of_a_trajectory_get_their_advantage, {"kind": Rloo}),
    Mutant("RLOO: late members leave the baseline", base.over_groups,
           [("[*selection.trajectories, *selection.observers]", "list(selection.trajectories)"),
            ("for one in selection.observers]", "for one in []]")],
           test_algorithms.test_case_28_a_late_member_counts_in_the_baseline_and_is_not_trained,
           {"kind": Rloo}),
    Mutant("a missing score is zero", trajectories.select, [("if one.reward is None:", "if False:")],
           test_algorithms.test_case_24_an_unscored_trajectory_is_no_zero),
    Mutant("a group of one passes", trajectories._comparable, [("if len(group) < 2:", "if not group:")],
           test_algorithms.test_a_group_of_one_is_left_out_and_the_remedy_is_told_if_nothing_is_left,
           {"kind": Grpo}),
    Mutant("graded rewards of one group are all dropped", trajectories._ended_alike,
           [("if None not in outcomes:", "if True:")],
           test_algorithms.test_graded_rewards_decide_where_an_attempt_has_no_outcome, {"kind": Grpo}),
    Mutant("groups that all failed are kept", trajectories._ended_alike,
           [("return len(outcomes) == 1", "return False")],
           test_algorithms.test_case_8_groups_are_kept_or_dropped_on_the_binary_outcome, {"kind": Grpo}),
    Mutant("rewards per turn are ignored", trajectories.Trajectory.token_rewards,
           [("if self.turn_rewards is None:", "if True:")],
           test_algorithms.test_case_7_rewards_per_turn_are_used),
    Mutant("scalar methods take rewards per turn in silence", trajectories._check_turns,
           [("if not dense:", "if False:")],
           test_algorithms.test_case_7_or_refused_loudly, {"kind": Reinforce}),
    # the loss
    Mutant("clip: max in place of min", losses.clipped_loss,
           [("-torch.minimum(ratio", "-torch.maximum(ratio")],
           test_losses.test_the_clipped_loss_by_hand),
    Mutant("dual clip missing", losses.clipped_loss, [("if dual_clip is not None:", "if False:")],
           test_losses.test_the_clipped_loss_by_hand),
    Mutant("denominator: rows in place of tokens", losses.token_weights, [("[1 / total if", "[1 / rows if")],
           test_losses.test_normalisers_by_hand),
    Mutant("denominator of the micro-batch", Learner._backward,
           [("[weight[i] for i in part]", "[weight[i] * len(weight) / len(part) for i in part]")],
           test_learner.test_gradients_do_not_depend_on_micro_batches_or_padding),
    Mutant("0 · NaN under a false mask", losses.masked, [("torch.where(mask.bool(), x, 0.0)", "x * mask")],
           test_losses.test_case_14_nan_under_a_false_mask_does_not_spread),
    Mutant("KL: k3's own gradient", losses.kl_loss, [("carrier + (value - carrier).detach()", "value")],
           test_losses.test_the_kl_penalty_has_the_gradient_of_the_reverse_kl, {"estimator": "k3"}),
    Mutant("KL: k1's own gradient", losses.kl_loss, [("carrier + (value - carrier).detach()", "value")],
           test_losses.test_the_kl_penalty_has_the_gradient_of_the_reverse_kl, {"estimator": "k1"}),
    Mutant("KL: the ratio is not detached", PolicyObjective.slope, [(".exp().detach()", ".exp()")],
           test_learner.test_the_kl_term_is_corrected_off_policy_by_a_weight_without_gradient),
    Mutant("entropy: sign", Learner._backward,
           [("-config.entropy_coef * scale", "config.entropy_coef * scale")],
           test_learner.test_an_entropy_bonus_alone_raises_the_entropy),
    Mutant("importance: not truncated", losses.importance_weights, [("weights.clamp_max(cap)", "weights")],
           test_losses.test_importance_weights_are_truncated_not_floored),
    Mutant("importance: counted in the ratio as well", Learner._ratios,
           [("return behaviour, start, importance", "return behaviour, behaviour, importance")],
           test_learner.test_decoupled_weights_multiply_the_clipped_loss),
    Mutant("importance: nothing is masked", losses.importance_weights, [("weights >= floor", "weights >= 0")],
           test_value.test_masked_and_sequence_weights_by_hand),
    # tokens
    Mutant("shift by one", packing.Packed.__init__, [("begins[r] + t - 1", "begins[r] + t")],
           test_policy.test_the_loop_equals_transformers),
    Mutant("temperature ignored", head._softmax, [("if not bool((temperature == 1).all()):", "if False:")],
           test_losses.test_case_21_log_probs_are_of_the_tempered_distribution_with_the_right_shift_and_gradient),
    Mutant("the sampled end-of-turn token is not trained", tokens._Growing.append,
           [("call.logprobs, call.allowed)", "call.logprobs, call.allowed); row.sampled[-1] = False")],
           test_tokens.test_the_sampled_end_of_turn_token_is_trained_with_its_own_log_prob),
    Mutant("prefixes compared by length", tokens._place,
           [("and call.prompt_ids[:length] == candidate.row.ids", "")],
           test_tokens.test_two_tokenisations_of_the_same_text_are_never_merged),
    Mutant("a group reads its prompt one token off", packing.Packed.attend,
           [("before.append([*common, (k, v)])", "before.append([*common, (k, v.roll(1, 2))])")],
           test_sharing.test_gradients_of_groups_equal_those_of_transformers_and_peft, {"limit": 2048}),
    # the critic
    Mutant("value at t in place of t − 1", Learner.values, [("critic(hidden))", "critic(hidden).roll(-1))")],
           test_value.test_the_value_of_a_token_is_read_one_position_before_it),
    Mutant("value clip: min in place of max", losses.value_loss,
           [("torch.maximum(loss", "torch.minimum(loss")],
           test_value.test_the_value_loss_by_hand),
    # preferences
    Mutant("DPO: observations count", packing.Wanted.__init__,
           [("for t in row.trained]", "for t in range(row.trained[0], len(row))]")],
           test_preference.test_gradients_equal_those_of_transformers_and_peft,
           {"normalised": False, "smoothing": 0.0}),
    Mutant("DPO: sides swapped", PreferenceLearner._backward,
           [("rewards[:, 0] - rewards[:, 1]", "rewards[:, 1] - rewards[:, 0]")],
           test_preference.test_the_reference_may_be_where_training_started),
    Mutant("DPO: the reference moves", PreferenceLearner._reference, [("self._put(self._start)", "pass")],
           test_preference.test_the_reference_may_be_where_training_started),
    Mutant("DPO: truncated pairs are kept", pairs._turn_fits, [("return end < max_tokens", "return True")],
           test_preference.test_pairs_whose_difference_is_cut_off_are_skipped_and_counted),
    # numbers that are none
    Mutant("a step that is not finite is taken", Stepper.step, [("if self.finite:", "if True:")],
           test_precision.test_no_state_is_written_after_a_step_that_was_not_finite, {"bad": float("nan")}),
]
# fmt: on


def mutated(function: Any, changes: list[tuple[str, str]]) -> CodeType:
    """The code of ``function`` with each text replaced, which must stand there exactly once."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} is not in {function.__qualname__} once: renew the mutant"
        source = source.replace(old, new)
    space: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source, dict(function.__globals__), space)
    return space[function.__name__].__code__


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 40 and len({m.name for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_is_noticed(
    mutant: Mutant, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: str) -> None:
        (tmp_path / folder).mkdir()
        wanted = inspect.signature(mutant.test).parameters
        fixtures = {"small": small, "policy": None, "tmp_path": tmp_path / folder}
        given = {name: fixtures[name] for name in wanted if name in fixtures}
        if "policy" in given:
            given["policy"] = Policy.load(small)
        mutant.test(**given, **mutant.given)

    run("as_it_is")
    monkeypatch.setattr(mutant.function, "__code__", mutated(mutant.function, mutant.changes))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run("mutated")
