"""Log-probs of chosen tokens from hidden states, and the gradient back through the output head.

Logits exist for only ``CHUNK`` positions at a time, so they stay in the processor's cache and memory does not
grow with the vocabulary. The backward pass therefore happens inside, chunk by chunk; the caller supplies d
loss / d log-prob. The softmax is float32 whatever the network is; the temperature of each position divides
its logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from onward.lm.kernels import product, soft_cap

CHUNK = 64


def token_logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: Tensor, *, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """``(logp, entropy)`` in nats, both (positions,) float32, without a graph. logp = log
    softmax(hidden·headᵀ / T)[target]; entropy is that of the same distribution. ``cap`` is
    ``Shape.logit_cap``."""
    logp, entropy = _results(hidden)
    with torch.no_grad():
        for part in _chunks(len(hidden)):
            _softmax(hidden[part], head, targets[part], temperature[part], logp[part], entropy[part], cap)
    return logp, entropy


def backward_logprobs(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    temperature: Tensor,
    slope: Callable[[Tensor, slice], Tensor],
    *,
    entropy_slope: Tensor | None = None,
    also: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """As ``token_logprobs``, and backpropagates a loss through ``head`` and ``hidden`` to the parameters.

    ``slope(logp, part)`` returns d loss / d logp for the positions ``part``. The loss must be a sum over
    positions, as every loss of ``losses`` is. ``entropy_slope`` (positions,) is d loss / d entropy; ``also``
    (positions, hidden) is a gradient that reaches ``hidden`` from elsewhere (the value head).
    """
    logp, entropy = _results(hidden)
    states = hidden.detach()
    gradient = torch.empty_like(states)
    with torch.no_grad():
        for part in _chunks(len(hidden)):
            probs, capped = _softmax(
                states[part], head, targets[part], temperature[part], logp[part], entropy[part], cap
            )
            scale = slope(logp[part], part) / temperature[part]
            if entropy_slope is None:
                dlogits = probs.mul_(-scale[:, None])  # d logp / d logits = (onehot - p) / T
            else:  # d entropy / d logits = -p (log p + entropy) / T
                strength = (entropy_slope[part] / temperature[part])[:, None]
                surprise = probs.clamp_min(1e-30).log() + entropy[part, None]
                dlogits = probs * (-scale[:, None] - strength * surprise)
            dlogits[torch.arange(len(scale), device=scale.device), targets[part]] += scale
            if capped is not None and cap is not None:  # d cap·tanh(x / cap) / d x = 1 - tanh²
                dlogits.mul_(1 - (capped / cap) ** 2)
            gradient[part] = product(dlogits.to(head.dtype), head.t())
            if head.requires_grad:
                _accumulate(head, dlogits, states[part])
    hidden.backward(gradient if also is None else gradient + also.to(gradient.dtype))
    return logp, entropy


def _accumulate(head: Tensor, dlogits: Tensor, states: Tensor) -> None:
    """Adds a chunk's gradient to ``head.grad``, in ``head.grad_dtype``.

    That is float32 where a stepper trains the head: in bfloat16 a chunk's contribution soon falls below half
    a bit of the sum and vanishes.
    """
    if head.grad is None:
        head.grad = torch.zeros_like(head, dtype=head.grad_dtype)
    kind = head.grad.dtype
    head.grad.addmm_(dlogits.t().to(kind), states.to(kind))


def _results(hidden: Tensor) -> tuple[Tensor, Tensor]:
    both = hidden.new_empty(2, len(hidden), dtype=torch.float32)
    return both[0], both[1]


def _chunks(count: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


def _softmax(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    temperature: Tensor,
    logp: Tensor,
    entropy: Tensor,
    cap: float | None,
) -> tuple[Tensor, Tensor | None]:
    """Returns probabilities (positions, vocab), and the capped logits if there is a cap; fills ``logp`` and
    ``entropy``."""
    logits = product(hidden, head).float()
    capped = None
    if cap is not None:
        capped = soft_cap(logits, cap)
        logits = capped.clone()
    if not bool((temperature == 1).all()):
        logits.div_(temperature[:, None])
    logits = logits.log_softmax(-1)
    probs = logits.exp()
    logp.copy_(logits.gather(1, targets[:, None]).squeeze(1))
    entropy.copy_(logits.mul_(probs).sum(-1).neg_())
    return probs, capped
