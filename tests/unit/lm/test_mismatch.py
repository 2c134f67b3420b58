"""A sampler whose log-probs are not the learner's: noticed, corrected by truncated weights, reported."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from onward.lm.learner import MISMATCH, Learner, LearnerConfig, StepMetrics
from onward.lm.policy import Policy
from onward.lm.request import SampleRequest
from onward.lm.sampler import Sampler
from onward.lm.tokens import TokenRow

from .conftest import noisy_adapter, random_rows, with_behaviour

CONFIG = LearnerConfig(learning_rate=1e-3, epochs=1, mismatch_cap=2.0)


def shifted(rows: list[TokenRow], shifts: list[float]) -> list[TokenRow]:
    """The rows with each row's recorded log-probs moved by so much."""

    def moved(row: TokenRow, by: float) -> TokenRow:
        each = zip(row.logprobs, row.sampled, strict=True)
        return replace(row, logprobs=[min(0.0, value + by) if sampled else 0.0 for value, sampled in each])

    return [moved(row, by) for row, by in zip(rows, shifts, strict=True)]


def one_token_rows() -> list[TokenRow]:
    return [TokenRow([5, 9, 7, token], [False, False, False, True], [0.0] * 4) for token in (20, 30)]


def first_step(
    policy: Policy, rows: list[TokenRow], advantages: list[float], **changes: object
) -> StepMetrics:
    noisy_adapter(policy, "x") if "x" not in policy.adapters else None
    return next(Learner(policy, "x", replace(CONFIG, **changes)).update(rows, advantages))


def test_a_step_on_a_mismatched_sampler_has_the_weights_worked_out_by_hand(policy: Policy) -> None:
    """π/μ is 4 for the first token, cut to 2, and 1 for the second. Differences: ln 4 and 0, mean ln 2. The
    effective share is (2+1)² / (2·(4+1)) = 0.9; the loss is −(2·1 + 1·(−0.5)) / 2 = −0.75."""
    noisy_adapter(policy, "x")
    rows = shifted(with_behaviour(policy, "x", one_token_rows()), [-math.log(4.0), 0.0])
    step = first_step(policy, rows, [1.0, -0.5])
    assert step.logprob_difference == pytest.approx(math.log(2.0), abs=1e-5)
    assert step.importance_ess == pytest.approx(0.9, abs=1e-5)
    assert (step.truncated_share, step.importance_max) == (0.5, 2.0)
    assert step.loss == pytest.approx(-0.75, abs=1e-5)
    assert (step.ratio_mean, step.clip_fraction) == (pytest.approx(1.0, abs=1e-5), 0.0), "π/π_start at first"


def test_log_probs_of_the_learner_itself_are_not_weighted(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    step = first_step(policy, with_behaviour(policy, "x", one_token_rows()), [1.0, -0.5])
    assert step.logprob_difference < MISMATCH / 10 and step.importance_mean == 1.0
    assert step.loss == pytest.approx(-0.25, abs=1e-6)


def test_nobody_looks_without_a_cap_for_it(policy: Policy) -> None:
    """The ratio is π/μ then: 4, clipped to 1.2 for the advantage above 0."""
    noisy_adapter(policy, "x")
    rows = shifted(with_behaviour(policy, "x", one_token_rows()), [-math.log(4.0), 0.0])
    step = first_step(policy, rows, [1.0, -0.5], mismatch_cap=None)
    assert (step.logprob_difference, step.importance_max) == (0.0, 1.0)
    assert step.loss == pytest.approx(-(1.2 - 0.5) / 2, abs=1e-5)


def test_a_cap_that_was_given_counts_whatever_the_sampler(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    rows = shifted(with_behaviour(policy, "x", one_token_rows()), [-math.log(4.0), 0.0])
    assert first_step(policy, rows, [1.0, -0.5], importance_cap=3.0).importance_max == pytest.approx(3.0)


def test_the_sample_of_rows_is_taken_from_all_of_them(policy: Policy) -> None:
    """Of 40 rows every third is compared; the later half is off, so half of those are: 14 rows, 7 of them."""
    noisy_adapter(policy, "x")
    good = with_behaviour(policy, "x", [row for row in one_token_rows() for _ in range(20)])
    rows = shifted(good, [0.0] * 20 + [-0.1] * 20)
    learner = Learner(policy, "x", CONFIG)
    learner.open(rows)
    assert learner._fixed["mismatch"] == pytest.approx(0.1 * 7 / 14, abs=1e-5)
    assert learner._fixed["cap"] == 2.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_sampler_in_another_precision_switches_the_correction_on(small: Path, dtype: str) -> None:
    sampled_by, learnt_by = Policy.load(small, dtype=dtype), Policy.load(small)
    for one in (sampled_by, learnt_by):
        noisy_adapter(one, "x", scale=0.4)
    sampler = Sampler(sampled_by)
    for number in range(8):
        sampler.submit(SampleRequest(str(number), [5, 6, 7, 8], 8, adapter="x", seed=number))
    rows = []
    while sampler.busy:
        for one in sampler.step():
            mask = [False] * 4 + [True] * len(one.token_ids)
            rows.append(TokenRow([5, 6, 7, 8, *one.token_ids], mask, [0.0] * 4 + one.logprobs))
    own = [v[r.trained] for v, r in zip(learnt_by.logprobs(rows, "x"), rows, strict=True)]
    gaps = torch.cat([v - torch.tensor(r.logprobs[4:]) for v, r in zip(own, rows, strict=True)])
    step = next(Learner(learnt_by, "x", CONFIG).update(rows, [1.0, -1.0] * 4))
    assert step.logprob_difference == pytest.approx(float(gaps.abs().mean()), rel=0.01, abs=1e-6)
    if dtype == "float32":
        assert step.logprob_difference < MISMATCH / 10 and step.importance_max == 1.0
    else:
        assert step.logprob_difference > MISMATCH
        assert step.importance_max == pytest.approx(float(gaps.exp().max()), rel=1e-4)
        assert step.importance_ess > 0.99


def test_an_update_that_is_restored_keeps_its_correction(policy: Policy, small: Path, tmp_path: Path) -> None:
    """After the first step the policy differs from μ by learning too: it must not be compared again."""
    noisy_adapter(policy, "x")
    rows = shifted(with_behaviour(policy, "x", random_rows(6)), [-0.3] * 6)
    advantages = [1.0, -1.0, 0.5, 2.0, -0.5, 1.5]
    config = replace(CONFIG, minibatch_rows=2)
    learner = Learner(policy, "x", config)
    steps = learner.update(rows, advantages)
    next(steps)
    assert learner.save(tmp_path)
    straight = [metrics.loss for metrics in steps]
    again = Policy.load(small)
    again.new_adapter("x", 4, 8.0)
    other = Learner(again, "x", config)
    other.restore(tmp_path)
    assert [metrics.loss for metrics in other.update(rows, advantages)] == straight
