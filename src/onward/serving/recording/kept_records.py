"""Generation records that a client fetches after its calls, under a name that it gave with them.

For clients whose own library drops the record from the answer (LiteLLM, and so Agent Zero). They record by
themselves (``Onward-Capture: off``), name a call by ``Onward-Records: <id>``, and fetch by the same API key.

Invariants: memory is bounded. Where room is short, the key with most bytes loses its own oldest name, so one
that uses no more than an equal share loses nothing to others. Only the key that made the calls gets the
records.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from onward.clock import Clock

HEADER = "Onward-Records"
SECONDS = 3600.0
"""Time that a name is kept after its latest answer."""
BYTES = 64 << 20
"""Limit of all records of all keys."""


@dataclass
class _Named:
    touched: float
    records: list[bytes] = field(default_factory=list)
    size: int = 0


@dataclass
class _Owned:
    """Records of one key, by name, the oldest first."""

    named: OrderedDict[str, _Named] = field(default_factory=OrderedDict)
    size: int = 0


class KeptRecords:
    def __init__(self, clock: Clock, limit: int = BYTES) -> None:
        self._clock, self._limit = clock, limit
        self._owned: dict[str, _Owned] = {}
        self._size = 0

    def add(self, owner: str, name: str, answer: dict[str, Any], text: str) -> None:
        """Adds the record of an answer, if its engine made one. ``text``: the model's whole text."""
        ours = answer.get("onward") or {}
        if not ours.get("sampling"):
            return
        told = {
            "text": text,
            "model": ours.get("model_id"),
            "release": ours.get("release"),
            "sampling": ours["sampling"],
        }
        now = self._clock.monotonic()
        owned = self._owned.setdefault(owner, _Owned())
        named = owned.named.setdefault(name, _Named(now))
        named.touched = now
        owned.named.move_to_end(name)
        written = json.dumps(told, separators=(",", ":")).encode()
        named.records.append(written)
        for part in (named, owned):
            part.size += len(written)
        self._size += len(written)
        self._forget_old(now)
        while self._size > self._limit:
            # Of keys with as much, the one that asks for room makes it.
            self._forget_oldest(max(self._owned, key=lambda key: (self._owned[key].size, key == owner)))

    def get(self, owner: str, name: str) -> list[dict[str, Any]]:
        """Returns the records under a name, in the order of their answers; they stay for a repeat."""
        self._forget_old(self._clock.monotonic())
        owned = self._owned.get(owner)
        named = None if owned is None else owned.named.get(name)
        return [] if named is None else [json.loads(written) for written in named.records]

    def _forget_old(self, now: float) -> None:
        for owner, owned in list(self._owned.items()):
            while owned.named and now - next(iter(owned.named.values())).touched > SECONDS:
                self._forget_oldest(owner)

    def _forget_oldest(self, owner: str) -> None:
        owned = self._owned[owner]
        _, named = owned.named.popitem(last=False)
        owned.size -= named.size
        self._size -= named.size
        if not owned.named:
            del self._owned[owner]
