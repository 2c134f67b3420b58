"""Adam over one flat tensor, for updates so small that the optimiser's own Python time matters.

With one tensor, ``torch.optim.Adam`` spends two to four times as long around its fused kernel as in it. This
module calls the kernel itself. PyTorch does not promise to keep that function, so it is tested once at
import. Where it is missing or gives another result, plain operations do the same.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Betas = tuple[float, float]
_NAMES = ("step", "exp_avg", "exp_avg_sq")


class FlatAdam:
    """Adam (Kingma & Ba 2015, algorithm 1) on ``tensor`` (size,) with the gradient ``grad`` (size,).

    ``moments``: tensors to use as its own (``step`` (), ``exp_avg`` and ``exp_avg_sq`` (size,)); None for new
    ones. Steps are those of ``torch.optim.Adam``. The learning rate ``lr`` can be set at any time.
    """

    betas: Betas = (0.9, 0.999)

    def __init__(
        self,
        tensor: Tensor,
        grad: Tensor,
        lr: float,
        eps: float = 1e-8,
        moments: dict[str, Tensor] | None = None,
    ) -> None:
        self.lr, self.eps = lr, eps
        self.tensor, self._grad = tensor.detach(), grad
        self._moments = moments or {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(grad),
            "exp_avg_sq": torch.zeros_like(grad),
        }

    @torch.no_grad()
    def step(self) -> None:
        """Makes one step."""
        kernel = _fused if _FUSED else _plain
        self._moments["step"].add_(1)
        kernel(self.tensor, self._grad, self._moments, self.lr, self.betas, self.eps)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns copies of ``step`` and the moments."""
        return {name: self._moments[name].clone() for name in _NAMES}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the moments. Raises KeyError or RuntimeError where ``state`` does not fit."""
        for name in _NAMES:
            own = self._moments[name]
            own.copy_(torch.as_tensor(state[name]).reshape(own.shape))


def _fused(
    tensor: Tensor,
    grad: Tensor,
    moments: dict[str, Tensor],
    lr: float,
    betas: Betas,
    eps: float,
) -> None:
    torch._fused_adam_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        [tensor],
        [grad],
        [moments["exp_avg"]],
        [moments["exp_avg_sq"]],
        [],
        [moments["step"]],
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def _plain(
    tensor: Tensor,
    grad: Tensor,
    moments: dict[str, Tensor],
    lr: float,
    betas: Betas,
    eps: float,
) -> None:
    mean, squares, step = moments["exp_avg"], moments["exp_avg_sq"], float(moments["step"])
    mean.lerp_(grad, 1 - betas[0])
    squares.mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])
    scale = math.sqrt(1 - betas[1] ** step)
    tensor.addcdiv_(mean, (squares.sqrt() / scale).add_(eps), value=-lr / (1 - betas[0] ** step))


def _fused_works() -> bool:
    """True where the kernel exists and makes the same step as plain operations."""
    found: list[Tensor] = []
    for kernel in (_fused, _plain):
        tensor, grad = torch.ones(5), torch.linspace(-1, 1, 5)
        moments = {"step": torch.ones(()), "exp_avg": torch.ones(5), "exp_avg_sq": torch.ones(5)}
        try:
            kernel(tensor, grad, moments, 0.1, FlatAdam.betas, 1e-8)
        except (AttributeError, RuntimeError, TypeError):
            return False
        found.append(torch.cat((tensor, moments["exp_avg"], moments["exp_avg_sq"])))
    return torch.allclose(*found, rtol=1e-5, atol=1e-6)


_FUSED = _fused_works()
