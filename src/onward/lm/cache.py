"""Keys and values of running rows (one slot each), and of prefixes that later prompts may share.

A stored prefix is valid for one set of fused adapter weights, compared by identity. After an optimiser step
or a swap ``Adapter.fused`` is another object, and the prefix is no longer found. Base weights have no such
object: the sampler drops every prefix when they change.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from onward.lm.network import Shape

BLOCK = 8  # tokens
STEP = 64  # tokens; the length of the slots is a multiple of this


class SlotCache:
    """Static cache ``(layers, 2, slots, kv_heads, length, head_dim)`` that grows to the reserved size.

    Its size follows the running rows, not the largest possible batch: a sampler made for one group of answers
    must not spend a third of a second clearing memory that is never read.
    """

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.shape = shape
        self.slots, self.length = 0, 0
        self._device, self._dtype = device, dtype
        self.data = self._zeros(0, 0)
        self._views()

    def _zeros(self, slots: int, length: int) -> Tensor:
        """Allocates zeros, since a masked position is still multiplied by 0; on a CPU, untouched pages."""
        s = self.shape
        size = (s.layers, 2, slots, s.kv_heads, length, s.head_dim)
        if self._device.type == "cpu" and self._dtype == torch.float32:
            return torch.from_numpy(np.zeros(size, dtype=np.float32))
        return torch.zeros(size, device=self._device, dtype=self._dtype)

    def _views(self) -> None:
        layers, _, slots, kv, length, d = self.data.shape
        self.slots, self.length = slots, length
        flat = self.data.view(layers, 2, slots * kv, length, d)
        self.keys = [flat[i, 0] for i in range(layers)]
        self.values = [flat[i, 1] for i in range(layers)]
        self.key_rows = [flat[i, 0].view(-1, d) for i in range(layers)]
        self.value_rows = [flat[i, 1].view(-1, d) for i in range(layers)]

    def reserve(self, slots: int, length: int) -> None:
        """Grows to at least ``slots`` rows of ``length`` tokens; existing content is preserved."""
        if slots <= self.slots and length <= self.length:
            return
        old = self.data
        length = max(self.length, -(-length // STEP) * STEP)
        if self.slots:  # grow by half, so that repeated growth does not copy each time
            slots = max(slots, 3 * self.slots // 2) if slots > self.slots else self.slots
            length = max(length, 3 * self.length // 2) if length > self.length else length
        self.data = self._zeros(slots, length)
        self.data[:, :, : old.shape[2], :, : old.shape[4]] = old
        self._views()

    def read(self, slot: int, length: int) -> Tensor:
        """Returns a copy of the first ``length`` positions of ``slot``."""
        return self.data[:, :, slot, :, :length].clone()

    def write(self, slot: int, data: Tensor) -> None:
        self.data[:, :, slot, :, : data.shape[3]] = data

    def copy(self, source: int, target: int, length: int) -> None:
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]


@dataclass
class Prefix:
    """Tokens with their keys and values under ``weights`` (the fused adapter, or None)."""

    ids: np.ndarray
    weights: object
    data: Tensor

    @property
    def size(self) -> int:
        return self.data.numel() * self.data.element_size()


class PrefixStore:
    """Prefixes within ``limit`` bytes, found by blocks of ``BLOCK`` tokens; the least recently used are
    evicted.

    Each entry is listed under every whole block of its beginning, so a search costs one look-up per block of
    the prompt, however many prefixes are stored.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._entries: OrderedDict[int, Prefix] = OrderedDict()
        self._blocks: dict[tuple[int, int], int] = {}  # (weights, hash of the first k blocks) -> entry
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, ids: np.ndarray, weights: object) -> tuple[Prefix | None, int]:
        """Returns an entry that begins as ``ids`` does, and the common length, at least one block."""
        for key in reversed(_block_keys(ids, weights)):
            number = self._blocks.get(key)
            if number is not None:
                entry = self._entries[number]
                length = shared(entry.ids, ids)
                if length and entry.weights is weights:
                    self._entries.move_to_end(number)
                    return entry, length
        return None, 0

    def put(self, ids: np.ndarray, weights: object, data: Tensor) -> None:
        """Stores a prefix; drops the entry that it extends, and the oldest entries beyond the limit."""
        known, length = self.find(ids, weights)
        if known is not None and length == len(ids):
            return
        new = Prefix(ids, weights, data)
        if new.size > self.limit:
            return
        if known is not None and length == len(known.ids):
            self._drop(next(reversed(self._entries)))  # ``find`` made it the most recent one
        for key in _block_keys(ids, weights):
            self._blocks[key] = self._next
        self._entries[self._next] = new
        self._next += 1
        self.used += new.size
        while self.used > self.limit:
            self._drop(next(iter(self._entries)))

    def keep_only(self, weights: list[object]) -> None:
        """Drops prefixes of adapters that are no longer resident or have changed."""
        for number, entry in list(self._entries.items()):
            if not any(entry.weights is w for w in weights):
                self._drop(number)

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        self.used -= entry.size
        for key in _block_keys(entry.ids, entry.weights):
            if self._blocks.get(key) == number:
                del self._blocks[key]


def _block_keys(ids: np.ndarray, weights: object) -> list[tuple[int, int]]:
    data, width = ids.tobytes(), BLOCK * ids.itemsize
    ends = range(width, len(data) + 1, width)
    return [(id(weights), hash(data[:end])) for end in ends]


def shared(a: np.ndarray, b: np.ndarray) -> int:
    """Returns the length of the common prefix of two integer arrays."""
    n = min(len(a), len(b))
    if n == 0 or a[0] != b[0]:
        return 0
    different = np.nonzero(a[:n] != b[:n])[0]
    return int(different[0]) if len(different) else n
