"""Stored assignments of sessions to arms: the cache in front of bucket ``rl_sessions``.

The record is written while the engine already works (a durable write costs an fsync), and the answer waits
for both. If another gateway wrote first, its record counts and the call is made again on that arm.
"""

from __future__ import annotations

import asyncio

from onward.bus import Bus, read_all, read_stored
from onward.clock import Clock, utc_text
from onward.contracts.buckets import Assignment
from onward.errors import BusError, ConflictError
from onward.lru import Lru
from onward.serving.routing.arms import Routes, assign, session_key

BUS_SECONDS = 2.0
"""Seconds for recording a session. After that it is served by current and not counted."""
MOST_KNOWN = 100_000
"""Assignments in memory, the most recently used ones; the bucket is the truth."""


class Assignments:
    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bucket = bus.bucket(Assignment.BUCKET)
        self._bus, self._clock = bus, clock
        self._cache: Lru[str, Assignment] = Lru(MOST_KNOWN)

    async def find(self, session_id: str) -> Assignment | None:
        """Returns the session's newest assignment, under any release. Raises BusError."""
        known = self._cache.get(session_id)
        if known is None:
            known = (await self._read(session_id))[0]
            if known is not None:
                self._cache[session_id] = known
        return known

    def find_cached(self, routes: Routes, session_id: str) -> Assignment | None:
        """Returns the assignment under the release of ``routes``, if it is in memory."""
        known = self._cache.get(session_id)
        return known if known is not None and known.release_id == routes.release_id else None

    async def begin(
        self, routes: Routes, session_id: str
    ) -> tuple[Assignment, asyncio.Task[Assignment] | None]:
        """First contact within a release. Returns the assignment, and the write under way if it is new. The
        task's result is the assignment that counts. Raises BusError if the bus is away."""
        before, revision = await self._read(session_id)
        if before is not None and before.release_id == routes.release_id:
            self._cache[session_id] = before
            return before, None
        chosen = assign(routes, session_id, utc_text(self._clock.now()), before)
        if before is not None:
            chosen = chosen.with_unknown_fields(before)
        return chosen, asyncio.create_task(self._write(chosen, revision))

    async def of_release(self, release_id: str) -> list[Assignment]:
        """Returns every recorded session of a release, in one pass."""
        found = []
        for entry in await read_all(self._bucket, Assignment):
            if entry.document is not None and entry.document.release_id == release_id:
                found.append(entry.document)
        return found

    async def is_answered(self, assignment: Assignment) -> bool:
        """Returns whether any gateway noted an answer for this session. Raises BusError."""
        stored, _ = await self._read(assignment.session_id)
        return stored is not None and stored.release_id == assignment.release_id and stored.answered

    async def mark_answered(self, session_id: str, release_id: str) -> None:
        """Records for every gateway that a task of this session ended with an answer. Raises BusError."""
        while True:
            stored, revision = await self._read(session_id)
            if stored is None or stored.release_id != release_id or stored.answered:
                return
            marked = stored.model_copy(update={"answered": True})
            try:
                await self._bucket.update(
                    session_key(session_id), marked.dump(), revision, deadline=BUS_SECONDS
                )
                return
            except ConflictError:
                continue  # another gateway wrote at the same time

    async def _read(self, session_id: str) -> tuple[Assignment | None, int]:
        if not self._bus.is_connected:
            raise BusError("NATS is away: the session cannot be assigned.")
        try:
            async with asyncio.timeout(BUS_SECONDS):
                stored = await read_stored(self._bucket, Assignment, session_key(session_id))
        except TimeoutError:
            raise BusError("NATS did not answer in time: the session cannot be assigned.") from None
        return stored.document, stored.revision

    async def _write(self, chosen: Assignment, revision: int) -> Assignment:
        key, value = session_key(chosen.session_id), chosen.dump()
        try:
            if revision:
                await self._bucket.update(key, value, revision, deadline=BUS_SECONDS)
            else:
                await self._bucket.create(key, value, deadline=BUS_SECONDS)
        except ConflictError:
            first, _ = await self._read(chosen.session_id)
            if first is None or first.release_id != chosen.release_id:
                raise BusError("The session's record changed twice: it is not counted.") from None
            chosen = first
        self._cache[chosen.session_id] = chosen
        return chosen
