"""Leases: one owner of a piece of work at a time, judged by clocks that only go forward.

Invariants: wall clocks are never compared, and no server-side expiry is used. A lease is free if its revision
stayed unchanged for its TTL on the observer's monotonic clock. Its owner stops earlier than any other process
may start, because it counts from before its last renewal was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.bus.documents import load_entry
from onward.clock import Clock
from onward.contracts.buckets import LeaseHolder
from onward.errors import BusError, ConflictError
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.bus.buckets import Bucket

log = logs.get("lease")


class Lease:
    """A lease: ``acquire`` until it returns an epoch, then ``renew`` within the TTL, or ``keep_renewed``."""

    def __init__(self, bucket: Bucket, name: str, owner: str, ttl: float, clock: Clock) -> None:
        """``name`` is the key; ``owner`` must differ between processes and restarts; ``ttl`` in seconds."""
        if ttl <= 0:
            raise ValueError(f"a lease needs a ttl above 0 seconds, not {ttl}")
        self.bucket, self.name, self.owner, self.ttl, self.clock = bucket, name, owner, ttl, clock
        self.epoch: int | None = None
        """Revision at which it was acquired: rises with every owner, so it fences off older ones."""
        self._revision = 0
        self._valid_until = float("-inf")
        self._seen: tuple[int, float] | None = None

    @property
    def held(self) -> bool:
        """True if this object may still act as the owner, by its own clock alone."""
        return self.epoch is not None and self.clock.monotonic() < self._valid_until

    async def acquire(self) -> int | None:
        """Tries once; returns the epoch, or None while another owner has the lease.

        A lease that its owner did not release is acquired after it was seen unchanged for its TTL, so call
        this again every second or so. Raises BusError if NATS is unreachable.
        """
        if self.held:
            return self.epoch
        started = self.clock.monotonic()
        entry = await self.bucket.get(self.name)
        try:
            if entry is None:
                revision = await self.bucket.create(self.name, self._value(), deadline=self.ttl)
            else:
                holder = (await load_entry(self.bucket, LeaseHolder, entry)).document
                if not self._is_free(entry.revision, holder):
                    return None
                revision = await self.bucket.update(
                    self.name, self._value(), entry.revision, deadline=self.ttl
                )
        except ConflictError:
            return None  # another process was faster
        self.epoch = self._revision = revision
        self._valid_until = started + self.ttl
        self._seen = None
        if not self.held:  # the answer took longer than the lease lasts
            self.epoch = None
            return None
        return self.epoch

    def _is_free(self, revision: int, holder: LeaseHolder | None) -> bool:
        theirs = holder or LeaseHolder(ttl=self.ttl, released=False)
        now = self.clock.monotonic()
        if theirs.released:
            return True
        if self._seen is None or self._seen[0] != revision:
            self._seen = (revision, now)
            return False
        return now - self._seen[1] >= max(theirs.ttl, self.ttl)

    async def renew(self) -> None:
        """Extends it by one TTL. Raises ConflictError if it is lost: stop the work at once.

        While NATS is unreachable it retries until the lease has expired on its own clock.
        """
        while True:
            if not self.held:
                self.epoch = None
                raise ConflictError(f"The lease {self.name} ran out before a renewal: stop the work.")
            started = self.clock.monotonic()
            try:
                self._revision = await self.bucket.update(
                    self.name, self._value(), self._revision, deadline=self._valid_until - started
                )
            except ConflictError:
                self.epoch = None
                raise ConflictError(
                    f"The lease {self.name} was taken by another process: stop the work."
                ) from None
            except BusError as error:
                log.warning("a lease could not be renewed yet", lease=self.name, reason=str(error))
                await self.clock.sleep(min(0.2, self.ttl / 10))
                continue
            self._valid_until = started + self.ttl
            return

    async def keep_renewed(self) -> None:
        """Renews every third of the TTL until cancelled. Raises ConflictError if the lease is lost."""
        while True:
            await self.clock.sleep(self.ttl / 3)
            await self.renew()

    async def release(self) -> None:
        """Releases it so that the next owner need not wait. No error if it was already lost."""
        if self.epoch is None:
            return
        self.epoch, self._valid_until = None, float("-inf")
        try:
            await self.bucket.update(self.name, self._value(released=True), self._revision, deadline=self.ttl)
        except (ConflictError, BusError) as error:
            log.info("a lease was not released", lease=self.name, reason=str(error))

    def _value(self, released: bool = False) -> bytes:
        return LeaseHolder(owner=self.owner, ttl=self.ttl, released=released).dump()
