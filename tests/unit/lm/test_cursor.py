"""One cursor for all learners: which rows a step takes, at which rate, and where a restored one goes on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from onward.errors import TrainingError
from onward.lm.cursor import SCHEDULES, Cursor, rate_share
from onward.lm.policy import Policy
from onward.lm.sft import SftConfig, SupervisedLearner

from .conftest import random_rows


def test_every_item_comes_once_in_a_pass_and_a_restored_cursor_takes_the_rest() -> None:
    orders = {0: [4, 2, 0, 1, 3], 1: [0, 1, 2, 3, 4]}
    whole, taken = Cursor(2, 2), []
    for batch in whole.batches(5, orders.__getitem__):
        taken.append(batch)
        whole.advance()
    assert taken == [[4, 2], [0, 1], [3], [0, 1], [2, 3], [4]]
    assert (whole.total, whole.done) == (6, 0)
    rest = Cursor(2, 2)
    rest.done = 4
    assert next(rest.batches(5, orders.__getitem__)) == [2, 3]


def test_the_most_steps_end_an_update_and_the_schedule_falls_over_them() -> None:
    cursor, shares = Cursor(1, 1_000_000, schedule="linear", max_steps=4), []
    for _ in cursor.batches(3, lambda _: range(3)):
        shares.append(cursor.rate_share)
        cursor.advance()
    assert shares == [1.0, 0.75, 0.5, 0.25]


def test_other_data_in_the_middle_of_an_update_is_refused() -> None:
    cursor = Cursor(1, 1)
    cursor.refuse_other_data("a", "b", "rows")  # nothing was done yet
    cursor.done = 1
    cursor.refuse_other_data(None, "b", "rows")  # a state of an earlier version
    with pytest.raises(TrainingError, match="The rows differ from those of the update"):
        cursor.refuse_other_data("a", "b", "rows")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 4])
def test_rates_are_those_of_transformers_except_that_the_first_step_is_not_wasted(
    schedule: Any, warmup: int
) -> None:
    """transformers warms up from a rate of 0, so its first step changes nothing; ours is one step ahead."""
    from transformers import get_scheduler

    kinds = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
    total = 20
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_scheduler(kinds[schedule], optimizer, num_warmup_steps=warmup, num_training_steps=total)
    found = []
    for _ in range(total + 1):
        found.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    ours = [rate_share(schedule, step, total, warmup) for step in range(total)]
    assert ours[:warmup] == pytest.approx(found[1 : warmup + 1])
    assert ours[warmup:] == pytest.approx(found[warmup:total])
    assert rate_share("cosine", 10, 20) == pytest.approx(0.5 * (1 + math.cos(math.pi / 2)))


def test_a_learner_takes_its_steps_at_the_rates_of_its_schedule(policy: Policy) -> None:
    policy.new_adapter("x", 4, 8.0)
    config = SftConfig(0.01, 2, epochs=2, schedule="cosine", warmup_steps=2)
    learner = SupervisedLearner(policy, "x", config)
    rates = [learner.stepper.rate for _ in learner.update(random_rows(6))]
    assert rates == pytest.approx([0.01 * rate_share("cosine", step, 6, 2) for step in range(6)])
    assert rates[0] == pytest.approx(0.005) and rates[1] == rates[2] == pytest.approx(0.01)


def test_a_saved_state_of_imitation_goes_on_with_the_same_rows_and_rates(small: Path, tmp_path: Path) -> None:
    config = SftConfig(1e-3, 2, epochs=3, schedule="linear")
    losses: list[list[float]] = []
    for stops in (False, True):
        learner = SupervisedLearner(Policy.load(small), None, config)
        found = []
        for step in learner.update(random_rows(6)):
            found.append(step.loss)
            if stops and step.step == 4:
                assert learner.save(tmp_path)
                break
        if stops:
            learner = SupervisedLearner(Policy.load(small), None, config)
            learner.restore(tmp_path)
            found += [step.loss for step in learner.update(random_rows(6))]
        losses.append(found)
    assert losses[0] == losses[1] and len(losses[0]) == 9


def test_the_loss_on_rows_that_are_not_trained_on_changes_nothing(policy: Policy) -> None:
    learner = SupervisedLearner(policy, None, SftConfig(1e-3, 6))
    rows = random_rows(6)
    before = [tensor.clone() for tensor in learner.tensors.values()]
    judged = learner.loss(rows)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.tensors.values(), strict=True))
    by_hand = sum(float(part.sum()) for part in policy.logprobs(rows)) / sum(len(r.trained) for r in rows)
    assert judged == pytest.approx(-by_hand, rel=1e-5)
    assert next(learner.update(rows)).loss == pytest.approx(judged, rel=1e-5)
