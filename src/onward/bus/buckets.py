"""Key-value buckets on JetStream: the table of their writers, and access by compare-and-set.

Each write carries its own message id. A repeated compare-and-set whose first answer was lost finds this id
and does not report a conflict. Reads ask the stream leader, never a cache. Expiry is never judged by the
server's clock (see ``leases``).
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import nats.errors
import nats.js.errors
from nats.js import api

from onward.bus.cancellation import cancellations, honour_cancellation
from onward.bus.pull import PullBroken, Puller
from onward.errors import BusError, BusRefusedError, ConflictError
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.bus.connection import Bus

log = logs.get("bus")

READ_SECONDS = 30.0
"""Seconds that a read or write waits for an absent server before it raises BusError."""
MISSING_SECONDS = 1.0
"""Longest wait for the answer whether a bucket is there, after a write that failed."""

_KEY = re.compile(r"[A-Za-z0-9_=/-]+(\.[A-Za-z0-9_=/-]+)*")
_MIB = 1 << 20
NO_STREAM = 10059


class BucketSpec(NamedTuple):
    writer: str
    """The one role that writes here; every role may read."""
    history: int
    ttl: float | None
    """Seconds after which a value expires; None keeps it."""
    what: str


BUCKETS: dict[str, BucketSpec] = {
    "rl_jobs": BucketSpec("trainer", 16, None, "the table of training jobs: job.<id>"),
    "rl_releases": BucketSpec("releaser", 64, None, "desired state and one record per release"),
    "rl_models": BucketSpec("releaser", 8, None, "what each model id is: digest, parent, state"),
    "rl_writers": BucketSpec("trainer", 16, None, "versions of the rubric writer, and the released one"),
    "rl_gateways": BucketSpec("gateway", 1, 86_400.0, "what each gateway really serves"),
    "rl_sessions": BucketSpec("gateway", 1, 7 * 86_400.0, "the arm that each session was given"),
    "rl_closes": BucketSpec("gateway", 1, 60.0, "closes that gateways pass to each other, with answers"),
    "rl_rewarder": BucketSpec("rewarder", 4, None, "windows, baselines, stream cursor; the run of rescore"),
    "rl_coordinator": BucketSpec("coordinator", 8, None, "the last snapshot and the request made from it"),
    "rl_capture": BucketSpec(
        "whoever drops one", 1, None, "how many trajectories were dropped by an opt-out"
    ),
    "rl_roles": BucketSpec("every role", 1, 86_400.0, "roles that fail and are started again"),
    "rl_set_aside": BucketSpec("every role", 1, None, "copies of values that could not be read"),
    "rl_readers": BucketSpec("the reader", 1, None, "how far each durable consumer has come"),
    "rl_recovery": BucketSpec("collector", 1, None, "the last check of the warehouse"),
    "rl_leases": BucketSpec("the holder", 1, None, "who owns a piece of work, and its epoch"),
    "rl_control": BucketSpec("operator", 16, None, "what people switched and asked for"),
}


@dataclass(frozen=True)
class Entry:
    key: str
    value: bytes
    revision: int
    """Number that rises with every write to the bucket; ``update`` compares it."""
    deleted: bool = False
    is_ours: bool = True
    """False if ``Bucket`` did not write it. NATS lets a client name any subject for its acknowledgement, also
    one of a bucket, and then writes there itself; see docs/logins.md."""


def stream_of(bucket: str) -> str:
    return f"KV_{bucket}"


def bucket_config(name: str, spec: BucketSpec) -> api.StreamConfig:
    """Configuration of the stream behind a bucket. File storage; a full bucket refuses, never drops."""
    window = 120.0 if spec.ttl is None else min(120.0, spec.ttl)
    return durable_stream(
        name=stream_of(name),
        description=f"{spec.what} (written by {spec.writer})",
        subjects=[f"$KV.{name}.>"],
        max_msgs_per_subject=spec.history,
        max_bytes=128 * _MIB,
        max_msg_size=4 * _MIB,
        max_age=spec.ttl or 0,
        duplicate_window=window,
        allow_rollup_hdrs=True,
        deny_delete=True,
    )


durable_stream = partial(
    api.StreamConfig,
    retention=api.RetentionPolicy.LIMITS,
    storage=api.StorageType.FILE,
    discard=api.DiscardPolicy.NEW,
    max_msgs=-1,
    max_consumers=-1,
    num_replicas=1,
)
"""A stream or the stream of a bucket: on disk; if it is full it refuses, and never drops."""


KEPT_BYTES = 4 << 20
"""Size of a bucket up to which the result of reading all its keys is kept in memory."""


class Bucket:
    """One bucket. Every method raises BusError if the server is unreachable for 30 s."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus = bus
        self.name = name
        self._prefix = f"$KV.{name}."

    async def get(self, key: str) -> Entry | None:
        """Returns the newest value of ``key``, or None if it was never written or was deleted."""
        entry = await self._last(key)
        return None if entry is None or entry.deleted else entry

    async def create(self, key: str, value: bytes, *, deadline: float = READ_SECONDS) -> int:
        """Writes ``key`` if it does not exist; returns its revision. Raises ConflictError if it exists."""
        try:
            return await self._write(key, value, 0, deadline=deadline)
        except ConflictError:
            last = await self._last(key)
            if last is None or not last.deleted:
                raise ConflictError(f"{key} exists already in {self.name}: read it first.") from None
            return await self._write(key, value, last.revision, deadline=deadline)

    async def update(self, key: str, value: bytes, revision: int, *, deadline: float = READ_SECONDS) -> int:
        """Writes ``key`` if its newest revision is ``revision``; returns the new one. Else ConflictError."""
        return await self._write(key, value, revision, deadline=deadline)

    async def put(self, key: str, value: bytes, *, deadline: float = READ_SECONDS) -> int:
        """Writes ``key`` in any case; returns its revision."""
        return await self._write(key, value, None, deadline=deadline)

    async def delete(self, key: str) -> None:
        """Deletes ``key``; no error if it is absent. ``create`` works again afterwards."""
        await self._publish(key, b"", {"KV-Operation": "DEL"}, READ_SECONDS)

    async def keys(self, prefix: str = "") -> list[str]:
        """Returns the existing keys that begin with ``prefix``, sorted."""
        return [entry.key for entry in await self._read_changed(prefix, headers_only=True)]

    async def entries(self, prefix: str = "", *, all_forms: bool = False) -> list[Entry]:
        """Returns the newest values of all keys that begin with ``prefix``, sorted by key, in one pass. A key
        that no role could have written is left out, unless ``all_forms``."""
        if all_forms:
            return await self._read_all(prefix, headers_only=False, all_forms=True)
        return await self._read_changed(prefix, headers_only=False)

    async def history(self, key: str) -> list[Entry]:
        """Returns the stored values of ``key``, newest first, deletions included."""
        return (await self._pull_all(key, history=True))[::-1]

    async def watch(
        self, key: str = ">", poll_seconds: float = 5.0, *, deletes: bool = False
    ) -> AsyncIterator[Entry]:
        """Yields current values of ``key`` (or of all, ``">"``), then each change. Never ends by itself.

        A change arrives at once through a consumer, and after at most ``poll_seconds`` through a plain read.
        Only the newest value is guaranteed: quick changes may be skipped.
        """
        seen: dict[str, int] = {}
        asked = cancellations()

        def is_new(entry: Entry) -> bool:
            new = entry.revision > seen.get(entry.key, 0)
            if new:
                seen[entry.key] = entry.revision
            return new

        while True:
            puller: Puller | None = None
            try:
                puller = await self._consumer(key, headers_only=False)
                while True:
                    honour_cancellation(asked)
                    for message in await puller.pull(64, linger=poll_seconds):
                        entry = self._entry(message)
                        if is_new(entry) and (deletes or not entry.deleted):
                            yield entry
                    missed = [entry for entry in await self._poll(key) if is_new(entry)]
                    for entry in missed:
                        if deletes or not entry.deleted:
                            yield entry
                    if missed:
                        break  # the consumer is broken: make a new one
            except (PullBroken, BusError, nats.errors.Error) as error:
                log.debug("watch starts again", bucket=self.name, reason=type(error).__name__)
                await self.bus.revive()
                await self.bus.clock.sleep(min(0.5, poll_seconds))
            finally:
                if puller is not None:
                    await puller.close(delete=True)

    async def _poll(self, key: str) -> list[Entry]:
        if key.endswith(">"):
            return await self._read_all(key.removesuffix(">"), headers_only=False, deletes=True)
        entry = await self._last(key)
        return [] if entry is None else [entry]

    async def _last(self, key: str) -> Entry | None:
        message = await self._message(key)
        if message is None:
            return None
        return self._as_entry(key, message.data, message.seq or 0, message.headers)

    async def _message(self, key: str, *, deadline: float = READ_SECONDS) -> api.RawStreamMsg | None:
        subject = self._prefix + _check_key(key)
        until, asked = self.bus.clock.monotonic() + deadline, cancellations()
        while True:
            try:
                message = await self.bus.js.get_msg(stream_of(self.name), subject=subject)
                honour_cancellation(asked)
                return message
            except nats.js.errors.NotFoundError as error:
                if error.err_code == NO_STREAM:
                    raise self._missing() from None
                honour_cancellation(asked)
                return None
            except nats.errors.Error as error:
                await self._wait(until, error)

    async def _write(self, key: str, value: bytes, revision: int | None, *, deadline: float) -> int:
        headers = {}
        if revision is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(revision)
        return await self._publish(key, value, headers, deadline)

    async def _publish(self, key: str, value: bytes, headers: dict[str, str], deadline: float) -> int:
        subject = self._prefix + _check_key(key)
        msg_id = uuid.uuid4().hex
        try:
            ack = await self.bus.publish(subject, value, msg_id=msg_id, headers=headers, deadline=deadline)
            return ack.seq
        except ConflictError:
            # An earlier try may have landed without its answer: then the newest value carries our id.
            # (The server compares sequences before it looks for duplicates.)
            last = await self._message(key, deadline=min(deadline, READ_SECONDS))
            if last is not None and (last.headers or {}).get("Nats-Msg-Id") == msg_id:
                return last.seq or 0
            raise ConflictError(
                f"{key} in {self.name} changed since it was read: read it again and retry."
            ) from None
        except BusError:
            if not headers:  # a lease is lost at its deadline, and must not wait for one more answer
                await self._refuse_missing()
            raise

    async def _consumer(self, key: str, *, headers_only: bool, history: bool = False) -> Puller:
        newest = api.DeliverPolicy.LAST_PER_SUBJECT
        config = api.ConsumerConfig(
            name=f"w{uuid.uuid4().hex}",
            deliver_policy=api.DeliverPolicy.ALL if history else newest,
            ack_policy=api.AckPolicy.NONE,
            filter_subject=self._prefix + key,
            headers_only=headers_only,
            inactive_threshold=60.0,
            mem_storage=True,
            num_replicas=1,
        )
        info = await self.bus.js.add_consumer(stream_of(self.name), config)
        return await Puller.open(self.bus, stream_of(self.name), info.name)

    async def _read_changed(self, prefix: str, *, headers_only: bool) -> list[Entry]:
        """Reads all keys, or returns what the last call found if the bucket is unchanged since then.

        Roles ask for the same keys every second. A read costs a consumer that is made and deleted, while the
        state of the bucket costs one request.
        """
        asked = cancellations()
        try:
            info = await self.bus.js.stream_info(stream_of(self.name))
        except nats.errors.Error:
            return await self._read_all(prefix, headers_only=headers_only)  # it waits, or says what is wrong
        finally:
            honour_cancellation(asked)
        state = info.state
        version = (info.created, state.first_seq, state.last_seq, state.messages)
        key = (self.name, prefix, headers_only)
        if key in self.bus.read_before and self.bus.read_before[key][0] == version:
            return list(self.bus.read_before[key][1])
        found = await self._read_all(prefix, headers_only=headers_only)
        if state.bytes <= KEPT_BYTES:
            self.bus.read_before[key] = (version, found)
        else:
            self.bus.read_before.pop(key, None)
        return list(found)

    async def _read_all(
        self, prefix: str, *, headers_only: bool, deletes: bool = False, all_forms: bool = False
    ) -> list[Entry]:
        filter_key = f"{prefix}>" if prefix.endswith(".") else ">"
        found = {entry.key: entry for entry in await self._pull_all(filter_key, headers_only=headers_only)}
        kept = [e for e in found.values() if e.key.startswith(prefix) and (deletes or not e.deleted)]
        return sorted((e for e in kept if all_forms or is_key(e.key)), key=lambda entry: entry.key)

    async def _pull_all(
        self, filter_key: str, *, headers_only: bool = False, history: bool = False
    ) -> list[Entry]:
        """Returns what is stored under ``filter_key``, in the order of writing; without ``history`` only the
        newest value of each key."""
        until, asked = self.bus.clock.monotonic() + READ_SECONDS, cancellations()
        while True:
            puller: Puller | None = None
            try:
                puller = await self._consumer(filter_key, headers_only=headers_only, history=history)
                found: list[Entry] = []
                while batch := await puller.pull(512):
                    found += map(self._entry, batch)
                honour_cancellation(asked)
                return found
            except (PullBroken, nats.errors.Error) as error:
                honour_cancellation(asked)
                if isinstance(error, nats.js.errors.NotFoundError) and error.err_code == NO_STREAM:
                    raise self._missing() from None
                await self._wait(until, error)
            finally:
                if puller is not None:
                    await puller.close(delete=True)

    async def _refuse_missing(self) -> None:
        """Raises BusError if the server answers that it has no such bucket."""
        try:
            async with asyncio.timeout(MISSING_SECONDS):
                await self.bus.js.stream_info(stream_of(self.name))
        except nats.js.errors.NotFoundError as error:
            if error.err_code == NO_STREAM:
                raise self._missing() from None
        except (nats.errors.Error, TimeoutError):
            return

    def _missing(self) -> BusError:
        return BusError(
            f"Bucket {self.name} does not exist on the server: start the service on this data folder once "
            f"('onward up'), which makes it."
        )

    async def _wait(self, until: float, error: Exception) -> None:
        if self.bus.clock.monotonic() >= until:
            raise BusError(
                f"Bucket {self.name} could not be read ({type(error).__name__}): is NATS running?"
            ) from None
        await self.bus.revive()
        await self.bus.clock.sleep(0.1)

    def _entry(self, message) -> Entry:
        key = message.subject.removeprefix(self._prefix)
        return self._as_entry(key, message.data, message.metadata.sequence.stream, message.headers)

    @staticmethod
    def _as_entry(key: str, value: bytes | None, revision: int, headers: Mapping[str, str] | None) -> Entry:
        return Entry(key, value or b"", revision, _is_deletion(headers), "Nats-Msg-Id" in (headers or {}))


def _is_deletion(headers: Mapping[str, str] | None) -> bool:
    return (headers or {}).get("KV-Operation") in ("DEL", "PURGE")


def is_key(key: str) -> bool:
    """Returns whether a role may read and write under this key."""
    return len(key) <= 400 and _KEY.fullmatch(key) is not None


def _check_key(key: str) -> str:
    if not is_key(key):
        shown = json.dumps(key[:40])
        raise BusRefusedError(
            f"{shown} is not a key: give letters, digits, '_', '-', '=' or '/', joined by dots."
        )
    return key
