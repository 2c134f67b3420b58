"""Distributions over actions against torch.distributions and autograd, and counted samples."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import distributions as D

from onward.control.core.spaces import ActionSpec
from onward.control.networks.dists import (
    ActionDistribution,
    Bernoulli,
    Categorical,
    Gaussian,
    MultiCategorical,
    distribution,
    tanh_gaussian,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cases() -> dict[str, tuple[ActionDistribution, torch.Tensor, Callable[..., list[D.Distribution]]]]:
    """Ours, actions, and PyTorch's distributions whose sum it is, given outputs and log-stds."""
    pairs = torch.tensor([[0, 1], [2, 0], [1, 1], [2, 1], [0, 0], [1, 0]])
    return {
        "discrete": (
            Categorical(5),
            torch.tensor([0, 1, 2, 3, 4, 0]),
            lambda x, _: [D.Categorical(logits=x)],
        ),
        "multi_discrete": (
            MultiCategorical((3, 2)),
            pairs,
            lambda x, _: [D.Categorical(logits=x[:, :3]), D.Categorical(logits=x[:, 3:])],
        ),
        "multi_binary": (
            Bernoulli(5),
            (normal(6, 5, seed=1) > 0).long(),
            lambda x, _: [D.Independent(D.Bernoulli(logits=x), 1)],
        ),
        "box": (
            Gaussian(5, log_std=-0.7),
            normal(6, 5, seed=2),
            lambda x, log_std: [D.Independent(D.Normal(x, log_std.exp()), 1)],
        ),
    }


def reference(
    kind: str, outputs: torch.Tensor, log_std: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(log-probs, entropies, actions) by torch.distributions."""
    _, actions, make = cases()[kind]
    found = make(outputs, log_std)
    each = actions.T if kind == "multi_discrete" else [actions.float() if actions.dim() == 2 else actions]
    log_probs = torch.stack([d.log_prob(a) for d, a in zip(found, each, strict=True)]).sum(0)
    return log_probs, torch.stack([d.entropy() for d in found]).sum(0), actions


KINDS = ("discrete", "multi_discrete", "multi_binary", "box")


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_torch_distributions(kind):
    outputs = normal(6, 5)
    log_probs, entropies, actions = reference(kind, outputs, torch.full((5,), -0.7))
    scores = cases()[kind][0].score(outputs, actions.numpy())
    torch.testing.assert_close(scores.log_probs, log_probs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scores.entropies(), entropies, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_entropies", [0.0, -0.3, normal(6, seed=4).numpy()])
def test_gradients_are_those_that_autograd_finds_through_torch_distributions(kind, at_entropies):
    outputs, log_std = normal(6, 5, seed=3).requires_grad_(), torch.full((5,), -0.7, requires_grad=True)
    at_log_probs = normal(6, seed=5)
    log_probs, entropies, actions = reference(kind, outputs, log_std)
    loss = (log_probs * at_log_probs).sum() + (entropies * torch.as_tensor(at_entropies)).sum()
    expected = torch.autograd.grad(loss, [outputs, log_std], allow_unused=True)
    dist = cases()[kind][0]
    scores = dist.score(outputs, actions.numpy())
    ours = (scores.log_probs * at_log_probs).sum() + (
        scores.entropies() * torch.as_tensor(at_entropies)
    ).sum()
    own = list(dist.parameters())
    assert len(own) == (1 if kind == "box" else 0)
    found = torch.autograd.grad(ours, [outputs, *own])
    for gradient, wanted in zip(found, expected, strict=False):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_illegal_actions_get_no_gradient_and_the_others_that_of_the_legal_alone():
    logits, mask = normal(6, 5, seed=6).requires_grad_(), np.array([[True, False, True, True, False]] * 6)
    actions, at = torch.tensor([0, 2, 3, 0, 2, 3]), normal(6, seed=7)
    legal = logits.detach()[:, [0, 2, 3]].requires_grad_()
    found = D.Categorical(logits=legal)
    loss = (found.log_prob(torch.tensor([0, 1, 2, 0, 1, 2])) * at).sum() + 0.5 * found.entropy().sum()
    (expected,) = torch.autograd.grad(loss, [legal])
    scores = Categorical(5).score(logits, actions.numpy(), mask)
    ours = (scores.log_probs * at).sum() + 0.5 * scores.entropies().sum()
    (gradient,) = torch.autograd.grad(ours, [logits])
    torch.testing.assert_close(gradient[:, [0, 2, 3]], expected, rtol=1e-4, atol=1e-6)
    assert not gradient[:, [1, 4]].any()


def test_samples_come_as_often_as_their_probability_says():
    rng = np.random.default_rng(0)
    rows = 20_000
    logits = np.tile(np.log(np.array([0.1, 0.2, 0.7], np.float32)), (rows, 1))
    drawn = Categorical(3).sample(logits, rng)
    assert drawn.dtype == np.int64 and drawn.shape == (rows,)
    np.testing.assert_allclose(np.bincount(drawn) / rows, [0.1, 0.2, 0.7], atol=0.015)

    both = np.tile(np.log(np.array([0.3, 0.7, 0.5, 0.25, 0.25], np.float32)), (rows, 1))
    drawn = MultiCategorical((2, 3)).sample(both, rng)
    assert drawn.shape == (rows, 2)
    np.testing.assert_allclose(np.bincount(drawn[:, 0]) / rows, [0.3, 0.7], atol=0.015)
    np.testing.assert_allclose(np.bincount(drawn[:, 1]) / rows, [0.5, 0.25, 0.25], atol=0.015)

    bits = Bernoulli(2).sample(np.tile(np.array([math.log(0.8 / 0.2), 0], np.float32), (rows, 1)), rng)
    assert set(np.unique(bits)) == {0, 1}
    np.testing.assert_allclose(bits.mean(0), [0.8, 0.5], atol=0.015)

    numbers = Gaussian(1, log_std=math.log(0.5)).sample(np.full((rows, 1), 3, np.float32), rng)
    assert numbers.dtype == np.float32
    np.testing.assert_allclose([numbers.mean(), numbers.std()], [3, 0.5], atol=0.015)


def test_illegal_actions_are_never_drawn_and_leave_the_others_their_share():
    mask = np.array([[True, False, True]] * 500)
    logits = np.tile(np.array([0.0, 50.0, 0.0], np.float32), (500, 1))
    drawn = Categorical(3).sample(logits, np.random.default_rng(0), mask)
    assert set(np.unique(drawn)) == {0, 2}
    scores = Categorical(3).score(torch.from_numpy(logits), np.zeros(500, np.int64), mask)
    np.testing.assert_allclose(scores.log_probs, math.log(0.5), rtol=1e-6)
    np.testing.assert_allclose(scores.entropies(), math.log(2), rtol=1e-6)


def test_a_slot_without_a_legal_action_gives_no_nan():
    logits = torch.zeros(2, 3, requires_grad=True)
    scores = Categorical(3).score(logits, np.array([0, 1]), np.zeros((2, 3), np.bool_))
    (gradient,) = torch.autograd.grad(scores.log_probs.sum() + scores.entropies().sum(), [logits])
    assert scores.log_probs.isfinite().all() and scores.entropies().isfinite().all()
    assert torch.equal(gradient, torch.zeros(2, 3))


def squashed(u: np.ndarray, mean: float, log_std: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The outputs, actions and log-probs of the noise that leads to ``u``."""
    outputs = np.concatenate((np.full_like(u, mean), np.full_like(u, log_std)), axis=1)
    leaf = torch.from_numpy(outputs).requires_grad_()
    return leaf, *tanh_gaussian(leaf, torch.from_numpy((u - mean) / np.exp(log_std)), (-20.0, 2.0))


def test_tanh_log_prob_equals_the_density_through_a_numerical_jacobian():
    u, step = np.linspace(-3, 3, 25)[:, None], 1e-6
    slope = (np.tanh(u + step) - np.tanh(u - step)) / (2 * step)
    density = D.Normal(0.3, math.exp(-0.5)).log_prob(torch.from_numpy(u)).numpy() - np.log(slope)
    _, actions, log_probs = squashed(u, 0.3, -0.5)
    np.testing.assert_allclose(actions.detach(), np.tanh(u), atol=1e-12)
    np.testing.assert_allclose(log_probs.detach(), density[:, 0], atol=1e-7)


def test_tanh_log_prob_is_finite_with_finite_gradients_where_tanh_is_one():
    u = np.array([[-60.0], [-20.0], [20.0], [60.0]], np.float32)
    outputs, actions, log_probs = squashed(u, 0.0, 1.0)
    assert actions.abs().max() == 1  # 1 − tanh² is 0 here and its log −inf
    (gradient,) = torch.autograd.grad(actions.sum() + log_probs.sum(), [outputs])
    assert log_probs.isfinite().all() and gradient.isfinite().all()
    slope = 2 * (math.log(2) - 20.0)  # softplus(−40) is 0 to 17 digits
    expected = D.Normal(0.0, math.e).log_prob(torch.tensor(20.0)) - slope
    assert float(log_probs[2].detach()) == pytest.approx(float(expected), rel=1e-5)


def test_gradients_through_a_squashed_action_are_those_that_autograd_finds():
    outputs, noise = normal(6, 4, seed=8) * 2, normal(6, 2, seed=9)
    outputs[0, 2], outputs[1, 3] = 2.5, -21.0  # beyond the bounds of the log-deviation: no gradient there
    at_actions, at_log_probs = normal(6, 2, seed=10), normal(6, seed=11)
    leaf = outputs.double().requires_grad_()  # in float32 (u − μ) / σ is not the noise any more
    mean, log_std = leaf[:, :2], leaf[:, 2:].clamp(-20, 2)
    tanh = D.TanhTransform(cache_size=1)
    action = tanh(mean + log_std.exp() * noise.double())
    log_prob = D.TransformedDistribution(D.Normal(mean, log_std.exp()), [tanh]).log_prob(action).sum(1)
    ((action * at_actions).sum() + (log_prob * at_log_probs).sum()).backward()
    outputs.requires_grad_()
    actions, log_probs = tanh_gaussian(outputs, noise, (-20.0, 2.0))
    np.testing.assert_allclose(actions.detach(), action.detach(), atol=1e-6)
    np.testing.assert_allclose(log_probs.detach(), log_prob.detach(), rtol=1e-4, atol=1e-4)
    loss = (actions * at_actions).sum() + (log_probs * at_log_probs).sum()
    (gradient,) = torch.autograd.grad(loss, [outputs])
    np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-3, atol=1e-4)
    assert gradient[0, 2] == gradient[1, 3] == 0


def test_each_action_space_gets_the_distribution_of_its_width():
    assert distribution(ActionSpec("discrete", sizes=(4,))).width == 4
    assert distribution(ActionSpec("multi_discrete", sizes=(3, 2))).width == 5
    assert distribution(ActionSpec("multi_binary", sizes=(2, 2))).width == 2
    assert distribution(ActionSpec("box", low=(0.0,), high=(1.0,))).width == 1
