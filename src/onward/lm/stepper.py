"""One optimiser step that is taken only when it is finite.

Parameters that are not float32 are trained through float32 copies and accumulate their gradients in float32,
since a change below half a bit of bfloat16 would vanish. The loss of a float16 network is scaled up, since
its gradients would vanish. Callers multiply the loss that they backpropagate by ``scale``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from onward.lm.adamw import AdamW

_FIRST_SCALE = 1024.0
_GROW_AFTER = 200


class Stepper:
    """AdamW over ``parameters``, and over those of a critic with a separate rate and clipping."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        learning_rate: float,
        max_grad_norm: float,
        *,
        weight_decay: float = 0.0,
        critic: Sequence[Tensor] = (),
        critic_learning_rate: float = 0.0,
    ) -> None:
        self.parameters, self.critic = list(parameters), list(critic)
        self.max_grad_norm = max_grad_norm
        self.learning_rate = learning_rate
        self.masters = [p if p.dtype == torch.float32 else p.detach().float() for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad_dtype = torch.float32
        groups: list[dict[str, Any]] = [{"params": self.masters, "lr": learning_rate}]
        if self.critic:
            groups.append({"params": self.critic, "lr": critic_learning_rate})
        self.optimizer = AdamW(groups, betas=(0.9, 0.95), weight_decay=weight_decay)
        self.scale = 1.0
        self.skipped = 0
        """Steps not taken because loss or gradient was not finite."""
        self.finite = True
        """True when the last step was finite."""
        self._good = 0

    def scale_for(self, kind: torch.dtype) -> None:
        """Sets the loss scale for the dtype that the network computes in."""
        if kind == torch.float16:
            self.scale = _FIRST_SCALE

    @property
    def rate(self) -> float:
        """Learning rate of the next step of ``parameters``."""
        return self.optimizer.param_groups[0]["lr"]

    def scale_rate(self, factor: float) -> None:
        """Sets the rate of the next steps to ``factor`` times the learning rate; not a critic's rate."""
        self.optimizer.param_groups[0]["lr"] = factor * self.learning_rate

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Makes the parameters require gradients inside the context."""
        for parameter in (*self.parameters, *self.critic):
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            for parameter in (*self.parameters, *self.critic):
                parameter.requires_grad_(False)

    def step(self, loss: float = 0.0) -> tuple[float, bool]:
        """Takes a step; returns (gradient norm before clipping, True if the step was taken) and clears
        gradients. ``loss`` is unscaled and is only checked for being finite."""
        self._collect()
        norm = float(torch.nn.utils.clip_grad_norm_(self.masters, self.max_grad_norm))
        other = 0.0
        if self.critic:
            other = float(torch.nn.utils.clip_grad_norm_(self.critic, self.max_grad_norm))
        self.finite = all(abs(x) < float("inf") for x in (norm, other, loss))  # false for NaN as well
        if self.finite:
            self.optimizer.step()
            with torch.no_grad():
                for parameter, master in zip(self.parameters, self.masters, strict=True):
                    if master is not parameter:
                        parameter.copy_(master)
        else:
            self.skipped += 1
        self._rescale()
        self.discard()
        return norm, self.finite

    def discard(self) -> None:
        """Discards the accumulated gradients."""
        self.optimizer.zero_grad()
        for parameter in self.parameters:
            parameter.grad = None

    def _collect(self) -> None:
        """Puts unscaled float32 gradients on the masters and the critic."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad
        if self.scale != 1.0:
            for tensor in (*self.masters, *self.critic):
                if tensor.grad is not None:
                    tensor.grad.div_(self.scale)

    def _rescale(self) -> None:
        if self.scale == 1.0:
            return
        self._good = self._good + 1 if self.finite else 0
        if not self.finite:
            self.scale = max(self.scale / 2, 2.0)
        elif self._good >= _GROW_AFTER:
            self.scale, self._good = min(self.scale * 2, 65536.0), 0

    def state(self) -> dict[str, Any]:
        return {
            "masters": [m.detach().cpu() for m in self.masters],
            "optimizer": self.optimizer.state_dict(),
            "skipped": self.skipped,
            "scale": self.scale,
            "good": self._good,
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        for parameter, master, saved in zip(self.parameters, self.masters, state["masters"], strict=True):
            master.copy_(saved)
            if master is not parameter:
                parameter.copy_(master)
        self.optimizer.load_state_dict(state["optimizer"])
        self.skipped, self.scale, self._good = (
            int(state["skipped"]),
            float(state["scale"]),
            int(state["good"]),
        )
        self.finite = True


class Stepping:
    """Base class of learners that train by a stepper; reports its skipped steps."""

    stepper: Stepper

    @property
    def skipped_steps(self) -> int:
        """Steps not taken because loss or gradient was not finite."""
        return self.stepper.skipped

    @property
    def finite(self) -> bool:
        """True when the last step was finite; no checkpoint should follow one that was not."""
        return self.stepper.finite
