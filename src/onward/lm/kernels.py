"""The arithmetic inside a block, in the form that is fastest on CPUs; plain torch everywhere else.

For float32 matrices that are not tiny, oneDNN (through an operator that torch's compiler uses) is 1.2 to 2
times as fast as the library behind ``F.linear``, and faster still with prepacked weights. The operator is
private to torch. It is tested once at import and not used if it is missing or wrong. Base weights are frozen
while an adapter trains, so their backward pass needs no weight gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_SIZE = 160_000  # below this many elements the operator's call overhead (15 µs) outweighs its speed


def _probe() -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]] | None:
    """Returns (x, weight) -> x·weightᵀ and the packing of a weight, or None where oneDNN cannot be used.

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
        with torch.no_grad():
            results = [product(x, weight, None, "none", [], "") for weight in (w, reorder(w))]
            results.append(product(x @ w.t(), w.t(), None, "none", [], ""))
            wanted = [F.linear(x, w), F.linear(x, w), x @ w.t() @ w]
        good = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(results, wanted, strict=True))
    except (AttributeError, RuntimeError, NotImplementedError, TypeError):
        return None
    finally:
        torch.set_num_threads(threads)
    if not good:
        return None
    return (lambda x, weight: product(x, weight, None, "none", [], "")), lambda weight: reorder(weight)


_FAST = _probe()


def _is_fast(weight: Tensor) -> bool:
    return (
        _FAST is not None
        and weight.numel() >= MIN_SIZE
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
    )


def pack(weight: Tensor) -> Tensor | None:
    """Copies ``weight`` to the layout that ``product`` reads fastest; None where that gains nothing."""
    if not _is_fast(weight) or _FAST is None:
        return None
    with torch.no_grad():
        return _FAST[1](weight)


def product(x: Tensor, weight: Tensor, packed: Tensor | None = None) -> Tensor:
    """Computes x·weightᵀ without a graph; ``packed`` is ``pack(weight)`` if available."""
    if _FAST is not None and (packed is not None or _is_fast(weight)):
        return _FAST[0](x, weight if packed is None else packed)
    return F.linear(x, weight)


class _FrozenLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return product(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return product(grad, ctx.weight.t()), None


def linear(x: Tensor, weight: Tensor, packed: Tensor | None = None) -> Tensor:
    """Computes x·weightᵀ, with a gradient for each of the two that requires one."""
    if torch.is_grad_enabled():
        if weight.requires_grad or not _is_fast(weight):
            return F.linear(x, weight)
        if x.requires_grad:
            return _FrozenLinear.apply(x, weight)  # type: ignore[return-value]
    return product(x, weight, packed)


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
    """x / sqrt(mean(x²) + eps) · weight over the last dimension of (tokens, hidden) (1910.07467)."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _RmsNorm.apply(x, weight, eps)  # type: ignore[return-value]
    return (x * _inverse_rms(x, eps)).mul_(weight)


class _SwiGlu(torch.autograd.Function):
    """SwiGLU that saves only its input; silu is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _swiglu(gate_up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_up)
        dgate, dup = result.chunk(2, dim=-1)
        torch.mul(grad, F.silu(gate), out=dup)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=dgate)
        return result


def _swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) · up for (tokens, 2 · intermediate) (2002.05202)."""
    if torch.is_grad_enabled() and gate_up.requires_grad:
        return _SwiGlu.apply(gate_up)  # type: ignore[return-value]
    return _swiglu(gate_up)
