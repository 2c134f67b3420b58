"""Dead letters: messages that could not be used, stored with a reason, to be inspected and sent again.

Invariants: a body that may hold secrets is stored empty or redacted; the headers then name the stream and
sequence of the original, and ``replay`` reads it from there. A replay uses its own message id, because the
dedupe window would refuse the old one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nats.errors
import nats.js.errors
from nats.js.api import PubAck

from onward.bus.headers import usable, within
from onward.contracts import subjects
from onward.errors import BusError, NotFoundError
from onward.ids import derived_id
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.bus.connection import Bus
    from onward.bus.consumer import Message

log = logs.get("bus")

STREAM = "RL_DLQ"
DEADLINE_SECONDS = 10.0
REASON = "Onward-Reason"
DETAIL = "Onward-Detail"
SOURCE_STREAM = "Onward-Stream"
SOURCE_SEQUENCE = "Onward-Sequence"
SOURCE_SUBJECT = "Onward-Subject"
SOURCE_ID = "Onward-Msg-Id"
OMITTED = "Onward-Body-Omitted"


@dataclass(frozen=True)
class DeadLetterRecord:
    sequence: int
    """Sequence in RL_DLQ, which ``read_one`` and ``replay`` take."""
    stream: str
    subject: str
    source_sequence: int
    msg_id: str
    reason: str
    detail: str
    size: int
    """Bytes of the body stored here; 0 if it was left in its stream."""
    stored_at: str
    headers: dict[str, str]
    body: bytes


async def store_dead_letter(
    bus: Bus, stream: str, message: Message, reason: str, detail: str, body: bytes
) -> None:
    """Stores a dead letter and returns once the server has it. The same message again is a duplicate. Raises
    BusError if the server is unreachable for 10 s: the message is then not acknowledged."""
    headers = within(_foreign(message.headers))
    headers[REASON] = _one_line(reason, 100)
    headers[DETAIL] = _one_line(detail, 500)
    headers[SOURCE_STREAM] = stream
    headers[SOURCE_SEQUENCE] = str(message.sequence)
    headers[SOURCE_SUBJECT] = message.subject
    headers[SOURCE_ID] = _one_line(message.headers.get("Nats-Msg-Id", ""), 200)
    if not fits_dead_letter(bus, body):
        headers[OMITTED] = str(len(body))
        body = b""
    msg_id = derived_id("dead letter", stream, str(message.sequence), message.timestamp.isoformat())
    await bus.publish(
        f"{subjects.DLQ}.{stream}", body, msg_id=msg_id, headers=headers, deadline=DEADLINE_SECONDS
    )
    log.warning("dead letter", stream=stream, sequence=message.sequence, reason=reason)


def fits_dead_letter(bus: Bus, body: bytes) -> bool:
    """Returns whether a dead letter stores ``body``; a larger one is left in its stream."""
    return len(body) <= bus.nc.max_payload - 64 * 1024


async def dead_letters(
    bus: Bus, *, stream: str | None = None, limit: int = 100, after: int = 0
) -> list[DeadLetterRecord]:
    """Returns at most ``limit`` dead letters with a sequence above ``after``, oldest first."""
    found: list[DeadLetterRecord] = []
    subject = f"{subjects.DLQ}.{stream}" if stream else f"{subjects.DLQ}.>"
    position = after + 1
    while len(found) < limit:
        try:
            raw = await bus.js.get_msg(STREAM, seq=position, subject=subject, next=True)
        except nats.js.errors.NotFoundError:
            break
        except nats.errors.Error as error:
            raise BusError(f"The dead letters could not be read ({type(error).__name__}).") from None
        found.append(_record(raw))
        position = (raw.seq or position) + 1
    return found


async def read_one(bus: Bus, sequence: int) -> DeadLetterRecord:
    """Returns one dead letter. Raises NotFoundError if there is none with that sequence."""
    with _answered("The dead letter could not be read", _unknown(sequence)):
        return _record(await bus.js.get_msg(STREAM, seq=max(1, sequence)))


async def replay(bus: Bus, sequence: int, *, keep: bool = False) -> PubAck:
    """Publishes a dead letter to its subject again, then removes it (unless ``keep``).

    If the body was left out, the original is read from its stream. Raises NotFoundError if neither exists. A
    crash in between replays it once more, which consumers recognise by its id.
    """
    record = await read_one(bus, sequence)
    body = record.body
    if not body and record.source_sequence:
        body = await _original(bus, record)
    headers = _foreign(record.headers)
    headers["Onward-Replay-Of"] = str(sequence)
    msg_id = derived_id("replay", str(sequence), record.stored_at)
    ack = await bus.publish(record.subject, body, msg_id=msg_id, headers=headers, deadline=30.0)
    if not keep:
        try:
            await bus.js.delete_msg(STREAM, sequence)
        except nats.errors.Error as error:
            log.warning("a replayed dead letter stays listed", sequence=sequence, reason=type(error).__name__)
    return ack


async def drop(bus: Bus, sequence: int) -> None:
    """Removes a dead letter permanently. Raises NotFoundError if there is none with that sequence."""
    with _answered("The dead letter could not be dropped", _unknown(sequence)):
        await bus.js.delete_msg(STREAM, sequence)


@contextmanager
def _answered(failed: str, missing: NotFoundError) -> Iterator[None]:
    """Raises ``missing`` if the server has no such message, BusError (``failed``) if it does not answer."""
    try:
        yield
    except nats.js.errors.NotFoundError:
        raise missing from None
    except nats.errors.Error as error:
        raise BusError(f"{failed} ({type(error).__name__}).") from None


def _unknown(sequence: int) -> NotFoundError:
    return NotFoundError(f"There is no dead letter {sequence}: see 'onward dlq list'.")


async def _original(bus: Bus, record: DeadLetterRecord) -> bytes:
    gone = NotFoundError(
        f"Dead letter {record.sequence} has no body and its original "
        f"({record.stream} {record.source_sequence}) is gone: it cannot be replayed."
    )
    with _answered("The original could not be read", gone):
        return (await bus.js.get_msg(record.stream, seq=record.source_sequence)).data or b""


def _foreign(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers that are neither the server's nor ours."""
    return {k: v for k, v in headers.items() if not k.startswith(("Nats-", "Onward-"))}


def _record(raw) -> DeadLetterRecord:
    headers = usable(raw.headers)
    body = raw.data or b""
    source = headers.get(SOURCE_SEQUENCE, "0")
    return DeadLetterRecord(
        sequence=raw.seq,
        stream=headers.get(SOURCE_STREAM, ""),
        subject=headers.get(SOURCE_SUBJECT, ""),
        source_sequence=int(source) if re.fullmatch("[0-9]{1,19}", source) else 0,
        msg_id=headers.get(SOURCE_ID, ""),
        reason=headers.get(REASON, "unknown"),
        detail=headers.get(DETAIL, ""),
        size=len(body),
        stored_at=str(raw.time or ""),
        headers=headers,
        body=body,
    )


def _one_line(text: str, most: int) -> str:
    """Returns text as one line of ASCII, at most ``most`` characters, as header values require."""
    flat = " ".join(text.split())
    return flat.encode("ascii", "backslashreplace").decode()[:most]
