"""All parameters of some networks as one tensor, and all their gradients as another.

The one thing to know: after ``FlatParameters`` every parameter and every gradient is a view of a flat tensor.
Whatever else clears gradients drops these views (``grad`` becomes None), and ``zero_grad`` puts them back.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from onward.control.networks.adam import FlatAdam
from onward.errors import ControlError


class FlatParameters:
    """All parameters of ``modules`` as one tensor, and all their gradients as another.

    Gradients come into the views in place, so ``clip_``, ``adam`` and ``lerp_from`` each are one operation.
    Order: modules as given, parameters as registered, no duplicates.
    """

    def __init__(self, modules: nn.Module | Iterable[nn.Module]) -> None:
        listed = [modules] if isinstance(modules, nn.Module) else list(modules)
        self.parameters: list[nn.Parameter] = list(dict.fromkeys(p for m in listed for p in m.parameters()))
        if not self.parameters:
            raise ControlError("FlatParameters was given no parameters: pass modules that have some.")
        size = sum(p.numel() for p in self.parameters)
        flat, self.grad = torch.empty(size), torch.zeros(size)
        self._grads: list[Tensor] = []
        at = 0
        for p in self.parameters:
            end = at + p.numel()
            flat[at:end] = p.detach().reshape(-1)
            p.data = flat[at:end].view(p.shape)
            self._grads.append(self.grad[at:end].view(p.shape))
            p.grad = self._grads[-1]
            at = end
        self.tensor = nn.Parameter(flat)
        """(size,) every parameter; its ``grad`` is every gradient."""
        self.tensor.grad = self.grad

    def adam(self, lr: float, eps: float = 1e-8) -> FlatAdam:
        """Adam over everything as one operation."""
        return FlatAdam(self.tensor, self.grad, lr, eps)

    def zero_grad(self) -> None:
        """Zero the gradients, and ``attach`` them."""
        self.grad.zero_()
        self.attach()

    def attach(self) -> None:
        """Gradients that are no views of ``grad`` (any more) become so again."""
        for p, grad in zip(self.parameters, self._grads, strict=True):
            if p.grad is not grad:
                p.grad = grad

    def clip_(self, max_norm: float) -> Tensor:
        """Scale the gradient to at most ``max_norm`` (L2, all parameters together); gives the norm before."""
        norm = torch.linalg.vector_norm(self.grad)
        if float(norm) > max_norm:
            self.grad.mul_(max_norm / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def lerp_from(self, other: FlatParameters, tau: float) -> None:
        """Move ``tau`` of the way to ``other`` (Polyak averaging; 1 copies)."""
        if tau == 1.0:
            self.tensor.copy_(other.tensor)
        else:
            self.tensor.lerp_(other.tensor, tau)

    def freeze(self) -> None:
        """For target networks: nothing of it takes part in autograd, nor gets a gradient."""
        for p in (*self.parameters, self.tensor):
            p.requires_grad_(False)
            p.grad = None
