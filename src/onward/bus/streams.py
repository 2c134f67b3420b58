"""The streams: their declaration, the differences of a server, and a migration without loss.

The published ``nats stream add`` lines keep the newest million messages and silently drop older unread ones.
Such streams are kept, with a warning at a start. Only ``apply`` changes them, in place.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
from nats.js import api

from onward.bus.buckets import BUCKETS, bucket_config, durable_stream, stream_of
from onward.contracts import subjects
from onward.errors import BusError, StreamDriftError
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.bus.connection import Bus

log = logs.get("bus")

DAY = 86_400.0
HOUR = 3_600.0
MIB = 1 << 20
GIB = 1 << 30

ROOM = 1.25
"""Byte limit of a stream for each byte that is expected in it."""
SUBJECT_OVERLAP = 10065
NO_ROOM = 10047


@dataclass(frozen=True)
class StreamSpec:
    """One stream. All use limits retention, file storage, discard new and one replica; the rest is here."""

    name: str
    subjects: tuple[str, ...]
    max_bytes: int
    max_age: float
    """Seconds; 0 keeps messages forever."""
    duplicate_window: float
    what: str
    max_msg_size: int = 4 * MIB
    """Limit above the contract's 1 MiB: a message that is too large must arrive to be dead-lettered."""
    append_only: bool = False
    share: float = 0.0
    """Bytes for each byte of trajectories; 0 means that they do not follow the volume."""

    def config(self) -> api.StreamConfig:
        return durable_stream(
            name=self.name,
            description=self.what,
            subjects=list(self.subjects),
            max_msgs_per_subject=-1,
            max_bytes=self.max_bytes,
            max_age=self.max_age,
            max_msg_size=self.max_msg_size,
            duplicate_window=self.duplicate_window,
            deny_delete=self.append_only,
            deny_purge=self.append_only,
        )


_ADVISORIES = ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")

STREAMS: dict[str, StreamSpec] = {
    spec.name: spec
    for spec in (
        StreamSpec(
            "RL_TRAJECTORIES",
            (subjects.TRAJECTORY,),
            4 * GIB,
            30 * DAY,
            2 * HOUR,
            "what agents did",
            share=1.0,
        ),
        StreamSpec(
            "RL_REWARDS",
            (subjects.REWARD,),
            1 * GIB,
            30 * DAY,
            2 * HOUR,
            "scores of trajectories",
            share=1 / 4,
        ),
        StreamSpec(
            "RL_FEEDBACK",
            (subjects.FEEDBACK,),
            256 * MIB,
            90 * DAY,
            2 * HOUR,
            "what people thought",
            share=1 / 16,
        ),
        StreamSpec(
            "RL_OUTCOMES", (subjects.OUTCOME,), 512 * MIB, 30 * DAY, 2 * HOUR, "what gates read", share=1 / 8
        ),
        # One by one: a wildcard would capture the request-reply subject agent.rl.training.status.request.
        StreamSpec(
            "RL_TRAINING",
            (
                subjects.TRAINING_REQUEST,
                subjects.TRAINING_STATUS,
                subjects.TRAINING_CONTROL,
                subjects.TRAINING_RUBRICS,
            ),
            256 * MIB,
            90 * DAY,
            24 * HOUR,
            "training requests and their progress",
        ),
        StreamSpec("RL_DEPLOY", (subjects.MODEL_DEPLOYED,), 128 * MIB, 365 * DAY, 24 * HOUR, "releases"),
        StreamSpec(
            "RL_DLQ",
            (f"{subjects.DLQ}.>",),
            1 * GIB,
            365 * DAY,
            24 * HOUR,
            "messages that no consumer could process",
            8 * MIB,
            share=1 / 4,
        ),
        StreamSpec("RL_ADVISORY", _ADVISORIES, 64 * MIB, 90 * DAY, 120.0, "what the server gave up on"),
        StreamSpec("RL_AUDIT", (subjects.AUDIT,), 512 * MIB, 0, 24 * HOUR, "who did what", append_only=True),
    )
}


def sized(expected_gb: float, trajectories_bytes: int | None = None) -> dict[str, StreamSpec]:
    """Returns the declared streams with byte limits for ``expected_gb`` gigabytes of trajectories a month.

    A limit has room for a quarter more than expected, and is never below the one in ``STREAMS``.
    ``trajectories_bytes`` replaces the limit of RL_TRAJECTORIES, also by a lower one.
    """
    wanted = {
        name: max(spec.max_bytes, math.ceil(ROOM * expected_gb * 1e9 * spec.share / MIB) * MIB)
        for name, spec in STREAMS.items()
    }
    if trajectories_bytes is not None:
        wanted["RL_TRAJECTORIES"] = trajectories_bytes
    return {name: replace(spec, max_bytes=wanted[name]) for name, spec in STREAMS.items()}


@dataclass(frozen=True)
class Difference:
    """One field of one stream that differs from its declaration."""

    stream: str
    field: str
    declared: Any
    server: Any
    loses_data: bool
    """True if messages can get lost, or never be stored, while the difference remains."""
    why: str
    migration: str
    """``create``, ``update`` (in place), ``keep`` (ours is stricter: nothing to do) or ``manual``."""

    def __str__(self) -> str:
        loss = "can lose data" if self.loses_data else "loses nothing"
        return (
            f"{self.stream}.{self.field}: declared {self.declared}, server {self.server}; "
            f"{loss}: {self.why}; {self.migration}"
        )


async def plan(bus: Bus, specs: Mapping[str, StreamSpec] = STREAMS) -> list[Difference]:
    """Returns the differences between ``specs`` and the declared buckets and the server's. Changes nothing.
    Raises BusError if the server does not answer."""
    found: list[Difference] = []
    for spec in specs.values():
        found += compare(spec.config(), await _config(bus, spec.name), bucket=False)
    for name, bucket in BUCKETS.items():
        declared = bucket_config(name, bucket)
        found += compare(declared, await _config(bus, stream_of(name)), bucket=True)
    return found


def compare(
    declared: api.StreamConfig, server: api.StreamConfig | None, *, bucket: bool = False
) -> list[Difference]:
    """Returns the differences of one stream, field by field; pure."""
    name = str(declared.name)
    if server is None:
        why = "messages to it are refused until it exists"
        return [Difference(name, "stream", "present", "missing", True, why, "create")]
    found: list[Difference] = []

    def add(field: str, wanted: Any, there: Any, loses: bool, why: str, migration: str) -> None:
        found.append(Difference(name, field, wanted, there, loses, why, migration))

    drops = server.discard != api.DiscardPolicy.NEW
    _compare_subjects(declared, server, add)
    if drops and not bucket:
        limited = _limited(server.max_msgs) or _limited(server.max_bytes)
        why = "a full stream drops its oldest messages, read or not" if limited else "no limit is set, yet"
        add("discard", "new", "old", limited, why, "update")
    if _limited(server.max_msgs):
        why = "unread messages beyond it are dropped" if drops else "publishers wait when it is reached"
        add("max_msgs", -1, server.max_msgs, drops, why, "update")
    _compare_limits(declared, server, add)
    for field, why in _FIXED.items():
        wanted, there = _plain(getattr(declared, field)), _plain(getattr(server, field))
        if wanted != there:
            add(field, wanted, there, field not in ("deny_delete", "deny_purge"), why, "manual")
    if declared.deny_delete and not server.deny_delete:
        found[:] = [d for d in found if d.field not in ("deny_delete", "deny_purge")]
        add("deny_delete", True, False, False, "an audit log that can be edited", "update")
    if _plain(server.persist_mode) not in (None, "default"):
        why = "it switches fsync off for this stream"
        add("persist_mode", None, _plain(server.persist_mode), True, why, "manual")
    return found


_FIXED = {
    "retention": "messages vanish when they were read, or before anybody reads",
    "storage": "memory does not survive a restart",
    "no_ack": "publishers are not told that a message is stored",
    "deny_delete": "the erasure of secrets is refused",
    "deny_purge": "purging is refused",
}


def _compare_subjects(declared: api.StreamConfig, server: api.StreamConfig, add: Any) -> None:
    wanted, there = set(declared.subjects or ()), set(server.subjects or ())
    if wanted == there:
        return
    uncovered = sorted(s for s in wanted if not any(covers(pattern, s) for pattern in there))
    if uncovered:
        why = f"nothing stores {', '.join(uncovered)}"
    elif any(covers(pattern, subjects.TRAINING_STATUS_REQUEST) for pattern in there):
        why = f"it swallows {subjects.TRAINING_STATUS_REQUEST} and answers it with a PubAck"
    else:
        why = "it stores more than is published here"
    add("subjects", sorted(wanted), sorted(there), bool(uncovered), why, "update")


def _compare_limits(declared: api.StreamConfig, server: api.StreamConfig, add: Any) -> None:
    wanted_age, age = declared.max_age or 0.0, server.max_age or 0.0
    if wanted_age != age:
        shorter = age != 0 and (wanted_age == 0 or age < wanted_age)
        why = "unread messages expire sooner" if shorter else "the server keeps them longer"
        add("max_age", wanted_age, age, shorter, why, "update" if shorter else "keep")
    wanted_bytes, size = int(declared.max_bytes or -1), int(server.max_bytes or -1)
    if wanted_bytes != size:
        drops = server.discard != api.DiscardPolicy.NEW
        if not _limited(size):
            add("max_bytes", wanted_bytes, size, False, "the disk may fill up", "update")
        elif size < wanted_bytes:
            why = "old messages are dropped when it is reached" if drops else "it fills up sooner"
            add("max_bytes", wanted_bytes, size, drops, why, "update")
        else:
            add("max_bytes", wanted_bytes, size, False, "the server keeps more", "keep")
    wanted_size, limit = int(declared.max_msg_size or -1), int(server.max_msg_size or -1)
    if _limited(limit) and limit < wanted_size:
        why = "larger messages are refused instead of put aside with a reason"
        add("max_msg_size", wanted_size, limit, True, why, "update")
    if (server.duplicate_window or 0) < declared.duplicate_window:
        why = "a publisher that repeats later is stored twice (and found twice by its id)"
        add("duplicate_window", declared.duplicate_window, server.duplicate_window, False, why, "update")
    wanted_history = int(declared.max_msgs_per_subject)
    history = int(server.max_msgs_per_subject or -1)
    if wanted_history != history and (not _limited(wanted_history) or 0 < history < wanted_history):
        why = "only so many messages of a subject are kept"
        add("max_msgs_per_subject", wanted_history, history, not _limited(wanted_history), why, "update")


async def apply(
    bus: Bus, differences: Iterable[Difference], specs: Mapping[str, StreamSpec] = STREAMS
) -> None:
    """Creates what is missing and updates in place what can be updated; no message is lost by it. Raises
    StreamDriftError, before anything is changed, if a difference cannot be removed in place."""
    todo = list(differences)
    manual = [difference for difference in todo if difference.migration == "manual"]
    if manual:
        raise StreamDriftError(
            f"{'; '.join(str(d) for d in manual)}: NATS cannot change this in place; "
            f"back the stream up (nats stream backup), delete it, let Onward create it, and restore."
        )
    for name in dict.fromkeys(difference.stream for difference in todo):
        fields = {d.field for d in todo if d.stream == name and d.migration in ("create", "update")}
        if "stream" in fields:
            await _call(bus.js.add_stream(_declared(name, specs)), name)
        elif fields:
            await _update(bus, _declared(name, specs), fields)


async def create(bus: Bus, name: str) -> api.StreamInfo:
    """Creates one declared stream, or the stream of a bucket, that does not exist. Raises BusError for
    another name."""
    if name not in STREAMS and name.removeprefix("KV_") not in BUCKETS:
        raise BusError(f"Stream {name} does not exist, and it is none of Onward's: create it.")
    return await _call(bus.js.add_stream(_declared(name)), name)


async def _update(bus: Bus, declared: api.StreamConfig, fields: set[str]) -> None:
    info = await _call(bus.js.stream_info(str(declared.name)), str(declared.name))
    changed: dict[str, Any] = {field: getattr(declared, field) for field in fields}
    if "max_bytes" in changed:  # never below the stored size: nothing may be dropped, and writing goes on
        changed["max_bytes"] = max(int(declared.max_bytes or -1), 2 * int(info.state.bytes))
    if "deny_delete" in fields:
        changed["deny_purge"] = True
    if "max_age" not in fields and changed.get("duplicate_window") and info.config.max_age:
        changed["duplicate_window"] = min(changed["duplicate_window"], info.config.max_age)
    # Two steps: first nothing can be dropped any more, then the rest.
    if "discard" in changed:
        first = info.config.evolve(discard=api.DiscardPolicy.NEW)
        info = await _call(bus.js.update_stream(first), str(declared.name))
    await _call(bus.js.update_stream(info.config.evolve(**changed)), str(declared.name))
    log.info("stream migrated", stream=declared.name, fields=sorted(fields))


async def ensure_streams(
    bus: Bus, *, migrate: bool = False, specs: Mapping[str, StreamSpec] = STREAMS
) -> list[Difference]:
    """Creates missing streams and raises byte limits; warns about other differences, or migrates them.
    Returns the remaining ones.

    Raises StreamDriftError if a needed subject belongs to another stream, or if ``migrate`` meets a
    difference that cannot be removed in place.
    """
    differences = await plan(bus, specs)
    await apply(bus, [d for d in differences if d.migration == "create"], specs)
    rest = [d for d in differences if d.migration not in ("create", "keep")]
    if migrate:
        await apply(bus, rest, specs)
        return [d for d in await plan(bus, specs) if d.migration != "keep"]
    rest = [d for d in rest if not await _grow(bus, d, specs)]
    for difference in rest:
        log.warning(
            "a stream differs from what Onward declares; it is kept (see: onward streams plan)",
            stream=difference.stream,
            field=difference.field,
            declared=difference.declared,
            server=difference.server,
            loses_data=difference.loses_data,
            why=difference.why,
        )
    return rest


async def _grow(bus: Bus, difference: Difference, specs: Mapping[str, StreamSpec]) -> bool:
    """Raises the byte limit of a stream that drops nothing, as the settings ask. Returns whether it did."""
    if difference.field != "max_bytes" or difference.loses_data or not _limited(difference.server):
        return False
    try:
        await apply(bus, [difference], specs)
    except BusError as error:  # without the room, the stream works on with its present limit
        log.warning("a stream keeps its byte limit", stream=difference.stream, cause=str(error))
        return False
    return True


def covers(pattern: str, subject: str) -> bool:
    """Returns whether every subject matched by ``subject`` is matched by ``pattern`` (NATS wildcards)."""
    left, right = pattern.split("."), subject.split(".")
    for index, token in enumerate(left):
        if token == ">":
            return len(right) > index
        if index >= len(right) or right[index] == ">":
            return False
        if token not in ("*", right[index]):
            return False
    return len(left) == len(right)


def _declared(stream: str, specs: Mapping[str, StreamSpec] = STREAMS) -> api.StreamConfig:
    if stream in specs:
        return specs[stream].config()
    bucket = stream.removeprefix("KV_")
    return bucket_config(bucket, BUCKETS[bucket])


async def all_states(bus: Bus) -> dict[str, api.StreamState]:
    """Returns the state of each stream on the server, Onward's or not. The server lists 256 at a time. Raises
    nats.errors.Error."""
    found: dict[str, api.StreamState] = {}
    offset = 0
    while True:
        page: Any = await bus.js.streams_info_iterator(offset=offset)
        before = offset
        for info in page:
            found[str(info.config.name)] = info.state
            offset += 1
        if offset >= page.total or offset == before:
            return found


async def stream_infos(bus: Bus) -> dict[str, api.StreamInfo]:
    """Returns the server's facts on each declared stream that exists. Asks for all at once, by name: a login
    of one role may not list streams. Raises BusError."""
    found = await asyncio.gather(*(_existing(bus, name) for name in STREAMS))
    return {name: info for name, info in zip(STREAMS, found, strict=True) if info is not None}


async def exists(bus: Bus, name: str) -> bool:
    """Returns whether the server has this stream. Raises BusError."""
    return await _existing(bus, name) is not None


async def _existing(bus: Bus, name: str) -> api.StreamInfo | None:
    try:
        return await _call(bus.js.stream_info(name), name)
    except nats.js.errors.NotFoundError:
        return None


async def _config(bus: Bus, name: str) -> api.StreamConfig | None:
    info = await _existing(bus, name)
    return None if info is None else info.config


async def _call(call: Any, name: str) -> api.StreamInfo:
    try:
        return await call
    except nats.js.errors.NotFoundError:
        raise
    except nats.js.errors.APIError as error:
        if error.err_code == SUBJECT_OVERLAP:
            raise StreamDriftError(
                f"Another stream already stores subjects of {name}: rename or remove that stream, "
                f"because two streams cannot share a subject."
            ) from None
        if error.err_code == NO_ROOM:
            raise BusError(
                f"NATS has no room to reserve for stream {name}: raise max_file_store in its configuration."
            ) from None
        raise BusError(f"NATS refused stream {name}: {error.description} (code {error.err_code}).") from None
    except nats.errors.Error as error:
        raise BusError(f"NATS did not answer about stream {name} ({type(error).__name__}).") from None


def _limited(value: int | None) -> bool:
    return value is not None and value > 0


def _plain(value: Any) -> Any:
    value = getattr(value, "value", value)
    return value or None
