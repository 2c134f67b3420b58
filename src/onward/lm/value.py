"""The critic of PPO: the expected return before each token.

Invariants: the value of a token is computed from the hidden state that *predicts* it (position t − 1), so
that it cannot depend on the action whose baseline it is. Nor does it depend on the row's own return: a head
remembers the rows that it was fitted to, and its values are not used for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from onward.errors import ConfigError
from onward.lm import losses
from onward.lm.cross_fit import cross_fit, folds_of
from onward.lm.options import CriticConfig
from onward.lm.tokens import TokenRow

FILE = "value_head.safetensors"
MAX_REMEMBERED = 50_000
"""Rows that a head remembers; it forgets the oldest, which later data no longer contains."""


class ValueHead:
    """V = h·w + b over normalised hidden states; float32, initially zero."""

    def __init__(self, hidden: int, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.weight = torch.zeros(hidden, device=device)
            self.bias = torch.zeros(1, device=device)
        self.warm = False
        """True once the head was fitted to returns."""
        self.fitted_to: dict[int, None] = {}
        """Digests of the rows that the head was fitted to, in order."""

    @property
    def parameters(self) -> list[Tensor]:
        return [self.weight, self.bias]

    def __call__(self, states: Tensor) -> Tensor:
        """Returns values (positions,) of ``states`` (positions, hidden)."""
        return states.float() @ self.weight + self.bias

    def remember(self, rows: Sequence[TokenRow]) -> None:
        """Records that the head is fitted to ``rows``."""
        self.fitted_to.update(dict.fromkeys(map(_digest, rows)))
        for old in list(self.fitted_to)[:-MAX_REMEMBERED]:
            del self.fitted_to[old]

    @torch.no_grad()
    def judge(
        self,
        rows: Sequence[TokenRow],
        states: Sequence[Tensor],
        returns: Sequence[Tensor],
        units: Sequence[Sequence[Hashable]],
        config: CriticConfig,
        seed: int,
    ) -> list[Tensor]:
        """Returns values per trained token of each row, none of them fitted to the row's own return.

        They begin at this head and are corrected by rows of other ``units``, as in ``folds_of``. A head that
        is new, was fitted to one of ``rows``, or explains none of ``returns`` begins at zero and becomes the
        fit to all rows.
        """
        counts = [len(one) for one in returns]
        before, told = torch.cat(list(states)), torch.cat(list(returns))
        known = any(_digest(row) in self.fitted_to for row in rows)
        weight, bias = (p.detach().cpu() for p in self.parameters)
        anew = not self.warm or known or explained_variance(before @ weight + bias, told) < 0
        if anew:
            weight, bias = torch.zeros_like(weight), torch.zeros_like(bias)
        folds = folds_of(units, seed)
        if config.warmup_steps == 0 or int(folds.max()) == 0:
            self.warm = True
            return list((before @ weight + bias).split(counts))
        fold = folds.repeat_interleave(torch.tensor(counts))
        fit = cross_fit(before, told, fold, (weight, bias), config.warmup_steps)
        if anew:
            self.weight.copy_(fit.weight)
            self.bias.copy_(fit.bias)
            self.fitted_to.clear()
            self.remember(rows)
        self.warm = True
        return list(fit.values.split(counts))

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
        tensors = {"weight": self.weight.detach().cpu(), "bias": self.bias.detach().cpu()}
        save_file(tensors | {"rows": torch.tensor(list(self.fitted_to), dtype=torch.int64)}, folder / FILE)

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
        self.fitted_to = dict.fromkeys(tensors["rows"].tolist()) if "rows" in tensors else {}
        self.warm = True


def _digest(row: TokenRow) -> int:
    """A 64-bit digest. Log-probs are part of it: the same words sampled anew by a changed policy are new."""
    text = repr((row.ids, row.sampled, row.logprobs)).encode() + row.masks_digest()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=True)


def explained_variance(values: Sequence[float] | Tensor, returns: Sequence[float] | Tensor) -> float:
    """1 − Var(R − V)/Var(R): 1 is a perfect critic, 0 one that predicts the mean, below 0 worse than none."""
    v, r = torch.as_tensor(values, dtype=torch.float32), torch.as_tensor(returns, dtype=torch.float32)
    variance = float(r.var(correction=0)) if len(r) else 0.0
    return 0.0 if variance < 1e-12 else 1.0 - float((r - v).var(correction=0)) / variance
