"""Hand-written kernels against plain torch, values and gradients, with and without the fast path."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from onward.lm import kernels


@pytest.fixture(params=["fast", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kernels, "MIN_SIZE", 0)
    if request.param == "plain":
        monkeypatch.setattr(kernels, "_FAST", None)
    return str(request.param)


def test_frozen_products_have_the_values_and_gradients_of_linear(path: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 40, requires_grad=True)
    weight, base, grad = torch.randn(24, 40), torch.randn(7, 24), torch.randn(7, 24)
    wanted = F.linear(x, weight)
    (slope,) = torch.autograd.grad(wanted, x, grad)
    got = kernels.linear(x, weight)
    assert torch.allclose(got, wanted, atol=1e-5)
    assert torch.allclose(torch.autograd.grad(got, x, grad)[0], slope, atol=1e-5)
    assert torch.allclose(kernels.linear_add(base, x, weight), base + wanted, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(kernels.product(x, weight, kernels.pack(weight)), wanted, atol=1e-5)
        assert torch.allclose(kernels.product(grad, weight.t()), slope, atol=1e-5)


def test_a_trained_weight_gets_its_gradient(path: str) -> None:
    x, weight = torch.randn(5, 40, requires_grad=True), torch.randn(24, 40, requires_grad=True)
    kernels.linear(x, weight).sum().backward()
    assert weight.grad is not None
    assert torch.allclose(weight.grad, x.sum(0).expand(24, 40), atol=1e-5)


def test_rms_norm_equals_torch() -> None:
    x = torch.randn(6, 12, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(12, dtype=torch.float64, requires_grad=True)
    wanted, got = F.rms_norm(x, (12,), weight, 1e-5), kernels.rms_norm(x, weight, 1e-5)
    assert torch.allclose(got, wanted)
    grad = torch.randn(6, 12, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad(got, [x, weight], grad),
        torch.autograd.grad(wanted, [x, weight], grad),
        strict=True,
    ):
        assert torch.allclose(a, b)
    with torch.no_grad():
        assert torch.allclose(kernels.rms_norm(x, weight, 1e-5), wanted)


def test_swiglu_equals_its_formula() -> None:
    x = torch.randn(6, 10, dtype=torch.float64, requires_grad=True)
    gate, up = x.chunk(2, dim=-1)
    wanted, got = F.silu(gate) * up, kernels.swiglu(x)
    grad = torch.randn(6, 5, dtype=torch.float64)
    assert torch.allclose(got, wanted)
    (a,) = torch.autograd.grad(got, x, grad)
    (b,) = torch.autograd.grad(wanted, x, grad)
    assert torch.allclose(a, b)


def test_trying_the_fast_product_leaves_no_team_of_threads_behind() -> None:
    """With two teams in a process OpenMP sleeps at every wait: sampling lost a quarter of its speed."""
    program = (
        "import os, onward.lm, torch\n"
        "torch.set_num_threads(2)\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "import onward.lm.kernels\n"
        "print(len(os.listdir('/proc/self/task')) - before, torch.get_num_threads())\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["0", "2"]
