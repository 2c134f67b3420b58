"""Networks, checked against torch.nn, against one another, and for what their shared memory promises."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from onward.control.core.spaces import Layout
from onward.control.networks.flat import FlatParameters
from onward.control.networks.in_numpy import NumpyMLP
from onward.control.networks.nets import MLP, Encoder, Ensemble, to_tensor
from onward.errors import ControlError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def as_sequential(net: MLP, act: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for depth, linear in enumerate(net.linears):
        layers.append(linear)
        if depth < len(net.linears) - 1:
            layers += [*net.norms[depth : depth + 1], act]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("activation", "module"), [("tanh", nn.Tanh()), ("relu", nn.ReLU())])
def test_mlp_and_its_numpy_twin_compute_what_torch_nn_does(activation, module, layer_norm):
    net = MLP((5, 16, 12, 3), activation, layer_norm, generator=generator())
    for p in net.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=generator(1))
    x = torch.randn(7, 5, generator=generator(2))
    expected = as_sequential(net, module)(x)
    torch.testing.assert_close(net(x), expected)
    np.testing.assert_allclose(
        NumpyMLP(net.arrays())(x.numpy()), expected.detach().numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_gradients_of_an_mlp_are_those_of_its_operations_one_by_one(activation):
    net = MLP((5, 16, 12, 3), activation, generator=generator())
    x = torch.randn(7, 5, generator=generator(2), requires_grad=True)
    module = as_sequential(net, nn.Tanh() if activation == "tanh" else nn.ReLU())
    weights = torch.randn(7, 3, generator=generator(3))
    inputs = [x, *net.parameters()]
    ours = torch.autograd.grad((net(x) * weights).square().sum(), inputs)
    theirs = torch.autograd.grad((module(x) * weights).square().sum(), inputs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(net(x), module(x))


def test_orthogonal_weights_have_the_asked_gain_and_seeds_repeat():
    net = MLP((8, 64, 4), gain=0.01, generator=generator(3))
    hidden, last = net.linears[0].weight, net.linears[1].weight
    torch.testing.assert_close(hidden.T @ hidden, 2 * torch.eye(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(4), atol=1e-8, rtol=0)
    again = MLP((8, 64, 4), gain=0.01, generator=generator(3))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_each_member_of_an_ensemble_is_an_mlp_of_its_own(layer_norm):
    ensemble = Ensemble(3, (4, 8, 8, 2), "relu", layer_norm, generator=generator())
    for p in ensemble.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=generator(1))
    x = torch.randn(6, 4, generator=generator(2))
    out = ensemble(x)
    assert out.shape == (3, 6, 2)
    torch.testing.assert_close(ensemble(x.expand(3, 6, 4)), out)
    torch.testing.assert_close(ensemble(x, members=1), out[:1])
    for member in range(3):
        alone = NumpyMLP(ensemble.arrays(member))(x.numpy())
        np.testing.assert_allclose(alone, out[member].detach().numpy(), rtol=1e-4, atol=1e-5)
    assert not torch.equal(out[0], out[1])


def test_flat_parameters_share_memory_with_modules_gradients_and_numpy():
    net = MLP((3, 4, 2), generator=generator())
    before = [p.detach().clone() for p in net.parameters()]
    flat = FlatParameters(net)
    acting = NumpyMLP(net.arrays())
    assert all(torch.equal(a, p) for a, p in zip(before, net.parameters(), strict=True))
    x = torch.ones(5, 3)
    flat.backward(net(x).sum())
    assert torch.equal(flat.grad, torch.cat([p.grad.reshape(-1) for p in net.parameters()]))
    flat.adam(0.1).step()
    np.testing.assert_allclose(acting(x.numpy()), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    whole = flat.tensor.detach().numpy()
    assert all(np.shares_memory(p.detach().numpy(), whole) for p in flat.parameters)


def test_a_gradient_replaces_the_one_before_and_comes_although_something_else_cleared_them():
    net = MLP((3, 4, 2), generator=generator())
    reference = copy.deepcopy(net)
    flat = FlatParameters(net)
    x = torch.randn(5, 3, generator=generator(1))
    reference(x).square().sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in reference.parameters()])
    flat.grad.fill_(7.0)
    flat.backward(net(x).square().sum())
    torch.testing.assert_close(flat.grad, expected)
    net.zero_grad(set_to_none=True)
    flat.backward(net(x).square().sum())
    torch.testing.assert_close(flat.grad, expected)


def test_a_loss_gives_gradients_to_its_own_parameters_alone_and_zeros_where_it_does_not_depend_on_them():
    first, second = MLP((3, 2), generator=generator()), MLP((2, 1), generator=generator())
    flat, other = FlatParameters(first), FlatParameters(second)
    x = torch.ones(5, 3)
    flat.backward(second(first(x)).sum())
    assert flat.grad.any() and not other.grad.any()
    both = FlatParameters([first, second])
    both.backward(first(x).sum() + first(x).sum())  # used twice, it adds up
    assert both.grad.tolist() == [10.0] * 8 + [0.0] * 3


def test_flat_adam_and_clipping_equal_torch_per_parameter():
    net = MLP((3, 8, 2), generator=generator())
    reference = copy.deepcopy(net)
    flat = FlatParameters(net)
    ours, theirs = flat.adam(1e-2, 1e-5), torch.optim.Adam(reference.parameters(), lr=1e-2, eps=1e-5)
    for step in range(5):
        x = torch.randn(16, 3, generator=generator(step))
        flat.backward(net(x).pow(2).sum())
        norm = flat.clip_(0.5)
        ours.step()
        theirs.zero_grad()
        reference(x).pow(2).sum().backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(reference.parameters(), 0.5))
        theirs.step()
    for a, b in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_target_moves_by_tau_and_is_out_of_autograd():
    online = MLP((2, 4, 1), generator=generator(0))
    target = copy.deepcopy(online)
    flat, flat_target = FlatParameters(online), FlatParameters(target)
    flat_target.freeze()
    with torch.no_grad():
        flat.tensor += 1.0
    old = flat_target.tensor.clone()
    flat_target.lerp_from(flat, 0.25)
    torch.testing.assert_close(flat_target.tensor, old + 0.25)
    assert not target(torch.ones(1, 2)).requires_grad
    flat_target.lerp_from(flat, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(online.parameters(), target.parameters(), strict=True))


def test_a_deep_copy_of_a_network_has_parameters_of_its_own():
    for net in (MLP((2, 3, 1), generator=generator()), Ensemble(2, (2, 3, 1), generator=generator())):
        twin = copy.deepcopy(net)
        x = torch.ones(1, 2)
        before = net(x).detach().clone()
        for p in twin.parameters():
            p.data += 1.0
        assert torch.equal(net(x), before)
        assert not torch.equal(twin(x), before)


def test_the_encoder_passes_vectors_and_joins_images():
    assert Encoder(Layout(4)).width == 4
    layout = Layout(2, (("a", (10, 10, 1)), ("b", (84, 84, 4))))
    encoder = Encoder(layout, 16, generator())
    obs = {
        "vector": np.ones((3, 2), np.float32),
        "a": np.full((3, 10, 10, 1), 255, np.uint8),
        "b": np.zeros((3, 84, 84, 4), np.uint8),
    }
    out = encoder(to_tensor(obs))
    assert out.shape == (3, 2 + 16 + 16) and out.shape[1] == encoder.width
    assert torch.equal(out[:, :2], torch.ones(3, 2))
    assert obs["a"].dtype == np.uint8 and obs["a"].max() == 255
    torch.testing.assert_close(out[:, 18:], torch.zeros(3, 16))  # zero bytes and zero biases


@pytest.mark.parametrize("sizes", [(4,), (4, 0, 2)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ControlError, match="at least the input and output width"):
        MLP(sizes)


def test_tiny_images_are_refused():
    with pytest.raises(ControlError, match="2×9 pixels"):
        Encoder(Layout(0, (("x", (2, 9, 3)),)))
