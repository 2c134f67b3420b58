"""A bucket in memory for one key, with compare-and-set: enough for a lease."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

from unreadable_alone import NoStandIns

from onward.bus.buckets import Entry
from onward.errors import BusError, ConflictError


class MemoryBucket:
    def __init__(self) -> None:
        self.bus = SimpleNamespace(unreadable=NoStandIns())
        self.entry: Entry | None = None
        self.revisions = count(1)
        self.away = False

    async def get(self, key):
        self._check()
        return self.entry

    async def create(self, key, value, *, deadline=0.0):
        self._check()
        if self.entry is not None:
            raise ConflictError("exists")
        return self._set(key, value)

    async def put(self, key, value, *, deadline=0.0):
        self._check()
        return self._set(key, value)

    async def delete(self, key):
        self._check()
        self.entry = None

    async def update(self, key, value, revision, *, deadline=0.0):
        self._check()
        if self.entry is None or self.entry.revision != revision:
            raise ConflictError("changed")
        return self._set(key, value)

    def _check(self):
        if self.away:
            raise BusError("away")

    def _set(self, key, value):
        self.entry = Entry(key, value, next(self.revisions))
        return self.entry.revision
