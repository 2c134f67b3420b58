"""Distributions over actions against torch.distributions, numerical derivatives, and counted samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import distributions as D

from onward.control.dists import (
    Bernoulli,
    Categorical,
    Gaussian,
    MultiCategorical,
    distribution,
    gaussian_log_prob,
    tanh_gaussian,
    tanh_gaussian_log_prob,
)
from onward.control.spaces import ActionSpec


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_scores_are_those_of_torch_distributions():
    logits = normal(6, 5)
    actions = torch.tensor([0, 1, 2, 3, 4, 0])
    log_prob, entropy = Categorical(5).score(logits, actions)
    torch.testing.assert_close(log_prob, D.Categorical(logits=logits).log_prob(actions))
    torch.testing.assert_close(entropy, D.Categorical(logits=logits).entropy())

    pairs = torch.tensor([[0, 1], [2, 0], [1, 1], [2, 1], [0, 0], [1, 0]])
    log_prob, entropy = MultiCategorical((3, 2)).score(logits, pairs)
    parts = [D.Categorical(logits=logits[:, :3]), D.Categorical(logits=logits[:, 3:])]
    torch.testing.assert_close(log_prob, parts[0].log_prob(pairs[:, 0]) + parts[1].log_prob(pairs[:, 1]))
    torch.testing.assert_close(entropy, parts[0].entropy() + parts[1].entropy())

    bits = (normal(6, 5, seed=1) > 0).long()
    log_prob, entropy = Bernoulli(5).score(logits, bits)
    torch.testing.assert_close(log_prob, D.Bernoulli(logits=logits).log_prob(bits.float()).sum(1))
    torch.testing.assert_close(entropy, D.Bernoulli(logits=logits).entropy().sum(1))

    gaussian = Gaussian(5, log_std=-0.7)
    x = normal(6, 5, seed=2)
    log_prob, entropy = gaussian.score(logits, x)
    reference = D.Normal(logits, math.exp(-0.7))
    torch.testing.assert_close(log_prob, reference.log_prob(x).sum(1))
    torch.testing.assert_close(entropy, reference.entropy().sum(1))


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
    log_prob, entropy = Categorical(3).score(
        torch.from_numpy(logits), torch.zeros(500, dtype=torch.long), torch.from_numpy(mask)
    )
    torch.testing.assert_close(log_prob, torch.full((500,), math.log(0.5)))
    torch.testing.assert_close(entropy, torch.full((500,), math.log(2)))


def test_a_slot_without_a_legal_action_gives_no_nan():
    logits = torch.zeros(2, 3, requires_grad=True)
    log_prob, entropy = Categorical(3).score(
        logits, torch.tensor([0, 1]), torch.zeros(2, 3, dtype=torch.bool)
    )
    (log_prob.sum() + entropy.sum()).backward()
    assert torch.isfinite(log_prob).all() and torch.isfinite(entropy).all()
    assert torch.equal(logits.grad, torch.zeros(2, 3))


@pytest.mark.parametrize("scale", [1.0, 2.0, 0.25])
def test_tanh_log_prob_equals_the_density_through_a_numerical_jacobian(scale):
    u = torch.linspace(-3, 3, 25, dtype=torch.float64)[:, None]
    mean, log_std = torch.full_like(u, 0.3), torch.full_like(u, -0.5)
    step = 1e-6
    slope = scale * (torch.tanh(u + step) - torch.tanh(u - step)) / (2 * step)
    expected = D.Normal(mean, log_std.exp()).log_prob(u) - slope.log()
    ours = tanh_gaussian_log_prob(u, mean, log_std, torch.tensor([scale], dtype=torch.float64))
    torch.testing.assert_close(ours, expected[:, 0], atol=1e-7, rtol=1e-7)
    # In units where actions are −1 … 1 the scale's term is missing, and nothing else is.
    torch.testing.assert_close(tanh_gaussian_log_prob(u, mean, log_std) - math.log(scale), ours)


def test_tanh_log_prob_is_finite_with_finite_gradients_where_tanh_is_one():
    u = torch.tensor([[-60.0], [-20.0], [20.0], [60.0]], requires_grad=True)
    assert torch.tanh(u.detach()).abs().max() == 1  # 1 − tanh² is 0 here and its log −inf
    log_prob = tanh_gaussian_log_prob(u, torch.zeros(4, 1), torch.ones(4, 1))
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all() and torch.isfinite(u.grad).all()
    slope = 2 * (math.log(2) - 20.0)  # softplus(−40) is 0 to 17 digits
    expected = gaussian_log_prob(torch.tensor([[20.0]]), torch.zeros(1, 1), torch.ones(1, 1)) - slope
    torch.testing.assert_close(log_prob[2:3], expected)


def test_reparameterised_samples_carry_gradients_to_mean_and_deviation():
    mean, log_std = torch.zeros(3, 2, requires_grad=True), torch.zeros(3, 2, requires_grad=True)
    action, log_prob = tanh_gaussian(mean, log_std, normal(3, 2))
    torch.testing.assert_close(action, torch.tanh(normal(3, 2)))
    torch.testing.assert_close(log_prob, tanh_gaussian_log_prob(normal(3, 2), mean, log_std))
    action.sum().backward()
    assert mean.grad.abs().min() > 0 and log_std.grad.abs().min() > 0


def test_each_action_space_gets_the_distribution_of_its_width():
    assert distribution(ActionSpec("discrete", sizes=(4,))).width == 4
    assert distribution(ActionSpec("multi_discrete", sizes=(3, 2))).width == 5
    assert distribution(ActionSpec("multi_binary", sizes=(2, 2))).width == 2
    assert distribution(ActionSpec("box", low=(0.0,), high=(1.0,))).width == 1
