"""Reads RL_OUTCOMES from a given sequence: the cursor is stored in the release record, not on the server.

An ephemeral consumer without acks is only a window on the stream. If it fails, reading continues from the
cursor, so nothing is skipped and nothing depends on the server's state of this consumer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import nats.errors

from onward.bus import Bus
from onward.bus.buckets import stream_of
from onward.bus.pull import PullBroken, Puller
from onward.capture import provenance
from onward.contracts import subjects
from onward.contracts.buckets import Assignment
from onward.errors import BusError, ContractError
from onward.release.evidence.event import Event, parse
from onward.release.evidence.evidence import Evidence

STREAM = "RL_OUTCOMES"
BATCH = 500
BATCHES = 10
"""Maximum number of batches per call, so that a long backlog does not block the releaser."""


@dataclass(frozen=True)
class Stored:
    """One message of the stream; ``stored_at`` is the server's time in ms."""

    sequence: int
    data: bytes
    stored_at: int
    signed: bool = True
    """False for a message that no gateway signed."""


class OutcomeSource(Protocol):
    async def last_sequence(self) -> int:
        """Returns the sequence of the newest message; 0 for an empty stream."""
        ...

    async def assigned(self) -> int:
        """Returns a number that rises with each session that is assigned to an arm."""
        ...

    async def read(self, after: int, limit: int) -> list[Stored]:
        """Returns up to ``limit`` messages with a sequence above ``after``, in order; may be empty."""
        ...


class Applied(NamedTuple):
    """Result of ``apply_outcomes``."""

    changed: bool
    """True if the evidence changed."""
    known: bool
    """True if any message was a known outcome of its release. A lost session is not one."""
    unsigned: int
    """Number of messages that no gateway signed."""


async def apply_outcomes(outcomes: OutcomeSource, evidence: Evidence) -> Applied:
    """Applies new messages. A message that no gateway signed is skipped and counted."""
    start, known, unsigned = evidence.cursor, False, 0
    for _ in range(BATCHES):
        batch = await outcomes.read(evidence.cursor, BATCH)
        for stored in batch:
            unsigned += not stored.signed
            event = apply_message(stored, evidence)
            if event is not None:
                known = known or (event.release_id == evidence.release_id and event.kind != "lost")
        if len(batch) < BATCH or evidence.crossing is not None:
            break
    return Applied(evidence.cursor != start, known, unsigned)


def apply_message(stored: Stored, evidence: Evidence) -> Event | None:
    """Applies one message and returns its event; None if it is unsigned or unreadable, which is counted."""
    if not stored.signed:
        evidence.skip(stored.sequence, "unsigned")
        return None
    try:
        event = parse(stored.sequence, stored.data, stored.stored_at)
    except ContractError:
        evidence.skip(stored.sequence, "unreadable")
        return None
    evidence.apply(event)
    return event


class OutcomeStream:
    """Outcomes from JetStream. A broken reader returns an incomplete or empty batch and is then reopened."""

    def __init__(self, bus: Bus, signing_key: bytes) -> None:
        """``signing_key``: that of the gateways (``provenance.load_key``)."""
        self._bus = bus
        self._signing_key = signing_key
        self._puller: Puller | None = None
        self._next = -1

    async def last_sequence(self) -> int:
        return await self._last_of(STREAM)

    async def assigned(self) -> int:
        return await self._last_of(stream_of(Assignment.BUCKET))

    async def _last_of(self, stream: str) -> int:
        try:
            info = await self._bus.js.stream_info(stream)
        except nats.errors.Error as error:
            raise BusError(
                f"Stream {stream} could not be read ({type(error).__name__}): is NATS up?"
            ) from None
        return info.state.last_seq

    async def read(self, after: int, limit: int) -> list[Stored]:
        try:
            if self._puller is None or self._next != after + 1:
                await self.close()
                self._puller = await Puller.after(self._bus, STREAM, subjects.OUTCOME, after, prefix="gates")
            messages = await self._puller.pull(limit)
        except PullBroken as error:
            await self.close()
            messages = error.received
        except nats.errors.Error:
            await self.close()
            await self._bus.revive()
            return []
        found: list[Stored] = []
        for message in messages:
            meta = message.metadata
            if meta.sequence.stream > after:
                stored_at = round(meta.timestamp.timestamp() * 1000)
                signed = provenance.is_signed_message(message.data, self._signing_key)
                found.append(Stored(meta.sequence.stream, message.data, stored_at, signed))
        found.sort(key=lambda stored: stored.sequence)
        self._next = (found[-1].sequence if found else after) + 1
        return found

    async def close(self) -> None:
        puller, self._puller = self._puller, None
        if puller is not None:
            try:
                await puller.close(delete=True)
            except nats.errors.Error:
                pass
