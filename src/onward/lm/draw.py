"""Draws tokens from logits and returns the probability of each draw.

The log-prob is that of the distribution really sampled: with temperature applied and, with top-k or top-p,
renormalised over the kept set. Each row has its own uniform number, so a draw does not depend on the other
rows of the batch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.lm.request import Alternatives

BLOCK = 256  # width of each of the two levels in the search of the inverse distribution function


def draw(
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor | None = None,
    top_k: list[int | None] | None = None,
    top_p: list[float] | None = None,
    likeliest: list[Alternatives] | None = None,
    alternatives: int = 0,
) -> tuple[Tensor, Tensor]:
    """Returns tokens and log-probs, both (rows,), for ``logits`` (rows, vocab), which are overwritten.
    ``temperature`` None means 1 for all; 0 takes the most probable token with log-prob 0 (a point mass).
    ``likeliest`` receives for each row its ``alternatives`` likeliest tokens."""
    logits = logits.float()
    greedy = None
    if temperature is not None:
        greedy = temperature == 0
        logits = logits.div_(torch.where(greedy, 1.0, temperature)[:, None])
    if top_k is not None or top_p is not None:
        _truncate_(logits, top_k, top_p)
    probs = logits.softmax(-1)
    tokens = _invert(probs, uniforms)
    logp = probs.gather(1, tokens[:, None]).squeeze(1).log_()
    if greedy is not None and bool(greedy.any()):
        tokens = torch.where(greedy, logits.argmax(-1), tokens)
        logp = torch.where(greedy, 0.0, logp)
    if likeliest is not None:
        if greedy is not None and bool(greedy.any()):
            point = torch.zeros_like(probs).scatter_(1, tokens[:, None], 1.0)
            probs = torch.where(greedy[:, None], point, probs)
        likeliest += _likeliest(probs, alternatives)
    return tokens, logp


def _likeliest(probs: Tensor, count: int) -> list[Alternatives]:
    """Returns for each row the likeliest tokens of nonzero probability, the likeliest first."""
    best = probs.topk(min(count, probs.shape[-1]))
    rows = zip(best.indices.tolist(), best.values.log().tolist(), strict=True)
    return [[pair for pair in zip(*row, strict=True) if pair[1] > -math.inf] for row in rows]


def _invert(probs: Tensor, uniforms: Tensor) -> Tensor:
    rows, vocab = probs.shape
    if vocab <= 2 * BLOCK:
        return _search(probs, uniforms[:, None] * probs.sum(-1, keepdim=True)).squeeze(1)
    if vocab % BLOCK:
        probs = F.pad(probs, (0, BLOCK - vocab % BLOCK))
    blocks = probs.view(rows, -1, BLOCK)
    weight = blocks.sum(-1)
    target = uniforms[:, None] * weight.sum(-1, keepdim=True)
    block = _search(weight, target)
    before = torch.where(block > 0, weight.cumsum(-1).gather(1, (block - 1).clamp_min(0)), 0.0)
    inside = blocks[torch.arange(rows, device=probs.device), block.squeeze(1)]
    return (block * BLOCK + _search(inside, target - before)).squeeze(1)


def _search(probs: Tensor, target: Tensor) -> Tensor:
    """Returns the first index whose cumulative sum exceeds ``target``; never one of probability zero."""
    cumulative = probs.cumsum(-1)
    target = torch.minimum(target.clamp_min(0.0), cumulative[:, -1:] * (1 - 1e-6))
    return torch.searchsorted(cumulative, target, right=True).clamp_max_(probs.shape[-1] - 1)


def _truncate_(logits: Tensor, top_k: list[int | None] | None, top_p: list[float] | None) -> None:
    """Sets logits outside the kept set to -inf, row by row: top-k first, then the top-p nucleus."""
    vocab = logits.shape[-1]
    for i, row in enumerate(logits):
        k = top_k[i] if top_k is not None else None
        p = top_p[i] if top_p is not None else 1.0
        if k is not None and k < vocab:
            kept = row.topk(k)
            row.fill_(float("-inf"))
            row[kept.indices] = kept.values
        if p < 1.0:
            ordered, index = row.softmax(-1).sort(descending=True)
            outside = ordered.cumsum(-1) - ordered >= p
            row[index[outside]] = float("-inf")
