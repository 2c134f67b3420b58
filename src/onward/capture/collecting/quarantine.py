"""The quarantine: raw bodies that could not be redacted, stored encrypted until they can be or are dropped.

One object ``quarantine/<id>`` per message: a line of JSON facts, then AES-256-GCM over headers and body, with
the facts as associated data.

Invariants: an id is derived from stream, sequence and time of the message, or from the gateway's own
trajectory id, so holding it again after a crash makes no second object. No fact comes from the content.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Self

from onward.bus import Message
from onward.capture import sealing
from onward.capture.sealing import key_id_of
from onward.clock import Clock, utc_text
from onward.config import Settings
from onward.contracts import subjects
from onward.errors import ConfigError, ConflictError, NotFoundError, ObjectError, TamperedError
from onward.ids import is_id
from onward.warehouse import Objects

PREFIX = "quarantine"
KEY_FILE = "quarantine.key"
STREAM, GATEWAY = "stream", "gateway"


@dataclass(frozen=True)
class HeldMessage:
    """Facts of one held message; none of them comes from its content."""

    held_id: str
    since: str
    reason: str
    error: str
    """Class of the error that stopped it."""
    subject: str
    stream: str
    sequence: int
    arrived: str
    """Time at which the server stored the message."""
    size: int
    """Bytes of the body."""
    trajectory_id: str
    """Empty unless it was a UUID."""
    key_id: str
    """Identifies the key that opens it: the beginning of that key's hash."""
    source: str = STREAM
    """``stream``, or ``gateway``: recorded there, not redacted, and on no stream yet."""


class QuarantineKeys:
    """The key that encrypts (``capture.quarantine_key``, else that of the file) and all that decrypt."""

    def __init__(self, given: bytes | None, file: Path) -> None:
        self._given = given
        self._file = file

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Reads the settings. Raises ConfigError if ``capture.quarantine_key`` is not 32 bytes in base64."""
        given = settings.capture.quarantine_key
        key = None if given is None else sealing.parse_key(given.get_secret_value(), "capture.quarantine_key")
        return cls(key, settings.run_dir / KEY_FILE)

    def sealing_key(self) -> bytes:
        """Returns the key that encrypts; creates the file at first use. Raises ObjectError if it cannot be
        written, ConfigError if it contains no key."""
        return sealing.read_or_create_key(self._file) if self._given is None else self._given

    def opening_key(self, key_id: str) -> bytes:
        """Returns the key with that id. Raises ConfigError if it is missing."""
        candidates = [self._given] if self._given is not None else []
        if self._file.exists():
            candidates.append(sealing.read_or_create_key(self._file))
        for key in candidates:
            if key_id_of(key) == key_id:
                return key
        raise ConfigError(
            f"The key {key_id!r} that sealed it is not here: set capture.quarantine_key to it, or work "
            f"where its run/{KEY_FILE} is."
        )


class Quarantine:
    def __init__(self, objects: Objects, keys: QuarantineKeys, clock: Clock) -> None:
        self.objects = objects
        self._keys = keys
        self._clock = clock

    async def hold(
        self, stream: str, message: Message, reason: str, error: str = "", trajectory_id: str = ""
    ) -> HeldMessage:
        """Encrypts and stores a message durably; overwrites an earlier object of the same message. Raises
        ObjectError: the message must then stay on the stream."""
        name = held_id(stream, message.sequence, message.timestamp)
        return await self._put(name, STREAM, stream, message, reason, error, trajectory_id)

    async def hold_trajectory(self, trajectory_id: str, body: bytes, reason: str, error: str) -> HeldMessage:
        """Encrypts and stores a trajectory that the gateway recorded, once: after a crash it comes again from
        the journal, with less content. Raises ObjectError: the caller must then keep it."""
        name = f"{GATEWAY}-{hashlib.sha256(trajectory_id.encode()).hexdigest()[:16]}"
        message = Message(body, {}, subjects.TRAJECTORY, 0, 1, self._clock.now())
        return await self._put(name, GATEWAY, "", message, reason, error, trajectory_id)

    async def _put(
        self,
        name: str,
        source: str,
        stream: str,
        message: Message,
        reason: str,
        error: str,
        trajectory_id: str,
    ) -> HeldMessage:
        try:
            key = self._keys.sealing_key()
        except ConfigError as failure:
            raise ObjectError(str(failure)) from None  # a reason to wait, not to discard the message
        known = {topic.subject for topic in subjects.TOPICS}
        held = HeldMessage(
            held_id=name,
            since=utc_text(self._clock.now()),
            reason=reason,
            error=error,
            subject=message.subject if message.subject in known else "",
            stream=stream,
            sequence=message.sequence,
            arrived=message.timestamp.isoformat(),
            size=len(message.data),
            trajectory_id=trajectory_id,
            key_id=key_id_of(key),
            source=source,
        )
        once = source == GATEWAY
        with suppress(ConflictError):  # it is raised only for ``create_only``
            await self.objects.put(f"{PREFIX}/{name}", _seal(held, message, key), create_only=once)
        return held

    async def list_held(self, limit: int | None = None) -> list[HeldMessage]:
        """Returns the facts of at most ``limit`` messages, by sequence."""
        ids = [key.rpartition("/")[2] for key in await self.objects.list(PREFIX)]
        found: list[HeldMessage] = []
        for name in sorted(ids, key=_sequence_of)[:limit]:
            try:
                found.append(await self.facts(name))
            except NotFoundError:
                continue  # dropped or retried meanwhile
        return found

    async def open(self, name: str) -> tuple[HeldMessage, Message]:
        """Returns the facts and, decrypted in memory only, the original message. Raises NotFoundError,
        ConfigError (its key is missing), TamperedError (it was changed)."""
        data = await self._read(name)
        held, line, sealed = _facts(data)
        plain = sealing.unseal(line, sealed, self._keys.opening_key(held.key_id), held.held_id)
        return held, _message(held, plain)

    async def facts(self, name: str) -> HeldMessage:
        """Returns the facts, to be shown; the reason ``damaged`` if unreadable. Raises NotFoundError."""
        data = await self._read(name)
        try:
            return _facts(data)[0]
        except TamperedError:
            return HeldMessage(name, "", "damaged", "", "", "", _sequence_of(name), "", len(data), "", "")

    async def drop(self, name: str) -> None:
        """Deletes it for good. Raises NotFoundError if it does not exist."""
        if not is_id(name) or not await self.objects.exists(f"{PREFIX}/{name}"):
            raise _not_there(name)
        await self.objects.delete(f"{PREFIX}/{name}")

    async def _read(self, name: str) -> bytes:
        try:
            if is_id(name):
                return await self.objects.get(f"{PREFIX}/{name}")
        except NotFoundError:
            pass
        raise _not_there(name)


async def count_held(objects: Objects) -> int:
    """Returns the number of held messages."""
    return len(await objects.list(PREFIX))


def place_of(stream: str, message: Message) -> str:
    """Returns the key under which a message is held, if it is."""
    return f"{PREFIX}/{held_id(stream, message.sequence, message.timestamp)}"


def held_id(stream: str, sequence: int, arrived: datetime) -> str:
    """Returns ``<sequence>-<8 hex digits>``: the same for a message until its stream is created again."""
    return f"{sequence}-{hashlib.sha256(f'{stream} {arrived.isoformat()}'.encode()).hexdigest()[:8]}"


def _seal(held: HeldMessage, message: Message, key: bytes) -> bytes:
    line = json.dumps(asdict(held), sort_keys=True).encode()
    plain = json.dumps(message.headers, sort_keys=True).encode() + b"\n" + message.data
    return sealing.seal(line, plain, key)


def _facts(data: bytes) -> tuple[HeldMessage, bytes, bytes]:
    """Returns the facts, their encoded line, and the rest."""
    line, sealed = sealing.split_sealed(data)
    try:
        facts = json.loads(line)
        facts = {"source": STREAM, **facts}  # older objects have no source
        return HeldMessage(**{field.name: facts[field.name] for field in fields(HeldMessage)}), line, sealed
    except (ValueError, KeyError, TypeError):
        raise TamperedError("A held body has no readable facts: it cannot be used, only dropped.") from None


def _message(held: HeldMessage, plain: bytes) -> Message:
    head, _, body = plain.partition(b"\n")
    return Message(
        data=body,
        headers=json.loads(head),
        subject=held.subject,
        sequence=held.sequence,
        num_delivered=1,
        timestamp=datetime.fromisoformat(held.arrived),
    )


def _sequence_of(name: str) -> int:
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def _not_there(name: str) -> NotFoundError:
    return NotFoundError(f"Nothing is held under {name[:40]!r}: see 'onward quarantine list'.")
