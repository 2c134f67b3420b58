"""What the learner runs over: checked rows, cut into micro-batches, with frozen layers done once.

The one thing to know: layers below the adapter's first one do not depend on what is trained, so their
output is computed once per update, without a graph, and reused in every epoch when memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onward.errors import TrainingError
from onward.lm.head import token_logprobs
from onward.lm.packing import Packed, common_prefix
from onward.lm.policy import Policy, split_by_tokens
from onward.lm.tokens import TokenRow


@dataclass
class Prepared:
    """Rows with at least one trained token, cut after the last one, and (trained tokens,) advantages."""

    rows: list[TokenRow]
    advantages: list[Tensor]

    @classmethod
    def of(
        cls, rows: Sequence[TokenRow], advantages: Sequence[float | Sequence[float]], max_positions: int
    ) -> Prepared:
        """Raises TrainingError (DATA) with the first thing that is wrong."""
        if len(rows) != len(advantages):
            raise TrainingError(
                "DATA", f"There are {len(rows)} rows but {len(advantages)} advantages: give one each."
            )
        kept: list[TokenRow] = []
        chosen: list[Tensor] = []
        for number, (row, advantage) in enumerate(zip(rows, advantages, strict=True)):
            positions = [t for t in range(1, len(row)) if row.sampled[t]]
            if not positions:
                continue
            _check(number, row, positions, max_positions)
            end = positions[-1] + 1
            kept.append(TokenRow(row.ids[:end], row.sampled[:end], row.logprobs[:end], row.temperature))
            if isinstance(advantage, Sequence | Tensor):
                if len(advantage) != len(row):
                    raise TrainingError(
                        "DATA",
                        f"Row {number} has {len(row)} tokens but {len(advantage)} advantages: give one each.",
                    )
                values = torch.tensor([float(advantage[t]) for t in positions])
            else:
                values = torch.full((len(positions),), float(advantage))
            if not bool(torch.isfinite(values).all()):
                raise TrainingError(
                    "DATA", f"Row {number} has an advantage that is not finite: leave the row out."
                )
            chosen.append(values)
        if not kept:
            raise TrainingError(
                "DATA", f"None of the {len(rows)} rows has a sampled token: there is nothing to train."
            )
        return cls(kept, chosen)


def _check(number: int, row: TokenRow, positions: Sequence[int], max_positions: int) -> None:
    problem = ""
    if not len(row.ids) == len(row.sampled) == len(row.logprobs):
        problem = "lists of different lengths"
    elif len(row) > max_positions:
        problem = f"{len(row)} tokens where the network allows {max_positions}"
    elif not 0 < row.temperature < math.inf:
        problem = f"temperature {row.temperature}, under which no gradient exists"
    elif not all(-math.inf < row.logprobs[t] <= 1e-4 for t in positions):
        problem = "a sampled token whose log-prob is not a finite number ≤ 0"
    if problem:
        raise TrainingError("DATA", f"Row {number} has {problem}: it cannot be trained on, leave it out.")


class Batches:
    """Micro-batches of ``prepared`` for one adapter; the prefix common to all rows is shared."""

    def __init__(
        self, policy: Policy, adapter: str, prepared: Prepared, limit: int, cache_bytes: int
    ) -> None:
        self.policy = policy
        self.prepared = prepared
        self.limit = limit
        self.first = policy.adapter(adapter).first_layer
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
        return packed, self.policy.hidden(packed, adapter, x, first)

    @torch.no_grad()
    def logprobs(self, adapter: str | None) -> list[Tensor]:
        """Log-probs of each row's trained tokens under ``adapter`` as it is now."""
        result: dict[int, Tensor] = {}
        for part in self.split(range(len(self.prepared.rows))):
            packed, hidden = self.hidden(part, adapter)
            logp, _ = token_logprobs(hidden, self.policy.weights.head, packed.targets, packed.temperature)
            result.update(zip(part, logp.cpu().split(packed.counts), strict=True))
        return [result[i] for i in range(len(self.prepared.rows))]
