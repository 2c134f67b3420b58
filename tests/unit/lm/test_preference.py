"""Pairs and DPO: what is compared, exact gradients, a reference that stands still."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onward.errors import ConfigError, TrainingError
from onward.lm.pairs import Pair, make_pairs, usable
from onward.lm.policy import Policy
from onward.lm.preference import DpoConfig, PreferenceLearner, dpo_loss
from onward.lm.tokens import TokenRow
from onward.lm.trajectories import Trajectory

from .conftest import noisy_adapter, random_rows

ONE_STEP = DpoConfig(reference="base", max_grad_norm=1e9, minibatch_pairs=64)


def row(ids: list[int], mask: str) -> TokenRow:
    return TokenRow(ids, [c == "a" for c in mask], [0.0] * len(ids), behaviour_known=False)


def some_pairs(count: int = 4, seed: int = 0) -> list[Pair]:
    rows = random_rows(2 * count, seed)
    return [Pair([rows[k]], [rows[k + count]]) for k in range(count)]


def first_step(policy: Policy, pairs: list[Pair], config: DpoConfig) -> tuple[dict[str, Tensor], Any]:
    learner = PreferenceLearner(policy, "x", config)
    found: dict[str, Tensor] = {}

    def keep() -> None:
        found.update({k: p.grad.clone() for k, p in learner.tensors.items() if p.grad is not None})

    learner.stepper.optimizer.step = keep  # type: ignore[method-assign, assignment]
    return found, next(learner.update(pairs))


# --- pairs --------------------------------------------------------------------------------------


def attempt(reward: float | None, group: Any, tail: int = 9) -> Trajectory:
    return Trajectory([row([3, 4, tail], "ooa")], reward, group)


def test_pairs_are_of_the_same_task_and_far_enough_apart() -> None:
    some = [
        attempt(r, g) for r, g in ((1.0, "a"), (0.0, "a"), (0.9, "a"), (0.6, "b"), (0.5, "b"), (None, "b"))
    ]
    found = make_pairs(some, margin=0.2)
    assert [(p.task, round(p.margin, 3)) for p in found] == [("a", 1.0), ("a", 0.9)]
    assert [p.margin for p in make_pairs(some, margin=0.2, min_reward=0.95)] == [1.0]
    assert [p.margin for p in make_pairs(some, margin=0.2, per_task=1)] == [1.0]
    with pytest.raises(TrainingError, match="lower the margin, or use sft"):
        make_pairs(some, margin=2.0)
    with pytest.raises(TrainingError, match="record several attempts per task"):
        make_pairs([attempt(1.0, None), attempt(0.0, None)])


def test_pairs_whose_difference_is_cut_off_are_skipped_and_counted() -> None:
    """Rule 14: with room for six tokens the turn that differs is gone in the second pair."""
    early = Pair([row([1, 2, 7, 3, 3, 3, 5], "ooaoooa")], [row([1, 2, 8, 3, 3, 3, 5], "ooaoooa")])
    late = Pair([row([1, 2, 7, 3, 3, 3, 5], "ooaoooa")], [row([1, 2, 7, 3, 3, 3, 6], "ooaoooa")])
    half = Pair([row([1, 2, 7, 7, 7, 7, 7], "ooaaaaa")], [row([1, 2, 8, 5], "ooaa")])
    same = Pair([row([1, 2, 7], "ooa")], [row([1, 2, 7], "ooa")])
    other = Pair([row([1, 9, 7], "ooa")], [row([1, 2, 8], "ooa")])
    empty = Pair([row([1, 2, 7], "ooa")], [row([1, 2, 8], "ooo")])
    kept = usable([early, late, half, same, other, empty], 6)
    assert kept.excluded == {"truncated": 2, "same_answer": 1, "other_prompt": 1, "no_tokens": 1}
    assert [len(p.chosen[0]) for p in kept.pairs] == [6]
    with pytest.raises(TrainingError, match=r"2 truncated\): raise max_tokens"):
        usable([late, half], 6)


# --- the loss -----------------------------------------------------------------------------------


def test_the_loss_by_hand() -> None:
    margin = torch.tensor([0.0, 2.0])
    assert dpo_loss(margin).tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(-2))])
    smoothed = 0.9 * math.log(1 + math.exp(-2)) + 0.1 * math.log(1 + math.exp(2))
    assert float(dpo_loss(margin, 0.1)[1]) == pytest.approx(smoothed)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_equal_those_of_transformers_and_peft(
    policy: Policy, small: Path, tmp_path: Path, normalised: bool, smoothing: float
) -> None:
    """Acceptance (f) for DPO: an independent slow reference, pair by pair; observations do not count."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    noisy_adapter(policy, "x", scale=0.1)
    policy.save_adapter("x", tmp_path)
    pairs = some_pairs()
    config = dataclasses.replace(ONE_STEP, length_normalised=normalised, label_smoothing=smoothing)
    ours, metrics = first_step(policy, pairs, config)

    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(small), tmp_path, is_trainable=True
    )

    def side(r: TokenRow) -> Tensor:
        at = torch.tensor([t - 1 for t in r.trained])
        wanted = torch.tensor([r.ids[t] for t in r.trained])
        logp = model(torch.tensor([r.ids])).logits[0].log_softmax(-1)[at, wanted]
        with torch.no_grad(), model.disable_adapter():
            base = model(torch.tensor([r.ids])).logits[0].log_softmax(-1)[at, wanted]
        return (logp - base).mean() if normalised else (logp - base).sum()

    total = torch.tensor(0.0)
    for pair in pairs:
        margin = 0.1 * (side(pair.chosen[0]) - side(pair.rejected[0]))
        right, wrong = F.logsigmoid(margin), F.logsigmoid(-margin)
        total = total - ((1 - smoothing) * right + smoothing * wrong) / len(pairs)
    total.backward()
    assert metrics.loss == pytest.approx(float(total), abs=1e-5)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            mine = ours[name.replace(".default", "")]
            assert float((mine - parameter.grad).abs().max()) < 1e-5, name


def test_the_first_step_starts_at_log_two_with_the_adapter_off_as_reference(policy: Policy) -> None:
    policy.new_adapter("x", 4, 8.0)
    _, metrics = first_step(policy, some_pairs(), ONE_STEP)
    assert metrics.loss == pytest.approx(math.log(2), abs=1e-6) and metrics.margin == pytest.approx(
        0, abs=1e-6
    )


def test_the_reference_may_be_where_training_started(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    pairs = some_pairs()
    learner = PreferenceLearner(policy, "x", DpoConfig(reference="start", learning_rate=1e-2, epochs=3))
    assert learner.margins(pairs) == pytest.approx([0.0] * 4, abs=1e-6)
    list(learner.update(pairs))
    moved = learner.margins(pairs)
    assert min(moved) > 0, "it must still be measured from the start after training"
    base = PreferenceLearner(policy, "x", DpoConfig(reference="base"))
    assert base.margins(pairs) != pytest.approx(moved)


def test_the_step_does_not_depend_on_micro_batches(policy: Policy) -> None:
    """Acceptance (b) for pairs."""
    noisy_adapter(policy, "x")
    whole, a = first_step(policy, some_pairs(), ONE_STEP)
    for limit in (1, 40):
        parts, b = first_step(policy, some_pairs(), dataclasses.replace(ONE_STEP, micro_batch_tokens=limit))
        assert b.loss == pytest.approx(a.loss, abs=1e-6)
        for name in whole:
            assert torch.allclose(whole[name], parts[name], atol=2e-6), name


def test_tokens_of_tools_and_the_temperature_they_were_drawn_at_do_not_matter(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    pairs = some_pairs(2)
    greedy = [
        Pair([dataclasses.replace(p.chosen[0], temperature=0.0)],
             [dataclasses.replace(p.rejected[0], temperature=0.7, top_p=0.9)]) for p in pairs
    ]  # fmt: skip
    learner = PreferenceLearner(policy, "x", ONE_STEP)
    assert learner.margins(greedy) == pytest.approx(learner.margins(pairs), abs=1e-6)


def test_sides_of_several_rows_are_summed(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    (pair,) = some_pairs(1)
    more = random_rows(1, seed=9)[0]
    learner = PreferenceLearner(policy, "x", ONE_STEP)
    both = learner.margins([Pair([*pair.chosen, more], pair.rejected)])[0]
    alone = learner.margins([pair])[0]
    ratio = (policy.logprobs([more], "x")[0] - policy.logprobs([more])[0]).sum()
    assert both - alone == pytest.approx(0.1 * float(ratio), abs=1e-5)


@pytest.mark.parametrize("stop_after", [1, 3])
def test_case_29_a_resumed_update_equals_an_uninterrupted_one(
    small: Path, tmp_path: Path, stop_after: int
) -> None:
    config = DpoConfig(learning_rate=1e-2, epochs=2, minibatch_pairs=2, reference="start")

    def fresh() -> PreferenceLearner:
        policy = Policy.load(small)
        noisy_adapter(policy, "x")
        return PreferenceLearner(policy, "x", config)

    whole = fresh()
    expected = list(whole.update(some_pairs()))
    part = fresh()
    steps = part.update(some_pairs())
    got = [next(steps) for _ in range(stop_after)]
    part.save(tmp_path)
    again = fresh()
    again.restore(tmp_path)
    got += list(again.update(some_pairs()))
    assert got == expected
    assert all(torch.equal(v, again.tensors[k]) for k, v in whole.tensors.items())
    part = fresh()
    next(part.update(some_pairs()))
    part.save(tmp_path)
    again.restore(tmp_path)
    with pytest.raises(TrainingError, match="same frozen dataset"):
        next(again.update(some_pairs(seed=5)))


def test_a_restored_state_refuses_another_adapter_and_forgets_copies_of_old_weights(
    small: Path, tmp_path: Path
) -> None:
    """A sampler's copies of the weights would keep answering, and referring, as before the restore."""
    policy = Policy.load(small)
    whole = PreferenceLearner(policy, None, DpoConfig(reference="start", learning_rate=1e-2))
    next(whole.update(some_pairs()))
    whole.save(tmp_path)
    again = Policy.load(small)
    again.weights.pack()
    PreferenceLearner(again, None, DpoConfig(reference="start")).restore(tmp_path)
    assert again.weights.packed is None
    noisy_adapter(policy, "x")
    with pytest.raises(ConfigError, match="another adapter"):
        PreferenceLearner(policy, "x", DpoConfig()).restore(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"beta": 0.0}, {"epochs": 0}, {"reference": "nobody"}, {"label_smoothing": 0.5}, {"minibatch_pairs": 0}],
)
def test_a_setting_out_of_range_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        DpoConfig(**change)


def test_training_all_weights_needs_the_start_as_reference(policy: Policy) -> None:
    with pytest.raises(ConfigError, match="use reference = 'start'"):
        PreferenceLearner(policy, None, DpoConfig(reference="base"))
    learner = PreferenceLearner(policy, None, DpoConfig(reference="start", learning_rate=1e-3, epochs=4))
    pairs = some_pairs()
    list(learner.update(pairs))
    assert learner.accuracy(pairs) == 1.0


def test_the_first_loss_is_ln_2_also_after_other_training(policy: Policy) -> None:
    """trl#1340: an adapter that was trained before is its own reference, and not the network below it."""
    noisy_adapter(policy, "x")
    step = next(PreferenceLearner(policy, "x", DpoConfig()).update(some_pairs()))
    assert step.loss == pytest.approx(math.log(2), abs=1e-6) and step.margin == 0.0
    other = next(PreferenceLearner(policy, "x", DpoConfig(reference="base")).update(some_pairs()))
    assert abs(other.margin) > 0.01


def test_another_policy_may_be_the_reference(policy: Policy) -> None:
    """Margins by hand: β times the difference of log-prob gains against that adapter, of other layers."""
    noisy_adapter(policy, "x")
    policy.new_adapter("y", 2, 4.0, seed=5)
    for tensor in policy.adapter("y").params.values():
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    learner = PreferenceLearner(policy, "x", DpoConfig(reference="other"), lambda: (policy, "y"))
    pairs = some_pairs()
    rows = [row for pair in pairs for side in (pair.chosen, pair.rejected) for row in side]
    gains = [
        float((a - b).sum())
        for a, b in zip(policy.logprobs(rows, "x"), policy.logprobs(rows, "y"), strict=True)
    ]
    expected = [0.1 * (better - worse) for better, worse in zip(gains[::2], gains[1::2], strict=True)]
    assert learner.margins(pairs) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ConfigError, match="needs that policy"):
        PreferenceLearner(policy, "x", DpoConfig(reference="other"))
