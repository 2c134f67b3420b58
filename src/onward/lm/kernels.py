"""The arithmetic inside a block, in the form that is fastest on CPUs; plain torch everywhere else.

For float32 matrices that are not tiny, oneDNN (through an operator that torch's compiler uses) is 1.2 to 2
times as fast as the library behind ``F.linear``, and faster still with prepacked weights; so it is for
bfloat16 where the CPU multiplies it. The operator is private to torch. It is tested once at import and not
used if it is missing or wrong. On a GPU every function is plain torch. Base weights are frozen while an
adapter trains, so their backward pass needs no weight gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_SIZE = 160_000  # below this many elements the operator's call overhead (15 µs) outweighs its speed


_Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _probe() -> tuple[_Product, Callable[[Tensor], Tensor]] | None:
    """Returns (x, weight, bias) -> x·weightᵀ + bias and the packing of a weight, or None where oneDNN cannot
    be used.

    Runs on one thread: parallel work here would leave a team of threads behind. With a second team in the
    process (the sampler's), OpenMP sleeps at every wait, which costs sampling a quarter of its speed.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        product = torch.ops.mkldnn._linear_pointwise.default
        reorder = torch.ops.mkldnn._reorder_linear_weight.default
        generator = torch.Generator().manual_seed(0)
        x, w = torch.randn(3, 40, generator=generator), torch.randn(24, 40, generator=generator)
        bias = x.new_ones(24)
        with torch.no_grad():
            results = [product(x, weight, None, "none", [], "") for weight in (w, reorder(w))]
            results.append(product(x @ w.t(), w.t(), None, "none", [], ""))
            results.append(product(x, reorder(w), bias, "none", [], ""))
            wanted = [F.linear(x, w), F.linear(x, w), x @ w.t() @ w, F.linear(x, w, bias)]
        good = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(results, wanted, strict=True))
    except (AttributeError, RuntimeError, NotImplementedError, TypeError):
        return None
    finally:
        torch.set_num_threads(threads)
    if not good:
        return None
    return (lambda x, weight, bias: product(x, weight, bias, "none", [], "")), lambda weight: reorder(weight)


_FAST = _probe()


def _fast_dtypes() -> frozenset[torch.dtype]:
    """Returns the dtypes that oneDNN multiplies on this CPU: bfloat16 needs instructions of its own."""
    try:
        half = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        half = False
    return frozenset({torch.float32, torch.bfloat16} if half else {torch.float32})


_FAST_DTYPES = _fast_dtypes()


def _is_fast(weight: Tensor) -> bool:
    return (
        _FAST is not None
        and weight.numel() >= MIN_SIZE
        and weight.device.type == "cpu"
        and weight.dtype in _FAST_DTYPES
    )


def pack(weight: Tensor) -> Tensor | None:
    """Copies ``weight`` to the layout that ``product`` reads fastest; None where that gains nothing."""
    if not _is_fast(weight) or _FAST is None:
        return None
    with torch.no_grad():
        return _FAST[1](weight)


def product(x: Tensor, weight: Tensor, packed: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Computes x·weightᵀ + bias without a graph; ``packed`` is ``pack(weight)`` if available."""
    if _FAST is not None and (packed is not None or _is_fast(weight)):
        return _FAST[0](x, weight if packed is None else packed, bias)
    return F.linear(x, weight, bias)


class _FrozenLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return product(x, weight, None, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return product(grad, ctx.weight.t()), None, None


def linear(x: Tensor, weight: Tensor, packed: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Computes x·weightᵀ + bias, with a gradient for each of them that requires one. A bias is trained only
    together with its weight."""
    if torch.is_grad_enabled():
        if weight.requires_grad or not _is_fast(weight):
            return F.linear(x, weight, bias)
        if x.requires_grad:
            return _FrozenLinear.apply(x, weight, bias)  # type: ignore[return-value]
    return product(x, weight, packed, bias)


def linear_add(base: Tensor, x: Tensor, weight: Tensor, packed: Tensor | None = None) -> Tensor:
    """Computes base + x·weightᵀ."""
    if packed is None and not _is_fast(weight):
        return torch.addmm(base, x, weight.t())
    return base + linear(x, weight, packed)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = _inverse_rms(x, eps)
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        unit = x * scale
        dweight = (grad * unit).sum(0) if ctx.needs_input_grad[1] else None
        grad = grad * weight
        mean = torch.linalg.vecdot(grad, unit).div_(x.shape[-1]).unsqueeze_(-1)
        return grad.sub_(unit.mul_(mean)).mul_(scale), dweight, None


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze_(-1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension of (tokens, …) (1910.07467). The first
    dimension of ``x`` is absent in ``weight``."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _RmsNorm.apply(x, weight, eps)  # type: ignore[return-value]
    return (x * _inverse_rms(x, eps)).mul_(weight)


class _Activation(NamedTuple):
    forward: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor, Tensor], object]
    """Takes the outer gradient and the input; writes the gradient of the input to its third argument."""


def _silu_gradient(grad: Tensor, x: Tensor, out: Tensor) -> None:
    torch.ops.aten.silu_backward.grad_input(grad, x, grad_input=out)


def _gelu_gradient(grad: Tensor, x: Tensor, out: Tensor) -> None:
    torch.ops.aten.gelu_backward.grad_input(grad, x, approximate="tanh", grad_input=out)


_SILU = _Activation(F.silu, _silu_gradient)
_GELU_TANH = _Activation(partial(F.gelu, approximate="tanh"), _gelu_gradient)


class _Gated(torch.autograd.Function):
    """A gated activation that saves only its input; the activation is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, activation: _Activation) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.activation = activation
        return _gated_product(gate_up, activation)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_up)
        dgate, dup = result.chunk(2, dim=-1)
        torch.mul(grad, ctx.activation.forward(gate), out=dup)
        ctx.activation.gradient(grad * up, gate, dgate)
        return result, None


def _gated_product(gate_up: Tensor, activation: _Activation) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return activation.forward(gate).mul_(up)


def _gated(gate_up: Tensor, activation: _Activation) -> Tensor:
    if torch.is_grad_enabled() and gate_up.requires_grad:
        return _Gated.apply(gate_up, activation)  # type: ignore[return-value]
    return _gated_product(gate_up, activation)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) · up for (tokens, 2 · intermediate) (2002.05202)."""
    return _gated(gate_up, _SILU)


def geglu(gate_up: Tensor) -> Tensor:
    """gelu(gate) · up, with the approximation of gelu by tanh, for (tokens, 2 · intermediate)."""
    return _gated(gate_up, _GELU_TANH)


GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": swiglu, "gelu_tanh": geglu}


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap) (2408.00118)."""
    return (x / cap).tanh() * cap


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, cap: float | None) -> Tensor:
    """softmax(cap(q·kᵀ · scale) + mask)·v over the last two dimensions; a ``cap`` stores all scores. They are
    float32 in half precision: near a cap of 50, bfloat16 has steps of a quarter."""
    if cap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = soft_cap(torch.matmul(q.to(exact), k.to(exact).transpose(-1, -2)) * scale, cap) + mask
    return torch.matmul(scores.softmax(-1).to(v.dtype), v)
