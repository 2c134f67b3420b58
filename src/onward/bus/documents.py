"""Reading of documents in buckets. A value that cannot be read never ends its reader.

Such a value is copied to bucket ``rl_set_aside`` before anyone can overwrite it, and one alert is raised for
each of its revisions, over restarts and by whichever process finds it first. Its reader goes on with the
newest older value of the key that may stand in for it (``Document.may_stand_in``), or without a document.
The value itself stays where it is, so a newer version may read it again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from onward.clock import utc_text
from onward.contracts.buckets import Document, Learning, SetAside
from onward.contracts.codec import explain
from onward.errors import BusError, ConflictError, OnwardError
from onward.lru import Lru
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.bus.buckets import Bucket, Entry
    from onward.bus.connection import Bus
    from onward.telemetry.alerts import Alerts

log = logs.get("bus")

D = TypeVar("D", bound=Document)
Check = Callable[[Any], object]
MOST_KNOWN = 10_000
"""Unreadable revisions in memory: each is looked at once."""
COPY_SECONDS = 5.0
COPY_AGAIN_SECONDS = 60.0
"""Pause before the next try to copy a value: a full bucket must not hold up each reader."""

NOT_OURS = "It was not written by Onward."


class NotOursError(OnwardError):
    """A value came into the bucket in another way than by ``Bucket``."""


class MisplacedError(OnwardError):
    """A document names another key than the one under which it is stored."""


@dataclass(frozen=True)
class Stored(Generic[D]):
    """A key as its reader sees it."""

    key: str
    document: D | None
    """None: the key is absent, or unreadable without a stand-in."""
    revision: int = 0
    """Newest revision of the key, for a compare-and-set; 0 if it is absent."""
    readable: bool = True
    """False: the newest value cannot be read, and ``document`` is an older one or None."""


async def read_document(bus: Bus, kind: type[D], name: str = "") -> D | None:
    """Reads a document from its bucket, at the key of its ``kind`` followed by ``name``. Returns None if it
    is absent, or unreadable without a stand-in. Raises BusError."""
    return (await read_stored(bus.bucket(kind.BUCKET), kind, name)).document


async def read_stored(
    bucket: Bucket, kind: type[D], name: str = "", *, check: Check | None = None
) -> Stored[D]:
    """Reads a document with its revision. ``check`` raises for a document that its reader cannot use: it
    then counts as unreadable. Raises BusError."""
    key = kind.KEY + name
    entry = await bucket.get(key)
    return Stored(key, None) if entry is None else await load_entry(bucket, kind, entry, check=check)


async def read_all(bucket: Bucket, kind: type[D]) -> list[Stored[D]]:
    """Reads every document of ``kind``, sorted by key, in one pass. Raises BusError."""
    return [await load_entry(bucket, kind, entry) for entry in await bucket.entries(kind.KEY)]


async def load_entry(bucket: Bucket, kind: type[D], entry: Entry, *, check: Check | None = None) -> Stored[D]:
    """Loads a value that was read already, for instance by a watch. Raises BusError."""
    try:
        return Stored(entry.key, _load(kind, entry, check), entry.revision)
    except Exception as error:  # any value may be stored: whatever it breaks means that it is unreadable
        found = await bucket.bus.unreadable.find_stand_in(bucket, kind, entry, error, check)
        return Stored(entry.key, found, entry.revision, readable=False)


async def is_learning_paused(bus: Bus) -> bool:
    """Returns whether no training job may begin. A switch that was never readable pauses: an operator wrote
    something, and training that waits does no harm."""
    stored = await read_stored(bus.bucket(Learning.BUCKET), Learning)
    return not stored.readable if stored.document is None else stored.document.paused


def _load(kind: type[D], entry: Entry, check: Check | None) -> D:
    if not entry.is_ours:
        raise NotOursError(NOT_OURS)
    document = kind.load(entry.value)
    if document.own_key() not in (None, entry.key):
        raise MisplacedError(f"It is the {kind.__name__} of another key.")
    if check is not None:
        check(document)
    return document


class UnreadableValues:
    """The unreadable values that this connection met. One object per ``Bus``."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.alerts: Alerts | None = None
        """Set in a service. A command that only looks copies nothing and raises no alert."""
        self._told: Lru[tuple[str, str, int], None] = Lru(MOST_KNOWN)
        """Values of which this process has raised the alert."""
        self._next_copy: Lru[tuple[str, str, int], float] = Lru(MOST_KNOWN)
        """Time of the next try to copy a value; never again once the copy is stored."""
        self._stand_ins: Lru[tuple[str, str, int, type[Document]], Any] = Lru(MOST_KNOWN)

    async def find_stand_in(
        self, bucket: Bucket, kind: type[D], entry: Entry, error: Exception, check: Check | None = None
    ) -> D | None:
        """Sets ``entry`` aside and returns the document that stands in for it, or None."""
        name = (bucket.name, entry.key, entry.revision, kind)
        if name not in self._stand_ins:
            self._stand_ins[name] = await _newest_readable(bucket, kind, entry, check)
        found: D | None = self._stand_ins[name]
        await self._set_aside(bucket, entry, why_unreadable(error, kind), found is not None)
        return found

    async def _set_aside(self, bucket: Bucket, entry: Entry, why: str, has_stand_in: bool) -> None:
        name = (bucket.name, entry.key, entry.revision)
        now = self._bus.clock.monotonic()
        if self.alerts is None or (name in self._next_copy and now < self._next_copy[name]):
            return
        self._next_copy[name] = now + COPY_AGAIN_SECONDS
        copies, key = self._bus.bucket(SetAside.BUCKET), f"{bucket.name}.{entry.key}.{entry.revision}"
        copy = SetAside(
            bucket=bucket.name,
            key=entry.key,
            revision=entry.revision,
            reason=why,
            found_at=utc_text(self._bus.clock.now()),
            value=base64.b64encode(entry.value).decode(),
        )
        try:
            if await copies.get(key) is None:  # no earlier process has done it, and no other one
                if name not in self._told:
                    self._told[name] = None
                    await _tell(self.alerts, bucket, entry, why, has_stand_in)
                with contextlib.suppress(ConflictError):  # another process stored it just now
                    await copies.create(key, copy.dump(), deadline=COPY_SECONDS)
            self._next_copy[name] = math.inf
        except BusError as error:  # a full bucket must not stop the reader
            log.warning(
                "an unreadable value was not copied, and is tried again",
                bucket=bucket.name,
                key=entry.key,
                why=str(error),
            )


async def _tell(alerts: Alerts, bucket: Bucket, entry: Entry, why: str, has_stand_in: bool) -> None:
    goes_on = "its newest readable value counts" if has_stand_in else "its readers go on without it"
    await alerts.raise_(
        "record_unreadable",
        f"Record {entry.key} of {bucket.name} cannot be read: {why} It is set aside, and {goes_on}. "
        f"See 'onward buckets show {bucket.name} {entry.key}'.",
        bucket=bucket.name,
        key=entry.key,
        revision=entry.revision,
    )


async def _newest_readable(
    bucket: Bucket, kind: type[D], entry: Entry, check: Check | None = None
) -> D | None:
    """Returns the newest older document of a key that may stand in for ``entry``; none from before a
    deletion."""
    for older in await bucket.history(entry.key):
        if older.revision >= entry.revision:
            continue
        if older.deleted:
            return None
        try:
            document = _load(kind, older, check)
        except Exception:
            continue
        return document if document.may_stand_in() else None
    return None


def why_unreadable(error: Exception, kind: type[Document]) -> str:
    """Returns the reason in one sentence, without any part of the value: it may hold a secret."""
    if isinstance(error, ValidationError):
        return explain(error, kind)
    if isinstance(error, OnwardError):
        return str(error)
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "It is not JSON."
    return f"It is no {kind.__name__} ({type(error).__name__})."
