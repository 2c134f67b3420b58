"""Gradients by hand, beside autograd's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from onward.control.networks.chains import ROWS
from onward.control.networks.flat import FlatParameters
from onward.control.networks.nets import MLP, Ensemble, by_autograd
from onward.errors import ControlError

SIZES = [(5, 2), (4, 32, 2), (4, 32, 1), (20, 40, 24, 18), (17, 3, 17)]


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def perturbed(net: Any) -> Any:
    """Biases are not zero, layer norms not the identity."""
    with torch.no_grad():
        for at, p in enumerate(net.parameters()):
            p += 0.1 * draws(*p.shape, seed=at)
    return net


def gradients(net: Any, x: Tensor, at_outputs: Tensor) -> Tensor:
    """Autograd's, through plain operations in float64, in the order of ``FlatParameters``."""
    twin = copy.deepcopy(net).double()
    twin(x.double()).backward(at_outputs.double())
    return torch.cat([p.grad.reshape(-1) for p in twin.parameters()]).float()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("members", [0, 1, 3])
def test_recorded_outputs_and_gradients_are_autograds(sizes, activation, layer_norm, members):
    if members:
        net = perturbed(Ensemble(members, sizes, activation, layer_norm, generator=seeded()))
    else:
        net = perturbed(MLP(sizes, activation, layer_norm, generator=seeded()))
    x = draws(33, sizes[0])
    expected = net(x).detach()
    at_outputs = draws(*expected.shape, seed=1) / 33
    slow = gradients(net, x, at_outputs)
    flat = FlatParameters(net)
    flat.grad.fill_(7.0)  # what was there before does not count
    out, back = net.record(x)
    back(at_outputs)
    assert not out.requires_grad
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(flat.grad, slow, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-6)


def test_recording_follows_the_parameters_when_they_move_into_a_flat_tensor():
    net = perturbed(Ensemble(2, (3, 8, 1), generator=seeded()))
    x = draws(4, 3)
    with torch.no_grad():
        before = net(x)
    flat = FlatParameters(net)
    with torch.no_grad():
        flat.tensor += 1.0
        after = net(x)
    torch.testing.assert_close(after, net(x).detach())
    assert not torch.equal(before, after)


def test_more_rows_than_fit_the_cache_are_the_same_rows():
    net = perturbed(MLP((3, 8, 2), generator=seeded()))
    x = draws(2 * ROWS + 5, 3)
    with torch.no_grad():
        torch.testing.assert_close(net(x), torch.cat([net(part) for part in x.split(100)]))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_through_gives_the_gradient_of_the_smaller_critic_to_the_input_alone(layer_norm):
    net = perturbed(Ensemble(2, (6, 40, 40, 1), "relu", layer_norm, generator=seeded()))
    FlatParameters(net)
    x = draws(64, 6).requires_grad_()
    values, back = net.through(x.detach())
    assert 0 < (values[0] < values[1]).sum() < 64  # each of them is the smaller one somewhere
    smaller = torch.zeros_like(values).scatter_(0, values.argmin(dim=0, keepdim=True), 1 / 64)
    ours = back(smaller)
    (theirs,) = torch.autograd.grad(net(x).squeeze(-1).amin(dim=0).mean(), x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert all(float(p.grad.abs().sum()) == 0 for p in net.parameters())


def test_through_a_member_whose_gradient_is_zero_everywhere_costs_nothing_and_changes_nothing():
    net = perturbed(Ensemble(2, (3, 8, 1), generator=seeded()))
    x = draws(5, 3).requires_grad_()
    values, back = net.through(x.detach())
    at = torch.zeros_like(values)
    at[0] = 1
    ours = back(at)
    (theirs,) = torch.autograd.grad(net(x)[0].sum(), x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_one_network_used_twice_in_a_loss_adds_up_in_autograd():
    """``record`` sets gradients; a call, which is what a loss of two uses takes, adds them."""
    net = perturbed(MLP((3, 8, 2), generator=seeded()))
    flat = FlatParameters(net)
    x, y = draws(5, 3), draws(5, 3, seed=1)
    (net(x).sum() + net(y).sum()).backward()
    torch.testing.assert_close(flat.grad, gradients(net, torch.cat((x, y)), torch.ones(10, 2)))


def test_by_autograd_sets_gradients_too():
    net = torch.nn.Linear(3, 2)
    flat = FlatParameters(net)
    for _ in range(2):
        out, back = by_autograd(net, torch.ones(5, 3))
        back(torch.ones(5, 2))
    assert not out.requires_grad
    assert flat.grad.tolist() == [5.0] * 8


def test_gradients_without_a_place_are_refused():
    _, back = MLP((3, 2)).record(torch.ones(5, 3))
    with pytest.raises(ControlError, match="make FlatParameters"):
        back(torch.ones(5, 2))
