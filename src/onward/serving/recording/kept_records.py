"""Generation records that a client fetches after its calls, under a name that it gave with them.

For clients whose own library drops the record from the answer (LiteLLM, and so Agent Zero). They record by
themselves (``Onward-Capture: off``), name a call by ``Onward-Records: <id>``, and fetch by the same API key.

Invariants: memory is bounded, the oldest names go first. Only the key that made the calls gets the records.
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


@dataclass
class _Named:
    touched: float
    records: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(map(len, self.records))


class KeptRecords:
    def __init__(self, clock: Clock, limit: int = BYTES) -> None:
        self._clock, self._limit = clock, limit
        self._named: OrderedDict[tuple[str, str], _Named] = OrderedDict()
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
        named = self._named.setdefault((owner, name), _Named(now))
        named.touched = now
        self._named.move_to_end((owner, name))
        written = json.dumps(told, separators=(",", ":")).encode()
        named.records.append(written)
        self._size += len(written)
        self._forget_old(now)

    def get(self, owner: str, name: str) -> list[dict[str, Any]]:
        """Returns the records under a name, in the order of their answers; they stay for a repeat."""
        self._forget_old(self._clock.monotonic())
        named = self._named.get((owner, name))
        return [] if named is None else [json.loads(written) for written in named.records]

    def _forget_old(self, now: float) -> None:
        while self._named:
            oldest = next(iter(self._named.values()))
            if self._size <= self._limit and now - oldest.touched <= SECONDS:
                return
            self._size -= self._named.popitem(last=False)[1].size
