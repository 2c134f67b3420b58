"""Adam of one flat tensor, beside ``torch.optim.Adam``."""

from __future__ import annotations

import pytest
import torch

from onward.control.networks import adam
from onward.control.networks.adam import FlatAdam


def gradients(count: int, size: int = 257) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=draws) * 10.0 ** (step % 5 - 3) for step in range(count)]


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def kernel(request, monkeypatch):
    if request.param and not adam._FUSED:
        pytest.skip("this PyTorch has no fused Adam")
    monkeypatch.setattr(adam, "_FUSED", request.param)


@pytest.mark.usefixtures("kernel")
def test_two_hundred_steps_with_a_falling_learning_rate_are_those_of_torch():
    start = torch.linspace(-1, 1, 257)
    ours, grad = start.clone(), torch.zeros(257)
    theirs = torch.nn.Parameter(start.clone())
    flat = FlatAdam(ours, grad, 1e-2, 1e-5)
    reference = torch.optim.Adam([theirs], lr=1e-2, eps=1e-5)
    for step, gradient in enumerate(gradients(200)):
        flat.lr = reference.param_groups[0]["lr"] = 1e-2 * (1 - step / 200)
        grad.copy_(gradient)
        theirs.grad = gradient.clone()
        flat.step()
        reference.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)
    for name, value in flat.state_dict().items():
        torch.testing.assert_close(value, reference.state[theirs][name], rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("kernel")
def test_a_restored_state_goes_on_bit_for_bit():
    first, second = torch.ones(257), torch.ones(257)
    grad = torch.zeros(257)
    one, other = FlatAdam(first, grad, 1e-2), FlatAdam(second, grad, 1e-2)
    for step, gradient in enumerate(gradients(20)):
        grad.copy_(gradient)
        one.step()
        if step == 9:
            second.copy_(first)
            other.load_state_dict(one.state_dict())
        elif step > 9:
            other.step()
    assert torch.equal(first, second)
    assert float(other.state_dict()["step"]) == 20


def test_what_state_dict_gives_does_not_move_with_later_steps():
    flat = FlatAdam(torch.ones(3), torch.ones(3), 0.1)
    before = flat.state_dict()
    flat.step()
    assert float(before["step"]) == 0
    assert before["exp_avg"].tolist() == [0, 0, 0]


def test_the_state_of_another_network_is_refused():
    flat = FlatAdam(torch.ones(3), torch.ones(3), 0.1)
    with pytest.raises(RuntimeError):
        flat.load_state_dict(FlatAdam(torch.ones(4), torch.ones(4), 0.1).state_dict())
    with pytest.raises(KeyError):
        flat.load_state_dict({})


def test_a_kernel_that_is_missing_or_computes_something_else_is_not_used(monkeypatch):
    assert adam._fused_works() == adam._FUSED
    monkeypatch.setattr(torch, "_fused_adam_", lambda *_, **__: None, raising=False)
    assert not adam._fused_works()
    monkeypatch.delattr(torch, "_fused_adam_")
    assert not adam._fused_works()
