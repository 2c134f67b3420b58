"""The critic of PPO: the expected return before each token.

Invariants: the value of a token is computed from the hidden state that *predicts* it (position t − 1), so
that it cannot depend on the action whose baseline it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from onward.errors import ConfigError
from onward.lm import losses
from onward.lm.options import CriticConfig
from onward.lm.stepper import Stepper

FILE = "value_head.safetensors"


class ValueHead:
    """V = h·w + b over normalised hidden states; float32, initially zero."""

    def __init__(self, hidden: int, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.weight = torch.zeros(hidden, device=device)
            self.bias = torch.zeros(1, device=device)
        self.warm = False
        """True once the head was fitted to returns; a new head is warmed up before its values are used."""

    @property
    def parameters(self) -> list[Tensor]:
        return [self.weight, self.bias]

    def __call__(self, states: Tensor) -> Tensor:
        """Returns values (positions,) of ``states`` (positions, hidden)."""
        return states.float() @ self.weight + self.bias

    def warm_up(self, states: Tensor, returns: Tensor, config: CriticConfig, stepper: Stepper) -> None:
        """Fits the head alone to ``returns`` (positions,), all of them in each step; policy unchanged."""
        states, returns = states.detach().float(), returns.to(states.device)
        optimizer = torch.optim.AdamW(self.parameters, lr=config.learning_rate, weight_decay=0.0)
        with stepper.tracking(), torch.enable_grad():
            for _ in range(config.warmup_steps):
                optimizer.zero_grad(set_to_none=True)
                values = self(states)
                losses.value_loss(values, values.detach(), returns, clip=None).mean().backward()
                optimizer.step()
        stepper.discard()
        self.warm = True

    def backward(
        self,
        hidden: Tensor,
        old: Tensor,
        returns: Tensor,
        weight: float,
        config: CriticConfig,
        scale: float = 1.0,
    ) -> tuple[float, Tensor | None]:
        """Adds the gradient of coef · Σ weight · value loss; returns (loss, gradient of ``hidden``)."""
        with torch.enable_grad():
            states = hidden.detach().float().requires_grad_(config.trains_policy)
            loss = losses.value_loss(self(states), old, returns, clip=config.value_clip).sum() * weight
            (config.coef * scale * loss).backward()
        return float(loss.detach()), states.grad

    def save(self, folder: Path) -> None:
        save_file({"weight": self.weight.detach().cpu(), "bias": self.bias.detach().cpu()}, folder / FILE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Loads the head's parameters. Raises ConfigError when the file is of a network of another width."""
        tensors = load_file(folder / FILE)
        if tensors["weight"].shape != self.weight.shape:
            raise ConfigError(
                f"The value head in {folder} is for {len(tensors['weight'])} hidden units and this network "
                f"has {len(self.weight)}: start without it."
            )
        self.weight.copy_(tensors["weight"])
        self.bias.copy_(tensors["bias"])
        self.warm = True


def explained_variance(values: Sequence[float] | Tensor, returns: Sequence[float] | Tensor) -> float:
    """1 − Var(R − V)/Var(R): 1 is a perfect critic, 0 one that predicts the mean, below 0 worse than none."""
    v, r = torch.as_tensor(values, dtype=torch.float32), torch.as_tensor(returns, dtype=torch.float32)
    variance = float(r.var(correction=0)) if len(r) else 0.0
    return 0.0 if variance < 1e-12 else 1.0 - float((r - v).var(correction=0)) / variance
