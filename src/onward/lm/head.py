"""Log-probs of chosen tokens from hidden states, and the gradient back through the output head.

Logits exist for only ``CHUNK`` positions at a time, so they stay in the processor's cache and memory does not
grow with the vocabulary. The backward pass therefore happens inside, chunk by chunk; the caller supplies d
loss / d log-prob. The softmax is float32 whatever the network is; the temperature of each position divides
its logits. Under a mask it is over the allowed tokens alone: the gradient of every other logit is exactly 0,
and where few are allowed no other logit is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from onward.errors import TrainingError
from onward.lm.kernels import product, soft_cap
from onward.lm.permitted import Part, Permitted

CHUNK = 64
At = Tensor | slice
"""Positions that are computed together."""


def token_logprobs(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    temperature: Tensor,
    *,
    cap: float | None = None,
    permitted: Permitted | None = None,
) -> tuple[Tensor, Tensor]:
    """``(logp, entropy)`` in nats, both (positions,) float32, without a graph. logp = log
    softmax(hidden·headᵀ / T)[target]; entropy is that of the same distribution. ``cap`` is
    ``Shape.logit_cap``; ``permitted`` are masks of the positions."""
    logp, entropy = _results(hidden)
    with torch.no_grad():
        for part in _parts(targets, head, permitted):
            _, _, logp[part.at], entropy[part.at] = _softmax(
                hidden[part.at], head, part, temperature[part.at], cap
            )
    return logp, entropy


def backward_logprobs(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    temperature: Tensor,
    slope: Callable[[Tensor, At], Tensor],
    *,
    entropy_slope: Tensor | None = None,
    also: Tensor | None = None,
    cap: float | None = None,
    permitted: Permitted | None = None,
) -> tuple[Tensor, Tensor]:
    """As ``token_logprobs``, and backpropagates a loss through ``head`` and ``hidden`` to the parameters.

    ``slope(logp, at)`` returns d loss / d logp for the positions ``at``. The loss must be a sum over
    positions, as every loss of ``losses`` is. ``entropy_slope`` (positions,) is d loss / d entropy; ``also``
    (positions, hidden) is a gradient that reaches ``hidden`` from elsewhere (the value head).
    """
    logp, entropy = _results(hidden)
    states = hidden.detach()
    gradient = torch.empty_like(states)
    with torch.no_grad():
        for part in _parts(targets, head, permitted):
            at = part.at
            probs, capped, found, uncertain = _softmax(states[at], head, part, temperature[at], cap)
            logp[at], entropy[at] = found, uncertain
            scale = slope(found, at) / temperature[at]
            if entropy_slope is None:
                dlogits = probs.mul_(-scale[:, None])  # d logp / d logits = (onehot - p) / T
            else:  # d entropy / d logits = -p (log p + entropy) / T
                strength = (entropy_slope[at] / temperature[at])[:, None]
                surprise = probs.clamp_min(1e-30).log() + uncertain[:, None]
                dlogits = probs * (-scale[:, None] - strength * surprise)
            dlogits[torch.arange(len(scale), device=scale.device), part.targets] += scale
            if capped is not None and cap is not None:  # d cap·tanh(x / cap) / d x = 1 - tanh²
                dlogits.mul_(1 - (capped / cap) ** 2)
            if part.few is None:
                gradient[at] = product(dlogits.to(head.dtype), head.t())
            else:
                gradient[at] = torch.bmm(dlogits.to(head.dtype)[:, None], head[part.few])[:, 0]
            if head.requires_grad:
                _accumulate(head, dlogits, states[at], part.few)
    hidden.backward(gradient if also is None else gradient + also.to(gradient.dtype))
    return logp, entropy


def _accumulate(head: Tensor, dlogits: Tensor, states: Tensor, few: Tensor | None) -> None:
    """Adds a chunk's gradient to ``head.grad``, in ``head.grad_dtype``.

    That is float32 where a stepper trains the head: in bfloat16 a chunk's contribution soon falls below half
    a bit of the sum and vanishes.
    """
    if head.grad is None:
        head.grad = torch.zeros_like(head, dtype=head.grad_dtype)
    kind = head.grad.dtype
    if few is None:
        head.grad.addmm_(dlogits.t().to(kind), states.to(kind))
        return
    each = dlogits.to(kind)[:, :, None] * states.to(kind)[:, None]
    head.grad.index_add_(0, few.flatten(), each.flatten(0, 1))


def _results(hidden: Tensor) -> tuple[Tensor, Tensor]:
    both = hidden.new_empty(2, len(hidden), dtype=torch.float32)
    return both[0], both[1]


def _parts(targets: Tensor, head: Tensor, permitted: Permitted | None) -> Iterator[Part]:
    if permitted is not None:
        refuse_other_vocabulary(permitted, len(head))
        yield from permitted.parts(CHUNK)
        return
    for start in range(0, len(targets), CHUNK):
        at = slice(start, min(start + CHUNK, len(targets)))
        yield Part(at, targets[at])


def refuse_other_vocabulary(permitted: Permitted, vocab: int) -> None:
    """Raises TrainingError (DATA) for masks of another vocabulary than the network's."""
    for other in permitted.vocabs - {vocab}:
        raise TrainingError(
            "DATA",
            f"A row has masks of {other} tokens and the network has {vocab}: compile the grammar "
            f"for this network's vocabulary.",
        )


def _softmax(
    hidden: Tensor, head: Tensor, part: Part, temperature: Tensor, cap: float | None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Returns probabilities (positions, logits), the capped logits if there is a cap, log-probs and
    entropies."""
    if part.few is None:
        logits = product(hidden, head).float()
    else:
        logits = torch.bmm(head[part.few], hidden[:, :, None])[:, :, 0].float()
    capped = None
    if cap is not None:
        capped = soft_cap(logits, cap)
        logits = capped.clone()
    if not bool((temperature == 1).all()):
        logits.div_(temperature[:, None])
    if part.outside is not None:
        logits.masked_fill_(part.outside, float("-inf"))
    logits = logits.log_softmax(-1)
    probs = logits.exp()
    logp = logits.gather(1, part.targets[:, None]).squeeze(1)
    if part.outside is not None:
        logits.masked_fill_(part.outside, 0.0)  # 0 · log 0 is 0 here
    return probs, capped, logp, logits.mul_(probs).sum(-1).neg_()
