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
    bias = torch.randn(24)
    wanted = F.linear(x, weight)
    (slope,) = torch.autograd.grad(wanted, x, grad)
    got = kernels.linear(x, weight)
    assert torch.allclose(got, wanted, atol=1e-5)
    assert torch.allclose(torch.autograd.grad(got, x, grad)[0], slope, atol=1e-5)
    assert torch.allclose(kernels.linear_add(base, x, weight), base + wanted, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(kernels.product(x, weight, kernels.pack(weight)), wanted, atol=1e-5)
        assert torch.allclose(kernels.product(grad, weight.t()), slope, atol=1e-5)
        packed = kernels.product(x, weight, kernels.pack(weight), bias)
        assert torch.allclose(packed, wanted + bias, atol=1e-5)
    biased = kernels.linear(x, weight, None, bias)
    assert torch.allclose(biased, wanted + bias, atol=1e-5)
    assert torch.allclose(torch.autograd.grad(biased, x, grad)[0], slope, atol=1e-5)


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


def test_rms_norm_of_heads_has_a_gradient_per_head() -> None:
    """Queries and keys of a token are normalised in one call, with the weights of each."""
    x = torch.randn(6, 3, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    wanted, got = F.rms_norm(x, (8,), None, 1e-5) * weight, kernels.rms_norm(x, weight, 1e-5)
    grad = torch.randn(6, 3, 8, dtype=torch.float64)
    assert torch.allclose(got, wanted)
    for a, b in zip(
        torch.autograd.grad(got, [x, weight], grad),
        torch.autograd.grad(wanted, [x, weight], grad),
        strict=True,
    ):
        assert torch.allclose(a, b)


def stored(result: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that the graph stores for the backward pass of the last operation."""
    return list(result.grad_fn.saved_tensors)  # type: ignore[union-attr]


def test_geglu_equals_its_formula_and_stores_only_its_input() -> None:
    x = torch.randn(6, 10, dtype=torch.float64, requires_grad=True)
    gate, up = x.chunk(2, dim=-1)
    inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    wanted, got = 0.5 * gate * (1 + torch.tanh(inner)) * up, kernels.geglu(x)
    assert torch.allclose(got, wanted)
    assert [one.data_ptr() for one in stored(got)] == [x.data_ptr()]
    grad = torch.randn(6, 5, dtype=torch.float64)
    (a,) = torch.autograd.grad(got, x, grad)
    (b,) = torch.autograd.grad(wanted, x, grad)
    assert torch.allclose(a, b)
    with torch.no_grad():
        assert torch.allclose(kernels.geglu(x), wanted)


def test_capped_scores_are_not_rounded_to_half_precision() -> None:
    """Scores of a spread of 25 under Gemma 2's cap of 50: steps of bfloat16 there are an eighth and more.
    Only the rounding of weights and result to 8 bits is left."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 16, 32, generator=generator) for _ in range(3))
    q, k, v = (one.bfloat16() for one in (q * 3, k * 3, v))
    mask = torch.zeros(16, 16)
    scores = torch.einsum("bhid,bhjd->bhij", q.double(), k.double()) * 0.5
    exact = (50 * torch.tanh(scores / 50)).softmax(-1) @ v.double()
    found = kernels.attention(q, k, v, mask.bfloat16(), 0.5, 50.0)
    assert found.dtype == torch.bfloat16
    assert float((found.double() - exact).abs().max()) < 2.0**-7 * float(v.double().abs().max())


def test_attention_with_a_cap_equals_its_formula() -> None:
    q, k, v = (torch.randn(2, 3, 4, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.zeros(4, 4, dtype=torch.float64).masked_fill(torch.ones(4, 4).triu(1) > 0, float("-inf"))
    plain = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    assert torch.allclose(kernels.attention(q, k, v, mask, 0.3, None), plain)
    assert torch.allclose(kernels.attention(q, k, v, mask, 0.3, 1e4), plain, atol=1e-6)
    scores = 0.5 * torch.tanh(torch.einsum("bhid,bhjd->bhij", q, k) * 0.3 / 0.5) + mask
    capped = torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)
    assert torch.allclose(kernels.attention(q, k, v, mask, 0.3, 0.5), capped, atol=1e-6)


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
