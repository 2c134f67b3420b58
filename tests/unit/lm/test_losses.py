"""Losses by hand, by finite differences, and for the loss cases of lm-training section 3 (B)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from onward.lm import losses
from onward.lm.head import backward_logprobs, token_logprobs


def t(*values: float) -> Tensor:
    return torch.tensor(values)


def test_the_clipped_loss_by_hand() -> None:
    ratio = t(1.0, 1.5, 1.5, 0.5, 0.5, 5.0)
    advantage = t(2.0, 1.0, -1.0, 1.0, -1.0, -1.0)
    loss = losses.clipped_loss(ratio.log(), torch.zeros(6), advantage, clip_epsilon=0.2, dual_clip=3.0)
    # the last: A < 0 and r = 5 would give 5, dual clip keeps 3
    assert loss.tolist() == pytest.approx([-2.0, -1.2, 1.5, -0.5, 0.8, 3.0], abs=1e-5)
    share = losses.clipped_share(ratio, advantage, 0.2, 0.2)
    assert share.tolist() == [False, True, False, False, True, False]


def test_on_policy_ratio_and_importance_weight_are_exactly_one() -> None:
    """Acceptance (g)."""
    logp = t(-0.3, -5.0, -20.0)
    assert losses.log_ratio(logp, logp).exp().tolist() == [1.0, 1.0, 1.0]
    assert losses.importance_weights(logp, logp, 2.0).tolist() == [1.0, 1.0, 1.0]
    assert losses.effective_sample_share(torch.ones(5)) == pytest.approx(1.0)


def test_importance_weights_are_truncated_not_floored() -> None:
    weights = losses.importance_weights(t(0.0, -4.0, -1.0), t(-3.0, -1.0, -1.0), 2.0)
    assert weights.tolist() == pytest.approx([2.0, math.exp(-3), 1.0])


def test_case_22_the_effective_share_shows_when_few_samples_dominate() -> None:
    assert losses.effective_sample_share(t(1.0, 0.0, 0.0, 0.0)) == pytest.approx(0.25)


def test_case_14_nan_under_a_false_mask_does_not_spread() -> None:
    mask = torch.tensor([1, 0])
    logp = torch.tensor([0.0, math.nan], requires_grad=True)
    loss = losses.clipped_loss(logp, t(0.0, math.nan), t(1.0, math.nan), mask)
    penalty = losses.kl_loss(logp, t(-1.0, math.nan), "k3", mask)
    (loss + penalty).sum().backward()
    assert loss.tolist() == [-1.0, 0.0] and bool(torch.isfinite(penalty).all())
    assert logp.grad is not None and float(logp.grad[1]) == 0.0 and math.isfinite(float(logp.grad[0]))


def test_case_11_a_fully_masked_batch_is_zero_not_nan() -> None:
    nothing = torch.zeros(2)
    assert losses.clipped_loss(t(-1, -1), t(-1, -1), t(1, 1), nothing).tolist() == [0.0, 0.0]
    for kind in ("token", "sequence", "constant"):
        assert losses.token_weights([0, 0], kind) == [0.0, 0.0]
    assert losses.effective_sample_share(torch.zeros(0)) == 1.0


def test_normalisers_by_hand() -> None:
    assert losses.token_weights([1, 3, 0], "token") == [1 / 4, 1 / 4, 0.0]
    assert losses.token_weights([1, 3, 0], "sequence") == [1 / 2, 1 / 6, 0.0]
    assert losses.token_weights([1, 3, 0], "constant", 10) == [1 / 20, 1 / 20, 0.0]


def test_case_15_every_documented_choice_runs_and_others_are_refused() -> None:
    logp = torch.tensor([-1.0], requires_grad=True)
    for estimator in ("k1", "k2", "k3"):
        (grad,) = torch.autograd.grad(losses.kl_loss(logp, t(-2.0), estimator).sum(), logp)
        assert float(grad) == pytest.approx(1.0), "KL alone must move the parameters"
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        losses.kl(logp, t(-2.0), "k3+")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="token, sequence or constant"):
        losses.token_weights([1], "mean")  # type: ignore[arg-type]


# --- exact KL on five symbols (acceptance c) ------------------------------------------------------


def _kl_setting() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(5, dtype=torch.float64, requires_grad=True), torch.randn(5, dtype=torch.float64)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_estimators_are_unbiased(estimator: losses.KlEstimator) -> None:
    logits, reference = _kl_setting()
    logp, ref = logits.log_softmax(-1), reference.log_softmax(-1)
    expected = (logp.exp() * losses.kl(logp, ref, estimator)).sum()
    exact = (logp.exp() * (logp - ref)).sum()
    assert expected.item() == pytest.approx(exact.item(), abs=1e-9)


def test_k3_is_never_negative() -> None:
    logits, reference = _kl_setting()
    assert bool((losses.kl(logits.log_softmax(-1), reference.log_softmax(-1), "k3") >= 0).all())


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_kl_penalty_has_the_gradient_of_the_reverse_kl(estimator: losses.KlEstimator) -> None:
    logits, reference = _kl_setting()
    logp, ref = logits.log_softmax(-1), reference.log_softmax(-1)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - ref)).sum(), logits, retain_graph=True)
    # the expectation over samples of π: probabilities outside the graph, one loss per symbol
    estimate = (logp.exp().detach() * losses.kl_loss(logp, ref, estimator)).sum()
    (got,) = torch.autograd.grad(estimate, logits)
    assert torch.allclose(got, exact, atol=1e-9)


# --- finite differences (acceptance f) -----------------------------------------------------------


ACTIONS = torch.tensor([0, 3, 2])
ADVANTAGES = torch.tensor([1.3, -0.7, 0.4], dtype=torch.float64)


def _objective(kind: str, logits: Tensor, old: Tensor) -> Tensor:
    logp = logits.log_softmax(-1).gather(1, ACTIONS[:, None]).squeeze(1)
    if kind == "entropy":
        return losses.entropy(logits).sum()
    if kind == "clip":
        return losses.clipped_loss(logp, old, ADVANTAGES, dual_clip=None).mean()
    if kind == "dual":
        return losses.clipped_loss(logp, old - 2.0, ADVANTAGES, dual_clip=3.0).mean()
    if kind == "wide":
        return losses.clipped_loss(logp, old, ADVANTAGES, clip_epsilon=0.1, clip_epsilon_high=0.9).mean()
    if kind == "masked":
        return losses.clipped_loss(logp, old, ADVANTAGES, torch.tensor([1, 0, 1])).mean()
    return losses.kl(logp, old, kind).mean()  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["clip", "dual", "wide", "masked", "entropy", "k1", "k2", "k3"])
def test_gradients_equal_finite_differences(kind: str) -> None:
    torch.manual_seed(2)
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(3, dtype=torch.float64) * 0.1
    old = (logits.log_softmax(-1).gather(1, ACTIONS[:, None]).squeeze(1) + noise).detach()
    (grad,) = torch.autograd.grad(_objective(kind, logits, old), logits)
    step = 1e-6
    for i in range(3):
        for j in range(5):
            shift = torch.zeros(3, 5, dtype=torch.float64)
            shift[i, j] = step
            with torch.no_grad():
                slope = (_objective(kind, logits + shift, old) - _objective(kind, logits - shift, old)) / (
                    2 * step
                )
            assert float(grad[i, j]) == pytest.approx(float(slope), abs=1e-6)


def test_case_21_log_probs_are_of_the_tempered_distribution_with_the_right_shift_and_gradient() -> None:
    """``head`` against plain log_softmax and autograd, two temperatures, more positions than a chunk."""
    torch.manual_seed(3)
    n = 150
    states = torch.randn(n, 6, requires_grad=True)
    head = torch.randn(9, 6, requires_grad=True)
    targets, temperature = torch.randint(0, 9, (n,)), torch.rand(n) + 0.5
    weight = torch.randn(n)
    logits = states @ head.t() / temperature[:, None]
    plain = logits.log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    theirs = torch.autograd.grad((plain * weight).sum(), [states, head])
    hidden = states * 1.0  # a graph, as the network below would make it
    logp, entropy = backward_logprobs(hidden, head, targets, temperature, lambda _, part: weight[part])
    assert torch.allclose(logp, plain, atol=1e-5)
    assert torch.allclose(entropy, losses.entropy(logits), atol=1e-5)
    for parameter, expected in zip((states, head), theirs, strict=True):
        assert parameter.grad is not None and torch.allclose(parameter.grad, expected, atol=1e-5)
    assert torch.allclose(token_logprobs(hidden, head, targets, temperature)[0], plain, atol=1e-5)
