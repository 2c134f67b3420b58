"""Attention of the sampler over its slot cache: prompts of any length, then one token per row.

Keys and values are written in place before they are read. Heads that share a key are rows of one product, so
keys are never copied. In decoding, a prefix common to neighbouring rows is read once for all of them, not
once per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.lm.cache import SlotCache
from onward.lm.network import Attend, Shape

MIN_SAVED = 2 << 20  # bytes of keys and values per layer; sharing that saves less is not worth its calls


def prompt_attend(shape: Shape, cache: SlotCache, spans: Sequence[tuple[int, int, int]]) -> Attend:
    """Attention for a stream of several rows' tokens; ``spans`` are (slot, first position, end position)."""
    h, kv, g, d = shape.heads, shape.kv_heads, shape.group, shape.head_dim
    masks = []
    for _, start, stop in spans:
        n = stop - start
        blocked = torch.ones(n, stop, dtype=torch.bool).tril(start).logical_not()
        mask = torch.zeros(n, stop, dtype=cache.data.dtype).masked_fill(blocked, float("-inf"))
        masks.append(mask.repeat(g, 1).to(cache.data.device))

    def attend(layer: int, qkv: Tensor) -> Tensor:
        keys, values = cache.data[layer]
        out = qkv.new_empty(len(qkv), h * d)
        at = 0
        for (slot, start, stop), mask in zip(spans, masks, strict=True):
            n = stop - start
            part = qkv[at : at + n]
            keys[slot, :, start:stop] = part[:, h : h + kv].transpose(0, 1)
            values[slot, :, start:stop] = part[:, h + kv :].transpose(0, 1)
            q = part[:, :h].unflatten(1, (kv, g)).permute(1, 2, 0, 3).reshape(1, kv, g * n, d)
            o = F.scaled_dot_product_attention(
                q, keys[None, slot, :, :stop], values[None, slot, :, :stop], attn_mask=mask
            )
            out[at : at + n].view(n, kv, g, d).copy_(o.view(kv, g, n, d).permute(2, 0, 1, 3))
            at += n
        return out

    return attend


def decode_attend(
    shape: Shape, cache: SlotCache, positions: Tensor, longest: int, groups: Sequence[tuple[int, int, int]]
) -> Attend:
    """Attention for one new token in each of the slots 0 … n-1, at ``positions``; ``longest`` is their
    maximum plus 1.

    ``groups`` are (first slot, end slot, length of the prefix those rows share) and cover all slots.
    """
    n = len(positions)
    h, kv, g, d = shape.heads, shape.kv_heads, shape.group, shape.head_dim
    device = positions.device
    later = torch.arange(longest, device=device) > positions[:, None]
    mask = torch.zeros(n, 1, longest, device=device, dtype=cache.data.dtype)
    mask = mask.masked_fill_(later[:, None], float("-inf"))
    mask = mask.repeat_interleave(kv, dim=0)
    where = torch.arange(n * kv, device=device) * cache.length + positions.repeat_interleave(kv)
    scale = d**-0.5
    saved = max(((b - a - 1) * common for a, b, common in groups), default=0) * kv * d * 8
    if saved < MIN_SAVED:
        groups = [(0, n, 0)]

    def store(layer: int, qkv: Tensor) -> None:
        cache.key_rows[layer].index_copy_(0, where, qkv[:, h : h + kv].reshape(n * kv, d))
        cache.value_rows[layer].index_copy_(0, where, qkv[:, h + kv :].reshape(n * kv, d))

    def alone(layer: int, q: Tensor, a: int, b: int) -> Tensor:
        """Attention of rows ``a`` to ``b``, each with its own keys: (rows · kv, g, d)."""
        rows = slice(a * kv, b * kv)
        keys = cache.keys[layer][rows, :longest].transpose(1, 2)
        weights = torch.baddbmm(mask[rows], q, keys, alpha=scale).softmax(-1)
        return torch.bmm(weights, cache.values[layer][rows, :longest])

    def together(layer: int, q: Tensor, a: int, b: int, common: int) -> Tensor:
        """As ``alone``, with the first ``common`` positions read from the first row's slot only."""
        rows, count = slice(a * kv, b * kv), b - a
        first = slice(a * kv, a * kv + kv)
        keys, values = cache.keys[layer], cache.values[layer]
        every = q.view(count, kv, g, d).transpose(0, 1).reshape(kv, count * g, d)
        shared = torch.bmm(every, keys[first, :common].transpose(1, 2)).mul_(scale)
        own = torch.baddbmm(
            mask[rows, :, common:], q, keys[rows, common:longest].transpose(1, 2), alpha=scale
        )
        scores = [shared.view(kv, count, g, common).transpose(0, 1), own.view(count, kv, g, -1)]
        weights = torch.cat(scores, dim=-1).softmax(-1)
        left = weights[..., :common].transpose(0, 1).reshape(kv, count * g, common)
        right = weights[..., common:].reshape(count * kv, g, -1)
        out = torch.bmm(right, values[rows, common:longest])
        more = torch.bmm(left, values[first, :common]).view(kv, count, g, d).transpose(0, 1)
        return out.view(count, kv, g, d).add_(more).view(count * kv, g, d)

    def attend(layer: int, qkv: Tensor) -> Tensor:
        store(layer, qkv)
        q = qkv[:, :h].reshape(n * kv, g, d)
        parts = [
            together(layer, q[a * kv : b * kv], a, b, common)
            if common
            else alone(layer, q[a * kv : b * kv], a, b)
            for a, b, common in groups
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(n, h * d)

    return attend
