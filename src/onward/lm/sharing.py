"""Parts that rows of an update share: the prefix of all, and prompts with several answers. Needs no torch.

The learner computes each shared part once (``batches``, ``packing``), and an estimate counts it once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

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

    @classmethod
    def nothing(cls, rows: Sequence[TokenRow]) -> Sharing:
        """Returns the sharing of rows of which each is computed whole."""
        return cls(0, [len(row) for row in rows], [None] * len(rows), [])

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
