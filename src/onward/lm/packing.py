"""Rows of different lengths as one stream of tokens, with the prefix that all share computed once.

The one thing to know: the stream is ``[prefix, row 0's rest, row 1's rest, …]`` without padding; only
inside attention are the rests padded, on the right, where causality alone keeps padding out of every
real token. Gradients flow through the shared prefix exactly, since every row reads the same keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.lm.network import Shape
from onward.lm.tokens import TokenRow


class _Take(torch.autograd.Function):
    """``x[index]`` whose gradient is again a gather: ``inverse`` says where each row of x went."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _Untake(torch.autograd.Function):
    """``x[index]`` for an index without repetition: the gradient is written back, zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.length = len(x)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        out = grad.new_zeros(ctx.length, grad.shape[1])
        return out.index_copy_(0, ctx.saved_tensors[0], grad), None


def _causal(length: int, before: int, device: torch.device) -> Tensor:
    """(length, before + length) additive mask: a query sees all that came before and itself."""
    allowed = torch.ones(length, before + length, dtype=torch.bool).tril(before)
    return torch.zeros(length, before + length).masked_fill(~allowed, float("-inf")).to(device)


def common_prefix(rows: Sequence[TokenRow]) -> int:
    """Length of the prefix that all rows share, short of each row's last context token.

    The token before a row's first sampled token stays outside, since its logits are needed per row.
    """
    if not rows:
        return 0
    limit = min((row.sampled.index(True) if True in row.sampled else len(row)) for row in rows) - 1
    first, *others = (row.ids for row in rows)
    limit = max(limit, 0)
    for ids in others:
        n = 0
        while n < limit and ids[n] == first[n]:
            n += 1
        limit = n
    return limit


class Packed:
    """One micro-batch: token ids, positions, attention layout, and where log-probs are wanted.

    ``prefix`` tokens of the rows (the same for all) appear once. ``at`` indexes stream positions whose
    next token was sampled; ``targets``, ``row_of``, ``behaviour``, ``temperature`` are aligned with it,
    row by row, in token order.
    """

    def __init__(self, rows: Sequence[TokenRow], prefix: int, device: torch.device) -> None:
        self.prefix = prefix
        lengths = [len(row) - prefix for row in rows]
        if not rows or min(lengths) < 1:
            raise ValueError("every packed row needs at least one token after the shared prefix")
        self.lengths = lengths
        self.width = max(lengths)
        starts = [prefix]
        for n in lengths:
            starts.append(starts[-1] + n)
        self.total = starts.pop()
        ids = list(rows[0].ids[:prefix])
        positions = list(range(prefix))
        at, targets, row_of, behaviour, temperature = [], [], [], [], []
        for r, (row, start) in enumerate(zip(rows, starts, strict=True)):
            ids += row.ids[prefix:]
            positions += range(prefix, len(row))
            for t in range(max(prefix, 1), len(row)):
                if row.sampled[t]:
                    if t == prefix:
                        raise ValueError("the shared prefix must end before the last context token")
                    at.append(start + t - 1 - prefix)
                    targets.append(row.ids[t])
                    row_of.append(r)
                    behaviour.append(row.logprobs[t])
                    temperature.append(row.temperature)
        self.counts = [sum(row.sampled[max(prefix, 1) :]) for row in rows]
        self.ids = torch.tensor(ids, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.at = torch.tensor(at, dtype=torch.long, device=device)
        self.targets = torch.tensor(targets, dtype=torch.long, device=device)
        self.row_of = torch.tensor(row_of, dtype=torch.long, device=device)
        self.behaviour = torch.tensor(behaviour, dtype=torch.float32, device=device)
        self.temperature = torch.tensor(temperature, dtype=torch.float32, device=device)
        count, width = len(rows), self.width
        n = torch.tensor(lengths)
        column = torch.arange(width)
        first = torch.tensor(starts) - prefix
        inside = column[None, :] < n[:, None]
        self._to_padded = torch.where(inside, first[:, None] + column, 0).flatten().to(device)
        self._to_stream = torch.arange(count * width).view(count, width)[inside].to(device)
        self._mask = _causal(width, prefix, device)
        self._prefix_mask = _causal(prefix, 0, device) if prefix else None

    def attend(self, shape: Shape) -> Any:
        """The ``Attend`` of this layout: the prefix sees itself, a row sees the prefix and its own past."""
        prefix, rows, width = self.prefix, len(self.lengths), self.width
        h, kv, g, d = shape.heads, shape.kv_heads, shape.group, shape.head_dim
        masks = {True: self._mask.repeat(g, 1)}
        if self._prefix_mask is not None:
            masks[False] = self._prefix_mask.repeat(g, 1)

        def grouped(qkv: Tensor, count: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
            x = qkv.view(count, length, h + 2 * kv, d)
            q = x[:, :, :h].unflatten(2, (kv, g)).permute(0, 2, 3, 1, 4).reshape(count, kv, g * length, d)
            return q, x[:, :, h : h + kv].transpose(1, 2), x[:, :, h + kv :].transpose(1, 2)

        def merged(o: Tensor, count: int, length: int) -> Tensor:
            return o.view(count, kv, g, length, d).permute(0, 3, 1, 2, 4).reshape(count * length, h * d)

        def attend(_: int, qkv: Tensor) -> Tensor:
            mask = masks[True].to(qkv.dtype)
            shared, own = qkv.split([prefix, self.total - prefix])
            own = _Take.apply(own, self._to_padded, self._to_stream)
            q, k, v = grouped(own, rows, width)  # type: ignore[arg-type]
            outputs = []
            if prefix:
                pq, pk, pv = grouped(shared, 1, prefix)
                o = F.scaled_dot_product_attention(pq, pk, pv, attn_mask=masks[False].to(qkv.dtype))
                outputs.append(merged(o, 1, prefix))
                k = torch.cat([pk.expand(rows, -1, -1, -1), k], dim=2)
                v = torch.cat([pv.expand(rows, -1, -1, -1), v], dim=2)
            o = merged(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), rows, width)
            outputs.append(_Untake.apply(o, self._to_stream))
            return torch.cat(outputs) if prefix else outputs[0]

        return attend
