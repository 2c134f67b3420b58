"""Checked rows of the learner, cut into micro-batches, with the output of frozen layers computed once.

Layers below the adapter's first one do not depend on the trained parameters. Their output is computed once
per update, without a graph, and reused in every epoch when memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from onward.errors import TrainingError
from onward.lm.model import LanguageModel
from onward.lm.packing import Packed, Wanted, split_by_tokens
from onward.lm.policy import Policy
from onward.lm.sharing import Piece, Sharing
from onward.lm.tokens import TokenRow

Behaviour = Literal["recorded", "recompute", "unused"]


@dataclass
class Prepared:
    """Rows with at least one trained token, cut after the last one; ``origin`` is the input index of each."""

    rows: list[TokenRow]
    origin: list[int]
    given: list[int]
    """Length of every input row, kept or not."""

    @classmethod
    def from_rows(
        cls, rows: Sequence[TokenRow], max_positions: int, behaviour: Behaviour = "recorded"
    ) -> Prepared:
        """Checks and cuts ``rows``. Raises TrainingError (DATA) with the first problem found.

        ``behaviour`` is the source of each sampled token's probability: recorded, computed by the learner, or
        unused by the loss (preferences).
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
        """Converts ``values`` per input row to (trained tokens,) float32 tensors per kept row. A value is one
        number for the row, or one per token of it, or one per trained token."""
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
            raise TrainingError(
                "DATA", f"Row {number} has a value of {what} that is not finite: leave the row out."
            )
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
    """Micro-batches of ``prepared`` for one adapter (None: all weights).

    Our own network computes the prefix of all rows once per micro-batch. So it does the prompt of rows that
    answer the same one (a group of attempts, the two sides of a pair): such rows stay neighbours. Another
    network computes each row whole.
    """

    def __init__(
        self,
        policy: LanguageModel,
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
        self._own = policy if isinstance(policy, Policy) else None
        self._states: dict[Piece, Tensor] | None = None
        if self._own is None:
            self.first, self.sharing = 0, Sharing.nothing(prepared.rows)
            return
        self.first = 0 if adapter is None else self._own.adapters[adapter].first_layer
        self.sharing = Sharing.from_rows(prepared.rows)
        size = self.sharing.tokens * policy.shape.hidden * policy.torch_dtype.itemsize
        if self.first > 0 and size <= cache_bytes:
            self._states = self._fill(self._own)

    @torch.no_grad()
    def _fill(self, own: Policy) -> dict[Piece, Tensor]:
        states: dict[Piece, Tensor] = {}
        for part in self.split(range(len(self.prepared.rows))):
            packed = self._pack(part)
            parts = own.trunk(packed, self.first).split(packed.pieces)
            for piece, state in zip(self.sharing.pieces(part), parts, strict=True):
                if piece not in states:
                    states[piece] = state.clone()
        return states

    def split(self, indices: Sequence[int]) -> list[list[int]]:
        """Splits rows into parts of at most ``limit`` computed tokens (after the common prefix) and at least
        one row. Rows of one prompt stay together; otherwise a part has rows of similar length."""
        units: list[list[int]] = []
        lengths: list[int] = []
        for together in self.sharing.together(indices):
            prompt, rests = self.sharing.prompt(together[0]), [self.sharing.rest(i) for i in together]
            for unit in split_by_tokens(range(len(together)), rests, max(1, self.limit - prompt)):
                units.append([together[k] for k in unit])
                lengths.append(prompt + sum(rests[k] for k in unit))
        return [
            [i for k in run for i in units[k]]
            for run in split_by_tokens(range(len(units)), lengths, self.limit)
        ]

    def _pack(self, part: Sequence[int]) -> Packed:
        rows = [self.prepared.rows[i] for i in part]
        return Packed(rows, self.sharing.prefix, self.policy.device, self.sharing.runs(part))

    def hidden(self, part: Sequence[int], adapter: str | None) -> tuple[Wanted, Tensor]:
        """Returns the wanted log-probs of the rows, and the last hidden state before each, in row order."""
        if self._own is None:
            rows = [self.prepared.rows[i] for i in part]
            return self.policy.states(rows, adapter, recompute=self.recompute)
        packed = self._pack(part)
        x, first = None, 0
        if self._states is not None:
            x, first = torch.cat([self._states[piece] for piece in self.sharing.pieces(part)]), self.first
        return packed, self._own.hidden(packed, adapter, x, first, recompute=self.recompute)

    @torch.no_grad()
    def each(
        self,
        adapter: str | None,
        found: Callable[[Wanted, Tensor], Tensor],
        rows: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """Applies ``found(packed, hidden)``, a number or vector per trained token, and splits it by row: of
        ``rows``, by default of all."""
        result: dict[int, Tensor] = {}
        rows = range(len(self.prepared.rows)) if rows is None else rows
        for part in self.split(rows):
            packed, hidden = self.hidden(part, adapter)
            result.update(zip(part, found(packed, hidden).cpu().split(packed.counts), strict=True))
        return [result[i] for i in rows]

    def logprobs(self, adapter: str | None, rows: Sequence[int] | None = None) -> list[Tensor]:
        """Returns log-probs of each row's trained tokens under the current ``adapter``, as ``each`` does."""

        def found(packed: Wanted, hidden: Tensor) -> Tensor:
            return self.policy.token_logprobs(
                hidden, packed.targets, packed.temperature, permitted=packed.permitted
            )[0]

        return self.each(adapter, found, rows)
