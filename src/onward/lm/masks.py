"""The tokens that a grammar allowed at one place of an answer, in little memory. Needs no torch.

A mask of 49,152 tokens is 6 KiB. Where few tokens are allowed, which is most places of a JSON text, their ids
are stored instead, and equal masks are one object: an answer of 100 tokens in a schema of enums needs about
a kilobyte.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_SHARED = 1024
"""Distinct masks that are remembered, so that equal ones are one object: at most 6 MiB for 49,152 tokens."""
_UNPACKED = 64
"""Masks that are remembered with a byte per token: at most 3 MiB for 49,152 tokens."""


@dataclass(frozen=True)
class AllowedTokens:
    """A set of token ids below ``vocab``: ``data`` has the ids (int32, ascending), or a bit per token in
    words of 32 bits if those are shorter."""

    vocab: int
    count: int
    data: bytes

    @classmethod
    def of_words(cls, words: NDArray[np.int32], vocab: int) -> AllowedTokens:
        """Returns the set whose token ``t`` is bit ``t % 32`` of word ``t // 32``, as a ``Constraint`` writes
        it. Bits beyond the vocabulary do not count."""
        return _of_words(words.tobytes(), vocab)

    @classmethod
    def of_ids(cls, ids: Sequence[int], vocab: int) -> AllowedTokens:
        """Returns a set of token ids."""
        words = np.zeros((vocab + 31) // 32, dtype=np.uint32)
        chosen = np.asarray(ids, dtype=np.int64)
        np.bitwise_or.at(words, chosen // 32, np.uint32(1) << (chosen % 32).astype(np.uint32))
        return _of_words(words.tobytes(), vocab)

    @classmethod
    def only(cls, token: int, vocab: int) -> AllowedTokens:
        """Returns the set of one token."""
        return _only(token, vocab)

    @property
    def is_forced(self) -> bool:
        """True if one token alone is allowed: nothing was decided at this place."""
        return self.count == 1

    @property
    def first(self) -> int:
        """The smallest id: the only one of a forced token."""
        if self.is_listed:
            return int.from_bytes(self.data[:4], sys.byteorder)
        return int(self.ids[0])

    @property
    def is_listed(self) -> bool:
        """True if ``data`` has the ids."""
        return self.count <= (self.vocab + 31) // 32

    @property
    def ids(self) -> NDArray[np.int32]:
        """The ids, ascending."""
        if self.is_listed:
            return np.frombuffer(self.data, dtype=np.int32)
        return np.flatnonzero(self.bits).astype(np.int32)

    @property
    def bits(self) -> NDArray[np.uint8]:
        """One byte per token of the vocabulary: 1 for an allowed one."""
        if self.is_listed:
            made = np.zeros(self.vocab, dtype=np.uint8)
            made[self.ids] = 1
            return made
        return np.unpackbits(np.frombuffer(self.data, np.uint8), count=self.vocab, bitorder="little")

    @property
    def closed(self) -> NDArray[np.bool_]:
        """One truth value per token of the vocabulary: true for a token that is not allowed. Read only, and
        one array for equal masks."""
        return _closed(self)

    @property
    def words(self) -> NDArray[np.uint32]:
        """One bit per token, as a ``Constraint`` writes it."""
        if not self.is_listed:
            return np.frombuffer(self.data, dtype=np.uint32)
        packed = np.zeros((self.vocab + 31) // 32 * 4, dtype=np.uint8)
        some = np.packbits(self.bits, bitorder="little")
        packed[: len(some)] = some
        return packed.view(np.uint32)

    def __contains__(self, token: int) -> bool:
        if self.is_forced:
            return token == self.first
        if not self.is_listed:
            return 0 <= token < self.vocab and bool(self.data[token >> 3] >> (token & 7) & 1)
        ids = self.ids
        place = int(np.searchsorted(ids, token))
        return place < len(ids) and int(ids[place]) == token


@lru_cache(maxsize=_SHARED)
def _of_words(raw: bytes, vocab: int) -> AllowedTokens:
    words = np.frombuffer(raw, dtype=np.uint32).copy()
    if vocab % 32:
        words[-1] &= np.uint32((1 << vocab % 32) - 1)
    count = int(np.bitwise_count(words).sum())
    if count > len(words):
        return AllowedTokens(vocab, count, words.tobytes())
    ids = np.flatnonzero(np.unpackbits(words.view(np.uint8), count=vocab, bitorder="little"))
    return _only(int(ids[0]), vocab) if count == 1 else AllowedTokens(vocab, count, _listed(ids))


@lru_cache(maxsize=_SHARED)
def _only(token: int, vocab: int) -> AllowedTokens:
    return AllowedTokens(vocab, 1, _listed(np.array([token])))


def _listed(ids: NDArray[np.int64]) -> bytes:
    return ids.astype(np.int32).tobytes()


@lru_cache(maxsize=_UNPACKED)
def _closed(mask: AllowedTokens) -> NDArray[np.bool_]:
    outside = mask.bits == 0
    outside.flags.writeable = False
    return outside
