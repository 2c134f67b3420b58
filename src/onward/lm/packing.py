"""Rows of different lengths as one stream of tokens, with common beginnings computed once.

The stream is ``[prefix of all, prompt of run 0, prompt of run 1, …, row 0's rest, row 1's rest, …]`` without
padding. Only inside attention are the rests of a run padded, on the right, where causality alone hides
padding from every real token. Gradients through the shared part are exact, since every row reads the same
keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from onward.lm.kernels import attention
from onward.lm.network import Shape
from onward.lm.permitted import Permitted, refuse_outside
from onward.lm.sharing import Run
from onward.lm.tokens import TokenRow

Item = TypeVar("Item")


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


def _cast(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if mask is None else mask.to(dtype)


def _causal(length: int, before: int, device: torch.device, window: int | None = None) -> Tensor:
    """Returns a (length, before + length) additive mask: a query sees itself and all earlier tokens, or only
    the last ``window`` of them."""
    allowed = torch.ones(length, before + length, dtype=torch.bool).tril(before)
    if window is not None:
        allowed = allowed.triu(before + 1 - window)
    return torch.zeros(length, before + length).masked_fill(~allowed, float("-inf")).to(device)


class _Padding:
    """Padded places in attention of the rests of one run, and their masks."""

    def __init__(self, lengths: Sequence[int], before: int, extra: int, device: torch.device) -> None:
        self.count, self.width, self.total = len(lengths), max(lengths), sum(lengths)
        self.before, self.extra = before, extra
        """Tokens of the prefix of all, and of the run's own prompt after it."""
        n = torch.tensor(lengths)
        column = torch.arange(self.width)
        inside = column[None, :] < n[:, None]
        first = n.cumsum(0) - n
        self.to_padded = torch.where(inside, first[:, None] + column, 0).flatten().to(device)
        places = [row * self.width + at for row, length in enumerate(lengths) for at in range(length)]
        self.to_stream = torch.tensor(places, device=device)
        self.mask = _causal(self.width, before + extra, device)
        self.prompt_mask = _causal(extra, before, device) if extra else None

    def masks(self, group: int, window: int | None) -> tuple[Tensor | None, Tensor]:
        """Returns the masks of the run's prompt and of its rests, repeated for each head of a group."""
        prompt, rests, device = self.prompt_mask, self.mask, self.mask.device
        if window is not None:
            rests = _causal(self.width, self.before + self.extra, device, window)
            prompt = None if prompt is None else _causal(self.extra, self.before, device, window)
        return None if prompt is None else prompt.repeat(group, 1), rests.repeat(group, 1)


_Masks = tuple[Tensor | None, list[tuple[Tensor | None, Tensor]]]
"""Mask of the prefix of all; of each run, those of its prompt and of its rests."""


class Wanted:
    """The log-probs that are wanted of ``rows``: one per trained token, row by row, in token order.

    ``places`` are their (row, position), and ``targets``, ``row_of``, ``behaviour`` and ``temperature`` are
    aligned with them; ``counts`` is their number per row. ``permitted`` are their masks, None without any.
    """

    def __init__(self, rows: Sequence[TokenRow], device: torch.device) -> None:
        self.places = [(r, t) for r, row in enumerate(rows) for t in row.trained]
        self.counts = [0] * len(rows)
        for r, _ in self.places:
            self.counts[r] += 1
        targets = [rows[r].ids[t] for r, t in self.places]
        behaviour = [rows[r].logprobs[t] for r, t in self.places]
        temperature = [rows[r].temperature for r, _ in self.places]
        self.targets = torch.tensor(targets, dtype=torch.long, device=device)
        self.row_of = torch.tensor([r for r, _ in self.places], dtype=torch.long, device=device)
        self.behaviour = torch.tensor(behaviour, dtype=torch.float32, device=device)
        self.temperature = torch.tensor(temperature, dtype=torch.float32, device=device)
        self.permitted = None
        if any(row.allowed for row in rows):
            for row in rows:
                for t, mask in row.allowed.items():
                    if mask.is_forced:  # the others are checked with their log-probs
                        refuse_outside(mask, row.ids[t])
            masks = [rows[r].allowed.get(t) for r, t in self.places]
            self.permitted = Permitted(masks, targets, device)


class Packed(Wanted):
    """One micro-batch: token ids, positions, attention layout, and the positions of the wanted log-probs.

    The first ``prefix`` tokens (the same in all rows) appear once, and so do the further tokens that a run of
    ``runs`` shares (without ``runs``: none). ``at`` indexes the stream positions whose next token is wanted.
    """

    def __init__(
        self, rows: Sequence[TokenRow], prefix: int, device: torch.device, runs: Sequence[Run] | None = None
    ) -> None:
        Wanted.__init__(self, rows, device)
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
        begins = []
        for row, begin in zip(rows, shared, strict=True):
            begins.append(len(ids) - begin)
            ids += row.ids[begin:]
            positions += range(begin, len(row))
        if any(t <= shared[r] for r, t in self.places):
            raise ValueError("what is shared must end before the last context token")
        at = [begins[r] + t - 1 for r, t in self.places]
        self.total = len(ids)
        self.ids = torch.tensor(ids, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.at = torch.tensor(at, dtype=torch.long, device=device)
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
        row sees its shared tokens and its own past. In a layer with a window, only its last tokens count."""
        h, kv, g, d = shape.heads, shape.kv_heads, shape.group, shape.head_dim
        sizes = [self.prefix, *(run.extra for run in self._runs), *(run.total for run in self._runs)]
        longest = self.prefix + max(run.extra + run.width for run in self._runs)
        windows = [window if window is not None and window < longest else None for window in shape.windows]

        @cache
        def masks_for(window: int | None, dtype: torch.dtype) -> _Masks:
            """Returns the masks for all heads of a group, in the dtype of the queries."""
            prefix, runs = self._masks(g, window)
            return _cast(prefix, dtype), [(_cast(prompt, dtype), rest.to(dtype)) for prompt, rest in runs]

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
            o = attention(q, k, v, mask, shape.attention_scale, shape.attention_cap)
            return o.view(count, kv, g, length, d).permute(0, 3, 1, 2, 4).reshape(count * length, h * d)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            prefix_mask, masks = masks_for(windows[layer], qkv.dtype)
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

    def _masks(self, group: int, window: int | None) -> _Masks:
        prefix = self._prefix_mask
        if prefix is not None:
            prefix = prefix if window is None else _causal(self.prefix, 0, prefix.device, window)
            prefix = prefix.repeat(group, 1)
        return prefix, [run.masks(group, window) for run in self._runs]


def split_by_tokens(items: Sequence[Item], lengths: Sequence[int], limit: int) -> list[list[Item]]:
    """Cuts ``items`` into runs whose ``lengths`` sum to at most ``limit`` (at least one item each)."""
    runs: list[list[Item]] = []
    used = limit + 1
    for item, length in zip(items, lengths, strict=True):
        if used + length > limit:
            runs.append([])
            used = 0
        runs[-1].append(item)
        used += length
    return runs
