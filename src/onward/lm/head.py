"""Log-probs of chosen tokens from hidden states, without keeping two copies of the logits.

The one thing to know: the backward pass overwrites the saved probabilities, so a result can be
differentiated once. Float32 throughout; the temperature of each position divides its logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onward.lm.kernels import product

CHUNK = 512  # positions whose logits exist at once where no gradient is wanted


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        probs, logp, entropy = _softmax(hidden, head, targets, temperature)
        ctx.save_for_backward(hidden, head, targets, temperature)
        ctx.probs = probs
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # type: ignore[override]
        hidden, head, targets, temperature = ctx.saved_tensors
        scale = grad / temperature
        dlogits = ctx.probs.mul_(-scale[:, None])  # d logp / d logits = (onehot - p) / T
        ctx.probs = None
        dlogits[torch.arange(len(targets), device=targets.device), targets] += scale
        dhidden = product(dlogits, head.t()) if ctx.needs_input_grad[0] else None
        dhead = dlogits.t() @ hidden if ctx.needs_input_grad[1] else None
        return dhidden, dhead, None, None


def _softmax(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    logits = product(hidden, head).float()
    if not bool((temperature == 1).all()):
        logits.div_(temperature[:, None])
    logits = logits.log_softmax(-1)
    logp = logits.gather(1, targets[:, None]).squeeze(1)
    probs = logits.exp()
    return probs, logp, -torch.linalg.vecdot(probs, logits)


def token_logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """``(logp, entropy)`` in nats, both (positions,): log softmax(hidden·headᵀ / T)[target] and its entropy.

    ``logp`` is differentiable with respect to ``hidden`` and ``head``; ``entropy`` is a measurement.
    """
    if torch.is_grad_enabled() and (hidden.requires_grad or head.requires_grad):
        return _TokenLogprobs.apply(hidden, head, targets, temperature)  # type: ignore[return-value]
    parts = [
        _softmax(h, head, t, temp)[1:]
        for h, t, temp in zip(
            hidden.split(CHUNK), targets.split(CHUNK), temperature.split(CHUNK), strict=True
        )
    ]
    if not parts:
        return hidden.new_zeros(0), hidden.new_zeros(0)
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
