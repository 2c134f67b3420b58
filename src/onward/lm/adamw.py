"""AdamW by PyTorch's function for it, without the import of PyTorch's compiler.

``torch.optim.AdamW`` imports ``torch._dynamo`` when it is made, and with it SymPy and the distributed
tensors: two seconds of computing in each training process, which compiles nothing. The steps are those of
``torch.optim.AdamW`` to the bit, since both call the same function. The saved state has the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

_MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """AdamW (Loshchilov & Hutter 2019) over ``groups``: dictionaries with ``params`` and ``lr``.

    The rate of a group can be set at any time. A parameter without a gradient is left as it is.
    """

    eps = 1e-8

    def __init__(
        self, groups: Sequence[dict[str, Any]], *, betas: tuple[float, float], weight_decay: float = 0.0
    ) -> None:
        self.param_groups = [{"params": list(group["params"]), "lr": group["lr"]} for group in groups]
        self.betas, self.weight_decay = betas, weight_decay
        self._state: dict[int, dict[str, Tensor]] = {}

    @property
    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        """Takes a step along the gradients of the parameters."""
        first = 0
        for group in self.param_groups:
            numbered = enumerate(group["params"], first)
            moved = [(number, parameter) for number, parameter in numbered if parameter.grad is not None]
            first += len(group["params"])
            states = [self._state_of(number, parameter) for number, parameter in moved]
            adamw(
                [parameter for _, parameter in moved],
                [parameter.grad for _, parameter in moved],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=group["lr"],
                weight_decay=self.weight_decay,
                eps=self.eps,
                maximize=False,
            )

    def zero_grad(self) -> None:
        """Discards the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the rates and, for the number of each parameter that was moved, its steps and moments."""
        return {
            "state": {number: dict(state) for number, state in self._state.items()},
            "param_groups": [{"lr": group["lr"]} for group in self.param_groups],
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restores what ``state_dict`` returned, here or in ``torch.optim.AdamW``."""
        for group, other in zip(self.param_groups, saved["param_groups"], strict=True):
            group["lr"] = other["lr"]
        parameters = self._parameters
        self._state = {
            number: {
                "step": torch.as_tensor(state["step"], dtype=torch.float32).cpu().clone(),
                **{name: state[name].to(parameters[number], copy=True) for name in _MOMENTS},
            }
            for number, state in saved["state"].items()
        }

    def _state_of(self, number: int, parameter: Tensor) -> dict[str, Tensor]:
        if number not in self._state:
            self._state[number] = {
                "step": torch.tensor(0.0, dtype=torch.float32),
                **{name: torch.zeros_like(parameter) for name in _MOMENTS},
            }
        return self._state[number]
