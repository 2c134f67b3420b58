"""Checked rows of the learner, cut into micro-batches, with the output of frozen layers computed once.

Layers below the adapter's first one do not depend on the trained parameters. Their output is computed once
per update, without a graph, and reused in every epoch when memory allows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from onward.errors import TrainingError
from onward.lm.head import token_logprobs
from onward.lm.packing import Packed, Run, common_prefix
from onward.lm.policy import Policy, split_by_tokens
from onward.lm.tokens import TokenRow

MIN_SHARED = 8
"""A prompt that saves fewer tokens per row is not worth a separate attention call."""

Piece = tuple[str, int]
"""A stretch of tokens that is computed once: ("prefix", 0), ("prompt", its number), ("row", its number)."""


@dataclass
class Sharing:
    """Parts shared by the rows of one update: the prefix of all, and prompts with several answers.

    A prompt is shared short of its last token, since the log-prob of the first sampled token is computed
    there, row by row. Rows are identified by their index.
    """

    prefix: int
    """Number of tokens that all rows begin with."""
    lengths: list[int]
    prompt_of: list[int | None]
    """The prompt that a row shares with others; None if it shares no more than the prefix."""
    prompts: list[int]
    """Length of each shared prompt, the prefix included."""
    members: list[list[int]] = field(default_factory=list)
    """Rows of each shared prompt."""

    @classmethod
    def from_rows(cls, rows: Sequence[TokenRow]) -> Sharing:
        prefix = common_prefix(rows)
        same: dict[tuple[int, ...], list[int]] = {}
        for i, row in enumerate(rows):
            same.setdefault(tuple(row.ids[: _prompt(row)]), []).append(i)
        found = cls(prefix, [len(row) for row in rows], [None] * len(rows), [])
        for ids, members in same.items():
            if len(members) > 1 and len(ids) - 1 - prefix >= MIN_SHARED:
                for i in members:
                    found.prompt_of[i] = len(found.prompts)
                found.prompts.append(len(ids) - 1)
                found.members.append(members)
        return found

    @property
    def tokens(self) -> int:
        """Tokens to compute when every piece is computed once."""
        prompts = sum(length - self.prefix for length in self.prompts)
        return self.prefix + prompts + sum(self.rest(i) for i in range(len(self.lengths)))

    def _shared(self, i: int) -> int:
        prompt = self.prompt_of[i]
        return self.prefix if prompt is None else self.prompts[prompt]

    def prompt(self, i: int) -> int:
        """Tokens between the prefix of all and row ``i``'s own rest."""
        return self._shared(i) - self.prefix

    def rest(self, i: int) -> int:
        """Tokens that only row ``i`` has."""
        return self.lengths[i] - self._shared(i)

    def together(self, indices: Sequence[int]) -> list[list[int]]:
        """Groups ``indices`` into neighbours: single rows by length first, then the rows of each prompt."""
        alone = sorted((i for i in indices if self.prompt_of[i] is None), key=lambda i: (self.lengths[i], i))
        groups: dict[int, list[int]] = {}
        for i in sorted(indices, key=lambda i: (self.lengths[i], i)):
            prompt = self.prompt_of[i]
            if prompt is not None:
                groups.setdefault(prompt, []).append(i)
        return [[i] for i in alone] + list(groups.values())

    def shuffled(self, shuffle: random.Random) -> list[int]:
        """Returns all rows in random order, with those of one prompt next to each other, which is cheaper."""
        units = [[i] for i, prompt in enumerate(self.prompt_of) if prompt is None] + self.members
        return [i for unit in shuffle.sample(units, len(units)) for i in unit]

    def runs(self, part: Sequence[int]) -> list[Run]:
        """Neighbouring rows of ``part`` with the same prompt (or with none)."""
        runs: list[Run] = []
        last: int | None = -1
        for i in part:
            prompt = self.prompt_of[i]
            if runs and prompt == last:
                runs[-1] = Run(runs[-1].rows + 1, runs[-1].shared)
            else:
                runs.append(Run(1, self._shared(i)))
            last = prompt
        return runs

    def pieces(self, part: Sequence[int]) -> list[Piece]:
        """Returns the pieces of the stream of ``part``, in the order of ``Packed.pieces``."""
        prompts: list[Piece] = []
        at = 0
        for run in self.runs(part):
            prompt = self.prompt_of[part[at]]
            prompts.append(("none", 0) if prompt is None else ("prompt", prompt))
            at += run.rows
        return [("prefix", 0), *prompts, *(("row", i) for i in part)]


def _prompt(row: TokenRow) -> int:
    """Tokens before the first sampled one."""
    return row.sampled.index(True) if True in row.sampled else len(row)


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

    The prefix of all rows is computed once per micro-batch. So is the prompt of rows that answer the same one
    (a group of attempts, the two sides of a pair): such rows stay neighbours.
    """

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
        self.sharing = Sharing.from_rows(prepared.rows)
        size = self.sharing.tokens * policy.shape.hidden * policy.weights.norm.element_size()
        self._states: dict[Piece, Tensor] | None = None
        if self.first > 0 and size <= cache_bytes:
            self._states = self._fill()

    @torch.no_grad()
    def _fill(self) -> dict[Piece, Tensor]:
        states: dict[Piece, Tensor] = {}
        for part in self.split(range(len(self.prepared.rows))):
            packed = self._pack(part)
            parts = self.policy.trunk(packed, self.first).split(packed.pieces)
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

    def hidden(self, part: Sequence[int], adapter: str | None) -> tuple[Packed, Tensor]:
        """Returns the packed rows, and the last hidden state before each trained token, in row order."""
        packed = self._pack(part)
        x, first = None, 0
        if self._states is not None:
            x, first = torch.cat([self._states[piece] for piece in self.sharing.pieces(part)]), self.first
        return packed, self.policy.hidden(packed, adapter, x, first, recompute=self.recompute)

    @torch.no_grad()
    def each(self, adapter: str | None, found: Callable[[Packed, Tensor], Tensor]) -> list[Tensor]:
        """Applies ``found(packed, hidden)``, a number or vector per trained token, and splits it by row."""
        result: dict[int, Tensor] = {}
        for part in self.split(range(len(self.prepared.rows))):
            packed, hidden = self.hidden(part, adapter)
            result.update(zip(part, found(packed, hidden).cpu().split(packed.counts), strict=True))
        return [result[i] for i in range(len(self.prepared.rows))]

    def logprobs(self, adapter: str | None) -> list[Tensor]:
        """Returns log-probs of each row's trained tokens under the current ``adapter``."""

        def found(packed: Packed, hidden: Tensor) -> Tensor:
            return token_logprobs(hidden, self.policy.weights.head, packed.targets, packed.temperature)[0]

        return self.each(adapter, found)
