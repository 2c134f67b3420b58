"""Attention of the sampler over its slot cache: prompts of any length, then one token per row.

Keys and values are written in place before they are read. Heads that share a key are rows of one product, so
keys are never copied. In decoding, a prefix common to neighbouring rows is read once for all of them, not
once per row. A layer with a window reads only the keys inside it, once the rows are longer than the window.
In half precision the scores and their softmax are float32, as in the learner's pass: rounding would move a
score of 100 by up to a quarter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onward.lm.cache import SlotCache
from onward.lm.kernels import attention, soft_cap
from onward.lm.network import Attend, Shape

MIN_SAVED = 2 << 20  # bytes of keys and values per layer; sharing that saves less is not worth its calls


def _active(window: int | None, longest: int) -> int | None:
    """Returns the window if rows of ``longest`` tokens are longer than it."""
    return window if window is not None and window < longest else None


def prompt_attend(shape: Shape, cache: SlotCache, spans: Sequence[tuple[int, int, int]]) -> Attend:
    """Attention for a stream of several rows' tokens; ``spans`` are (slot, first position, end position)."""
    h, kv, g, d = shape.heads, shape.kv_heads, shape.group, shape.head_dim

    def read(start: int, stop: int, window: int | None) -> tuple[int, Tensor]:
        """Returns the first position that a span reads, and its mask."""
        n = stop - start
        first = 0 if window is None else max(0, start + 1 - window)
        seen = torch.ones(n, stop - first, dtype=torch.bool).tril(start - first)
        if window is not None:
            seen = seen.triu(start + 1 - window - first)
        mask = torch.zeros(n, stop - first, dtype=cache.data.dtype).masked_fill(~seen, float("-inf"))
        return first, mask.repeat(g, 1).to(cache.data.device)

    longest = max(stop for _, _, stop in spans)
    windows = [_active(window, longest) for window in shape.windows]
    reads = {window: [read(start, stop, window) for _, start, stop in spans] for window in set(windows)}

    def attend(layer: int, qkv: Tensor) -> Tensor:
        keys, values = cache.data[layer]
        out = qkv.new_empty(len(qkv), h * d)
        at = 0
        for (slot, start, stop), (first, mask) in zip(spans, reads[windows[layer]], strict=True):
            n = stop - start
            part = qkv[at : at + n]
            keys[slot, :, start:stop] = part[:, h : h + kv].transpose(0, 1)
            values[slot, :, start:stop] = part[:, h + kv :].transpose(0, 1)
            q = part[:, :h].unflatten(1, (kv, g)).permute(1, 2, 0, 3).reshape(1, kv, g * n, d)
            k, v = keys[None, slot, :, first:stop], values[None, slot, :, first:stop]
            o = attention(q, k, v, mask, shape.attention_scale, shape.attention_cap)
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
    device, scale, cap = positions.device, shape.attention_scale, shape.attention_cap
    exact = torch.promote_types(cache.data.dtype, torch.float32)
    windows = [_active(window, longest) for window in shape.windows]
    where = torch.arange(n * kv, device=device) * cache.length + positions.repeat_interleave(kv)
    saved = max(((b - a - 1) * common for a, b, common in groups), default=0) * kv * d * 8
    everyone = [(0, n, 0)]
    if saved < MIN_SAVED:
        groups = everyone

    def read(window: int | None) -> tuple[int, Tensor]:
        """Returns the first position that is read, and the mask (rows · kv, 1, positions read)."""
        first = 0 if window is None else max(0, int(positions.min()) + 1 - window)
        at = torch.arange(first, longest, device=device)
        hidden = at > positions[:, None]
        if window is not None:
            hidden |= at <= positions[:, None] - window
        mask = torch.zeros(n, 1, longest - first, device=device, dtype=exact)
        mask = mask.masked_fill_(hidden[:, None], float("-inf"))
        return first, mask.repeat_interleave(kv, dim=0)

    reads = {window: read(window) for window in set(windows)}

    def store(layer: int, qkv: Tensor) -> None:
        cache.key_rows[layer].index_copy_(0, where, qkv[:, h : h + kv].reshape(n * kv, d))
        cache.value_rows[layer].index_copy_(0, where, qkv[:, h + kv :].reshape(n * kv, d))

    def scores(q: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        q, keys = q.to(exact), keys.to(exact)
        if mask is not None and cap is None:
            return torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=scale)
        found = torch.bmm(q, keys.transpose(1, 2)).mul_(scale)
        if cap is not None:
            found = soft_cap(found, cap)
        return found if mask is None else found.add_(mask)

    def alone(layer: int, q: Tensor, a: int, b: int) -> Tensor:
        """Attention of rows ``a`` to ``b``, each with its own keys: (rows · kv, g, d)."""
        rows = slice(a * kv, b * kv)
        first, mask = reads[windows[layer]]
        weights = scores(q, cache.keys[layer][rows, first:longest], mask[rows]).softmax(-1).to(q.dtype)
        return torch.bmm(weights, cache.values[layer][rows, first:longest])

    def together(layer: int, q: Tensor, a: int, b: int, common: int) -> Tensor:
        """As ``alone``, with the first ``common`` positions read from the first row's slot only."""
        rows, count = slice(a * kv, b * kv), b - a
        first = slice(a * kv, a * kv + kv)
        keys, values = cache.keys[layer], cache.values[layer]
        every = q.view(count, kv, g, d).transpose(0, 1).reshape(kv, count * g, d)
        shared = scores(every, keys[first, :common], None)
        own = scores(q, keys[rows, common:longest], reads[None][1][rows, :, common:])
        both = [shared.view(kv, count, g, common).transpose(0, 1), own.view(count, kv, g, -1)]
        weights = torch.cat(both, dim=-1).softmax(-1).to(q.dtype)
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
            for a, b, common in (groups if windows[layer] is None else everyone)
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(n, h * d)

    return attend
