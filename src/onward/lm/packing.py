"""Rows of different lengths as one stream of tokens, with common beginnings computed once.

The stream is ``[prefix of all, prompt of run 0, prompt of run 1, …, row 0's rest, row 1's rest, …]`` without
padding. Only inside attention are the rests of a run padded, on the right, where causality alone hides
padding from every real token. Gradients through the shared part are exact, since every row reads the same
keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.lm.network import Shape
from onward.lm.tokens import TokenRow


class _Take(torch.autograd.Function):
    """``x[index]`` with a gradient that is again a gather; ``inverse`` is the place of each row of x."""

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
    """Returns a (length, before + length) additive mask: a query sees itself and all earlier tokens."""
    allowed = torch.ones(length, before + length, dtype=torch.bool).tril(before)
    return torch.zeros(length, before + length).masked_fill(~allowed, float("-inf")).to(device)


def common_prefix(rows: Sequence[TokenRow]) -> int:
    """Returns the length of the prefix that all rows share, short of each row's last context token. The token
    before a row's first sampled token stays outside, since its logits are needed per row."""
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


@dataclass(frozen=True)
class Run:
    """Neighbouring rows that begin with the same ``shared`` tokens."""

    rows: int
    shared: int


class _Padding:
    """Padded places in attention of the rests of one run, and their masks."""

    def __init__(self, lengths: Sequence[int], before: int, extra: int, device: torch.device) -> None:
        self.count, self.width, self.total = len(lengths), max(lengths), sum(lengths)
        self.extra = extra
        """Tokens of the run's own prompt, after the prefix of all."""
        n = torch.tensor(lengths)
        column = torch.arange(self.width)
        inside = column[None, :] < n[:, None]
        first = n.cumsum(0) - n
        self.to_padded = torch.where(inside, first[:, None] + column, 0).flatten().to(device)
        places = torch.arange(self.count * self.width).view(self.count, self.width)
        self.to_stream = places[inside].to(device)
        self.mask = _causal(self.width, before + extra, device)
        self.prompt_mask = _causal(extra, before, device) if extra else None


class Packed:
    """One micro-batch: token ids, positions, attention layout, and the positions of the wanted log-probs.

    The first ``prefix`` tokens (the same in all rows) appear once, and so do the further tokens that a run of
    ``runs`` shares (without ``runs``: none). ``at`` indexes stream positions whose next token was sampled;
    ``targets``, ``row_of``, ``behaviour``, ``temperature`` are aligned with it, row by row, in token order.
    """

    def __init__(
        self, rows: Sequence[TokenRow], prefix: int, device: torch.device, runs: Sequence[Run] | None = None
    ) -> None:
        runs = [Run(len(rows), prefix)] if runs is None else runs
        shared = [run.shared for run in runs for _ in range(run.rows)]
        if not rows or len(shared) != len(rows) or min(shared) < prefix:
            raise ValueError("the runs must cover all rows, and each begin with the prefix of all")
        self.prefix = prefix
        self.lengths = [len(row) - n for row, n in zip(rows, shared, strict=True)]
        if min(self.lengths) < 1:
            raise ValueError("every packed row needs at least one token after what it shares")
        first_of_run = [sum(run.rows for run in runs[:k]) for k in range(len(runs))]
        ids = list(rows[0].ids[:prefix])
        positions = list(range(prefix))
        for first, run in zip(first_of_run, runs, strict=True):
            ids += rows[first].ids[prefix : run.shared]
            positions += range(prefix, run.shared)
        at, targets, row_of, behaviour, temperature = [], [], [], [], []
        for r, (row, begin) in enumerate(zip(rows, shared, strict=True)):
            start = len(ids)
            ids += row.ids[begin:]
            positions += range(begin, len(row))
            for t in range(max(begin, 1), len(row)):
                if row.sampled[t]:
                    if t == begin:
                        raise ValueError("what is shared must end before the last context token")
                    at.append(start + t - 1 - begin)
                    targets.append(row.ids[t])
                    row_of.append(r)
                    behaviour.append(row.logprobs[t])
                    temperature.append(row.temperature)
        self.total = len(ids)
        self.counts = [sum(row.sampled[max(n, 1) :]) for row, n in zip(rows, shared, strict=True)]
        self.ids = torch.tensor(ids, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.at = torch.tensor(at, dtype=torch.long, device=device)
        self.targets = torch.tensor(targets, dtype=torch.long, device=device)
        self.row_of = torch.tensor(row_of, dtype=torch.long, device=device)
        self.behaviour = torch.tensor(behaviour, dtype=torch.float32, device=device)
        self.temperature = torch.tensor(temperature, dtype=torch.float32, device=device)
        self._runs = [
            _Padding(self.lengths[first : first + run.rows], prefix, run.shared - prefix, device)
            for first, run in zip(first_of_run, runs, strict=True)
        ]
        self._prefix_mask = _causal(prefix, 0, device) if prefix else None

    @property
    def pieces(self) -> list[int]:
        """Tokens of each piece of the stream: prefix of all, prompt per run, rest per row."""
        return [self.prefix, *(run.extra for run in self._runs), *self.lengths]

    def attend(self, shape: Shape) -> Any:
        """Returns the ``Attend`` of this layout. Shared tokens see themselves and the tokens before them. A
        row sees its shared tokens and its own past."""
        h, kv, g, d = shape.heads, shape.kv_heads, shape.group, shape.head_dim
        sizes = [self.prefix, *(run.extra for run in self._runs), *(run.total for run in self._runs)]
        prefix_mask = None if self._prefix_mask is None else self._prefix_mask.repeat(g, 1)
        masks = [
            (None if run.prompt_mask is None else run.prompt_mask.repeat(g, 1), run.mask.repeat(g, 1))
            for run in self._runs
        ]

        def grouped(qkv: Tensor, count: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
            x = qkv.view(count, length, h + 2 * kv, d)
            q = x[:, :, :h].unflatten(2, (kv, g)).permute(0, 2, 3, 1, 4).reshape(count, kv, g * length, d)
            return q, x[:, :, h : h + kv].transpose(1, 2), x[:, :, h + kv :].transpose(1, 2)

        def seen(
            q: Tensor, before: list[tuple[Tensor, Tensor]], k: Tensor, v: Tensor, mask: Tensor
        ) -> Tensor:
            """Attention of (count, kv, g · length, d) queries to earlier tokens (count 1) and their own."""
            count, length = len(q), k.shape[2]
            if before:
                k = torch.cat([*(one.expand(count, -1, -1, -1) for one, _ in before), k], dim=2)
                v = torch.cat([*(one.expand(count, -1, -1, -1) for _, one in before), v], dim=2)
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype))
            return o.view(count, kv, g, length, d).permute(0, 3, 1, 2, 4).reshape(count * length, h * d)

        def attend(_: int, qkv: Tensor) -> Tensor:
            first, *parts = qkv.split(sizes)
            prompts, rests = parts[: len(self._runs)], parts[len(self._runs) :]
            outputs: list[Tensor] = []
            common: list[tuple[Tensor, Tensor]] = []
            if prefix_mask is not None:
                q, k, v = grouped(first, 1, self.prefix)
                outputs.append(seen(q, [], k, v, prefix_mask))
                common = [(k, v)]
            before = []
            for run, prompt, (mask, _rest) in zip(self._runs, prompts, masks, strict=True):
                if mask is None:
                    before.append(common)
                    continue
                q, k, v = grouped(prompt, 1, run.extra)
                outputs.append(seen(q, common, k, v, mask))
                before.append([*common, (k, v)])
            for run, rest, known, (_prompt, mask) in zip(self._runs, rests, before, masks, strict=True):
                own = _Take.apply(rest, run.to_padded, run.to_stream)
                q, k, v = grouped(own, run.count, run.width)  # type: ignore[arg-type]
                outputs.append(_Untake.apply(seen(q, known, k, v, mask), run.to_stream))  # type: ignore[arg-type]
            return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

        return attend
