"""A mapping of limited size: the entry unused for longest is evicted."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Lru(OrderedDict[Key, Value]):
    """Holds at most ``size`` entries. Storing and reading an entry (``[]``, ``get``) count as use; ``in`` and
    iteration do not. Not thread-safe."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self._size:
            self.popitem(last=False)

    def __getitem__(self, key: Key) -> Value:
        value = super().__getitem__(key)
        self.move_to_end(key)
        return value

    def get(self, key: Key, default: Value | None = None) -> Value | None:  # type: ignore[override]
        if key not in self:
            return default
        return self[key]
