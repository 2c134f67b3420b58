"""Parameters and gradients of networks as two flat tensors, so that what changes them all is one operation.

Invariants: after ``FlatParameters`` every parameter, and its ``grad``, is a view of a flat tensor.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from onward.control.networks.adam import FlatAdam
from onward.errors import ControlError


class FlatParameters:
    """All parameters of ``modules`` as one tensor, and all their gradients as another.

    ``backward``, ``clip_``, ``adam`` and ``lerp_from`` are one operation each. Order: modules as given,
    parameters as registered, no duplicates.
    """

    def __init__(self, modules: nn.Module | Iterable[nn.Module]) -> None:
        listed = [modules] if isinstance(modules, nn.Module) else list(modules)
        self.parameters: list[nn.Parameter] = list(dict.fromkeys(p for m in listed for p in m.parameters()))
        if not self.parameters:
            raise ControlError("FlatParameters was given no parameters: pass modules that have some.")
        size = sum(p.numel() for p in self.parameters)
        flat, self.grad = torch.empty(size), torch.zeros(size)
        at = 0
        for p in self.parameters:
            end = at + p.numel()
            flat[at:end] = p.detach().reshape(-1)
            p.data = flat[at:end].view(p.shape)
            p.grad = self.grad[at:end].view(p.shape)
            at = end
        self.tensor = nn.Parameter(flat)
        """(size,) every parameter; its ``grad`` is every gradient."""
        self.tensor.grad = self.grad

    def adam(self, lr: float, eps: float = 1e-8) -> FlatAdam:
        """Returns Adam over all parameters as one operation."""
        return FlatAdam(self.tensor, self.grad, lr, eps)

    def backward(self, loss: Tensor) -> None:
        """Sets ``grad`` to the gradient of ``loss``. Parameters of other networks get none."""
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=self.grad)

    def clip_(self, max_norm: float) -> Tensor:
        """Scales the gradient to at most ``max_norm`` (L2, all parameters). Returns the norm before."""
        norm = torch.linalg.vector_norm(self.grad)
        if float(norm) > max_norm:
            self.grad.mul_(max_norm / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def lerp_from(self, other: FlatParameters, tau: float) -> None:
        """Moves the parameters by ``tau`` towards ``other`` (Polyak averaging; 1 copies)."""
        if tau == 1.0:
            self.tensor.copy_(other.tensor)
        else:
            self.tensor.lerp_(other.tensor, tau)

    def freeze(self) -> None:
        """Removes the parameters from autograd and drops their gradients, for target networks."""
        for p in (*self.parameters, self.tensor):
            p.requires_grad_(False)
            p.grad = None
