"""What the learner runs over: checked rows, cut into micro-batches, with frozen layers done once.

The one thing to know: layers below the adapter's first one do not depend on what is trained, so their
output is computed once per update, without a graph, and reused in every epoch when memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from onward.errors import TrainingError
from onward.lm.head import token_logprobs
from onward.lm.packing import Packed, common_prefix
from onward.lm.policy import Policy, split_by_tokens
from onward.lm.tokens import TokenRow

Behaviour = Literal["recorded", "recompute", "unused"]


@dataclass
class Prepared:
    """Rows with at least one trained token, cut after the last one; ``origin`` is where each came from."""

    rows: list[TokenRow]
    origin: list[int]
    given: list[int]
    """Length of every row that was given, kept or not."""

    @classmethod
    def of(cls, rows: Sequence[TokenRow], max_positions: int, behaviour: Behaviour = "recorded") -> Prepared:
        """Raises TrainingError (DATA) with the first thing that is wrong.

        ``behaviour`` says where the probability of each sampled token comes from: it was recorded, the
        learner computes it, or the loss (preferences) has no use for it.
        """
        kept: list[TokenRow] = []
        origin: list[int] = []
        for number, row in enumerate(rows):
            if not len(row.ids) == len(row.sampled) == len(row.logprobs):
                raise _unusable(number, "lists of different lengths")
            positions = row.trained
            if not positions:
                continue
            _check(number, row, positions, max_positions, behaviour)
            kept.append(row.cut(positions[-1] + 1))
            origin.append(number)
        if not kept:
            raise TrainingError(
                "DATA", f"None of the {len(rows)} rows has a sampled token: there is nothing to train."
            )
        return cls(kept, origin, [len(row) for row in rows])

    @property
    def counts(self) -> list[int]:
        """Trained tokens per kept row."""
        return [len(row.trained) for row in self.rows]

    def aligned(self, values: Sequence[float | Sequence[float] | Tensor], what: str) -> list[Tensor]:
        """``values`` per given row as (trained tokens,) float32 tensors per kept row.

        A value is one number for the row, or one per token of it, or one per trained token.
        """
        if len(values) != len(self.given):
            raise TrainingError(
                "DATA", f"There are {len(self.given)} rows but {len(values)} {what}s: give one each."
            )
        return [self._aligned(row, number, values[number], what)
                for row, number in zip(self.rows, self.origin, strict=True)]  # fmt: skip

    def _aligned(
        self, row: TokenRow, number: int, value: float | Sequence[float] | Tensor, what: str
    ) -> Tensor:
        positions = row.trained
        if not isinstance(value, Sequence | Tensor):
            tensor = torch.full((len(positions),), float(value))
        elif len(value) == self.given[number]:
            tensor = torch.tensor([float(value[t]) for t in positions])
        elif len(value) == len(positions):
            tensor = torch.as_tensor(value, dtype=torch.float32)
        else:
            raise TrainingError(
                "DATA",
                f"Row {number} has {self.given[number]} tokens, {len(positions)} of them trained, but "
                f"{len(value)} {what}s: give one each.",
            )
        if not bool(torch.isfinite(tensor).all()):
            raise TrainingError("DATA", f"Row {number} has an {what} that is not finite: leave the row out.")
        return tensor


def _check(
    number: int, row: TokenRow, positions: Sequence[int], max_positions: int, behaviour: Behaviour
) -> None:
    if len(row) > max_positions:
        raise _unusable(number, f"{len(row)} tokens where the network allows {max_positions}")
    if behaviour == "unused":
        return
    if not 0 < row.temperature < math.inf:
        raise _unusable(number, f"temperature {row.temperature}, under which no gradient exists")
    if row.top_p < 1.0 or row.top_k is not None:
        cut = f"top_p {row.top_p:g}" if row.top_p < 1.0 else f"top_k {row.top_k}"
        raise TrainingError(
            "DATA",
            f"Row {number} was sampled with {cut}, whose log-probs are of another distribution than the one "
            f"that is trained: sample with top_p 1 and without top_k, or train with dpo or sft.",
        )
    if behaviour == "recorded":
        if not row.behaviour_known:
            raise TrainingError(
                "DATA",
                f"Row {number} does not say with what probability its tokens were sampled: train with dpo or "
                f"sft, or name behaviour = 'recompute' to say that this very policy sampled it.",
            )
        if not all(-math.inf < row.logprobs[t] <= 1e-4 for t in positions):
            raise _unusable(number, "a sampled token whose log-prob is not a finite number ≤ 0")


def _unusable(number: int, problem: str) -> TrainingError:
    return TrainingError("DATA", f"Row {number} has {problem}: it cannot be trained on, leave it out.")


class Batches:
    """Micro-batches of ``prepared`` for one adapter (None: all weights); the common prefix is shared."""

    def __init__(
        self,
        policy: Policy,
        adapter: str | None,
        prepared: Prepared,
        limit: int,
        cache_bytes: int,
        recompute: bool = False,
    ) -> None:
        self.policy = policy
        self.prepared = prepared
        self.limit = limit
        self.recompute = recompute
        self.first = 0 if adapter is None else policy.adapter(adapter).first_layer
        self.prefix = common_prefix(prepared.rows)
        tokens = sum(len(row) - self.prefix for row in prepared.rows) + self.prefix
        size = tokens * policy.shape.hidden * policy.weights.norm.element_size()
        self._rests: list[Tensor] | None = None
        self._shared: Tensor | None = None
        if self.first > 0 and size <= cache_bytes:
            self._fill()

    @torch.no_grad()
    def _fill(self) -> None:
        rests: dict[int, Tensor] = {}
        for part in self.split(range(len(self.prepared.rows))):
            packed = self._pack(part)
            x = self.policy.trunk(packed, self.first)
            shared, *parts = x.split([self.prefix, *packed.lengths])
            if self._shared is None:
                self._shared = shared.clone()
            rests.update(zip(part, (p.clone() for p in parts), strict=True))
        self._rests = [rests[i] for i in range(len(self.prepared.rows))]

    def split(self, indices: Sequence[int]) -> list[list[int]]:
        """Rows of similar length together, at most ``limit`` tokens after the prefix per part."""
        rows = self.prepared.rows
        order = sorted(indices, key=lambda i: (len(rows[i]), i))
        return split_by_tokens(order, [len(rows[i]) - self.prefix for i in order], self.limit)

    def _pack(self, part: Sequence[int]) -> Packed:
        return Packed([self.prepared.rows[i] for i in part], self.prefix, self.policy.device)

    def hidden(self, part: Sequence[int], adapter: str | None) -> tuple[Packed, Tensor]:
        """The packed rows, and the last hidden state before each of their trained tokens, in row order."""
        packed = self._pack(part)
        x, first = None, 0
        if self._rests is not None and self._shared is not None:
            x, first = torch.cat([self._shared, *(self._rests[i] for i in part)]), self.first
        return packed, self.policy.hidden(packed, adapter, x, first, recompute=self.recompute)

    @torch.no_grad()
    def each(self, adapter: str | None, found: Callable[[Packed, Tensor], Tensor]) -> list[Tensor]:
        """``found(packed, hidden)`` gives one number or vector per trained token; split by row again."""
        result: dict[int, Tensor] = {}
        for part in self.split(range(len(self.prepared.rows))):
            packed, hidden = self.hidden(part, adapter)
            result.update(zip(part, found(packed, hidden).cpu().split(packed.counts), strict=True))
        return [result[i] for i in range(len(self.prepared.rows))]

    def logprobs(self, adapter: str | None) -> list[Tensor]:
        """Log-probs of each row's trained tokens under ``adapter`` as it is now."""

        def found(packed: Packed, hidden: Tensor) -> Tensor:
            return token_logprobs(hidden, self.policy.weights.head, packed.targets, packed.temperature)[0]

        return self.each(adapter, found)
