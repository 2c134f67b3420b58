"""Reading of a JetStream stream backwards, window by window, so that memory does not follow its size.

Invariants: the messages are raw, so each is judged and redacted by the same code as in the collector. Where
the collector stored another document under the same id (a conflict, or a later and fuller one), only the
message of the stored document counts, since the reward is that document's.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import nats.errors
import nats.js.errors

from onward.bus import Bus, Message
from onward.bus.headers import usable
from onward.capture import claim_check
from onward.capture.collecting import trajectory_row
from onward.capture.collecting.inspection import Fate, Item
from onward.capture.make_redactor import inspector_of
from onward.contracts import subjects
from onward.errors import BusError, ContractError, TrainingError
from onward.training.data.admission import ScoredTrajectory
from onward.warehouse import Objects, queries

if TYPE_CHECKING:
    from onward.training.data.sources import Stores

TRAJECTORIES = "RL_TRAJECTORIES"
WINDOW = 500
"""Sequences that are read at a time."""
AT_ONCE = 64
"""Requests that are under way at a time."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Window:
    """The trajectories of one stream between two sequences; ``low`` is the lowest one read so far."""

    def __init__(self, bus: Bus, name: str, first: int, last: int | None, until: datetime | None) -> None:
        self.name = name
        self.first = first
        self.last = last
        self.low = 0
        self._bus = bus
        self._until = until

    async def pages(self) -> AsyncIterator[list[Message]]:
        """Yields the messages of one window after the other, newest first, from the last sequence at the time
        of the call. Raises TrainingError("DATA") for a stream that has no trajectories, BusError."""
        first, last = await self._bounds()
        self.last = last
        high = last
        while high >= first:
            self.low = max(first, high - WINDOW + 1)
            found = await self._read(self.low, high)
            yield [one for one in reversed(found) if self._until is None or one.timestamp <= self._until]
            high = self.low - 1

    async def _bounds(self) -> tuple[int, int]:
        if not _NAME.fullmatch(self.name):
            raise TrainingError(
                "DATA",
                f"dataset.stream_name is {self.name[:60]!r}: give the name of a stream, such as "
                f"{TRAJECTORIES}.",
            )
        try:
            info = await self._bus.js.stream_info(self.name, subjects_filter=subjects.TRAJECTORY)
        except nats.js.errors.NotFoundError:
            raise TrainingError(
                "DATA",
                f"There is no stream {self.name!r}: name one with trajectories, such as {TRAJECTORIES}.",
            ) from None
        except nats.errors.Error as error:
            raise BusError(f"Stream {self.name} cannot be read ({type(error).__name__}).") from None
        if not (info.state.subjects or {}).get(subjects.TRAJECTORY):
            raise TrainingError(
                "DATA",
                f"Stream {self.name!r} has no message under {subjects.TRAJECTORY}: name one with "
                f"trajectories.",
            )
        state = info.state
        last = state.last_seq if self.last is None else min(self.last, state.last_seq)
        return max(self.first, state.first_seq), last

    async def _read(self, low: int, high: int) -> list[Message]:
        """Reads the messages from ``low`` to ``high``, some at once. A consumer would need the right to make
        and delete consumers on the stream, the collector's included."""
        places = asyncio.Semaphore(AT_ONCE)

        async def read(sequence: int) -> Message | None:
            async with places:
                return await self._message(sequence)

        found = await asyncio.gather(*map(read, range(low, high + 1)))
        return [one for one in found if one is not None]

    async def _message(self, sequence: int) -> Message | None:
        """Returns one message; None if it was erased, or is of another subject."""
        try:
            raw = await self._bus.js.get_msg(self.name, seq=sequence)
        except nats.js.errors.NotFoundError:
            return None
        except nats.errors.Error as error:
            raise BusError(
                f"Message {sequence} of {self.name} cannot be read ({type(error).__name__}): is NATS up, and "
                f"may this login read the stream?"
            ) from None
        if raw.subject != subjects.TRAJECTORY or raw.time is None:
            return None
        return Message(raw.data or b"", usable(raw.headers), raw.subject, sequence, 1, raw.time)


async def judged(
    stores: Stores, messages: Sequence[Message], left_out: Counter[str]
) -> list[ScoredTrajectory]:
    """Returns the trajectories in ``messages`` that the collector would store, without rewards, and counts
    the others by reason."""
    inspector = inspector_of(stores.settings)
    whole: list[tuple[Message, bytes | None]] = []
    for message in messages:
        try:
            whole.append(await _with_body(stores.objects, message))
        except ContractError as error:
            left_out[error.reason] += 1
    now = stores.clock.now()
    items = await asyncio.to_thread(
        lambda: [inspector.inspect(message, now, stand_in) for message, stand_in in whole]
    )
    page = admitted(items, left_out)
    stored = await queries.stored_identities(
        stores.warehouse, [one.trajectory["trajectory_id"] for one in page]
    )
    kept: dict[str, ScoredTrajectory] = {}
    for one in page:
        name = one.trajectory["trajectory_id"]
        if name in kept or not trajectory_row.same(stored.get(name, one.identity), one.identity):
            left_out["superseded"] += 1
        else:
            kept[name] = one
    return list(kept.values())


def admitted(items: Sequence[Item], left_out: Counter[str]) -> list[ScoredTrajectory]:
    """Returns the trajectories that may be stored, with the fields that the collector adds; counts others."""
    kept: list[ScoredTrajectory] = []
    for item in items:
        if item.fate is not Fate.STORE or item.document is None:
            left_out["opted_out" if item.fate is Fate.DROP else item.reason] += 1
            continue
        document = trajectory_row.enrich(item.document)
        kept.append(ScoredTrajectory(document, None, None, item.identity, item.message.sequence))
    return kept


async def _with_body(objects: Objects, message: Message) -> tuple[Message, bytes | None]:
    """Returns the message with its body, and the stand-in on the stream if the body came by claim."""
    if claim_check.HEADER not in message.headers:
        return message, None
    return await claim_check.resolve(objects, message), message.data
