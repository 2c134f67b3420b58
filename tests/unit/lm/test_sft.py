"""Supervised fine-tuning trains the marked tokens, and stops after the most steps."""

from __future__ import annotations

import pytest
import torch

from onward.errors import TrainingError
from onward.lm.policy import Policy
from onward.lm.sft import fit, warm_start_rows
from onward.lm.tokens import TokenRow
from onward.lm.trajectories import Trajectory

from .conftest import random_rows


def test_only_marked_tokens_are_learnt(policy: Policy) -> None:
    rows = [TokenRow([5, 6, 7, 8], [False, False, True, True], [0.0] * 4)]
    context = [TokenRow([5, 6, 7, 8], [False, True, False, False], [0.0] * 4)]
    before = float(policy.logprobs(context)[0].sum())
    policy.new_adapter("x", 4, 8.0)
    steps = list(fit(policy, "x", rows, learning_rate=1e-2, batch_rows=1, epochs=25))
    assert steps[0].tokens == 2 and steps[-1].loss < steps[0].loss - 0.5
    assert float(policy.logprobs(context, "x")[0].sum()) < before + 2.0
    assert float(policy.logprobs(context)[0].sum()) == pytest.approx(before), "the base must not move"


def test_the_loss_does_not_depend_on_micro_batches(small: object) -> None:
    losses = []
    for limit in (10, 4096):
        policy = Policy.load(small)  # type: ignore[arg-type]
        (step, *_) = fit(
            policy, None, random_rows(6), learning_rate=1e-3, batch_rows=6, micro_batch_tokens=limit
        )
        losses.append((step.loss, step.grad_norm))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_full_training_moves_every_parameter_and_leaves_no_graph(policy: Policy) -> None:
    before = [t.clone() for t in policy.weights.tensors()]
    list(fit(policy, None, random_rows(6), learning_rate=1e-3, batch_rows=3))
    assert all(not torch.equal(a, b) for a, b in zip(before, policy.weights.tensors(), strict=True))
    assert not any(t.requires_grad for t in policy.weights.tensors())


def test_it_stops_after_the_most_steps(policy: Policy) -> None:
    steps = list(
        fit(
            policy,
            None,
            random_rows(8),
            learning_rate=1e-3,
            batch_rows=2,
            epochs=9,
            max_steps=3,
        )
    )
    assert [s.step for s in steps] == [1, 2, 3] and steps[0].total_steps == 3


def test_rows_without_marked_tokens_are_refused(policy: Policy) -> None:
    with pytest.raises(TrainingError, match="mark answers as sampled"):
        next(
            fit(
                policy, None, [TokenRow([1, 2], [False, False], [0.0, 0.0])], learning_rate=1e-3, batch_rows=1
            )
        )


def test_a_warm_start_takes_demonstrations_and_what_scored_well() -> None:
    good, bad, shown = (TokenRow([1, k], [False, True], [0.0, 0.0]) for k in (2, 3, 4))
    empty = TokenRow([1, 2], [False, False], [0.0, 0.0])
    some = [
        Trajectory([good, empty], 0.9),
        Trajectory([bad], 0.2),
        Trajectory([bad], None),
    ]
    assert warm_start_rows(some, 0.5) == [good]
    assert warm_start_rows(some, 0.5, [shown]) == [shown, good]
    with pytest.raises(TrainingError, match="lower min_reward or give demonstrations"):
        warm_start_rows(some, 0.95)
