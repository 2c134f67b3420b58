"""Claim check: a body too large for a message goes to the object store, and a small message refers to it.

The message is itself a valid trajectory: ids, times, task and outcome, one turn that names the place of the
rest, and header ``Rl-Claim``.

Invariants: the body is stored before the message is published, under a name derived from its content. It is
deleted only by age, after the stream has deleted the message, or because it contains a secret.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from onward.capture import attachments
from onward.contracts import MAX_BYTES, canonical_json, subjects
from onward.errors import ConflictError, ContractError, NotFoundError
from onward.ids import ID_PATTERN

if TYPE_CHECKING:
    from onward.bus.connection import Bus
    from onward.bus.consumer import Message
    from onward.bus.outbox import Send, Waiting
    from onward.clock import Clock
    from onward.warehouse.objects import Objects

HEADER = "Rl-Claim"
PREFIX = "claims"
ROOM = 8 << 10
"""Bytes of a message reserved for its headers."""
DIRECT_BYTES = MAX_BYTES - ROOM
"""A larger body goes by claim check: by default servers accept messages of 1 MiB, headers included."""
BODY_BYTES = 64 << 20
"""Largest body that is accepted at all."""
KEEP = timedelta(days=31)
"""One day more than the stream keeps the message that names the body."""
_TEXT = 2000
_KEPT_METADATA = ("model", "temperature", "total_tokens", "total_cost_usd", "outcome", "release", "user_hash")
_URI = re.compile(rf"{PREFIX}/([0-9]{{8}})/({ID_PATTERN.pattern})\.([0-9a-f]{{16}})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Claim:
    """Place of a body. ``uri`` is a key of the object store that publisher and collector share, never an
    address: a publisher cannot make the collector read from elsewhere."""

    uri: str
    sha256: str
    size: int

    @property
    def trajectory_id(self) -> str:
        found = _URI.fullmatch(self.uri)
        return found[2] if found else ""

    def header(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


class ClaimBrokenError(ContractError):
    """The body that a claim names does not exist (``claim_missing``) or differs (``claim_mismatch``)."""


def parse(header: str) -> Claim:
    """Parses the claim in a header. Raises ContractError (``claim``) for any form but our own."""
    try:
        found = json.loads(header)
        claim = Claim(found["uri"], found["sha256"], found["size"])
        if (
            found.keys() == {"uri", "sha256", "size"}
            and _URI.fullmatch(claim.uri)
            and _SHA256.fullmatch(claim.sha256)
            and claim.uri.endswith(claim.sha256[:16])
            and type(claim.size) is int
            and 0 < claim.size <= BODY_BYTES
        ):
            return claim
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ContractError(
        "claim",
        f"The header {HEADER} is not readable: expected JSON with uri ({PREFIX}/yyyymmdd/id.hash), "
        f"sha256, and a size of at most {BODY_BYTES} bytes.",
    )


def claims_trajectory(header: str, trajectory_id: str) -> bool:
    """Returns whether ``header`` claims a body of that trajectory, in our own form alone."""
    try:
        claim = parse(header)
    except ContractError:
        return False
    return claim.trajectory_id == trajectory_id and claim.header() == header


async def store(objects: Objects, trajectory_id: str, body: bytes, now: datetime) -> Claim:
    """Stores ``body`` under a name derived from its content; a repeat changes nothing. Raises ObjectError."""
    digest = hashlib.sha256(body).hexdigest()
    uri = f"{PREFIX}/{now.astimezone(UTC):%Y%m%d}/{trajectory_id}.{digest[:16]}"
    try:
        await objects.put(uri, body, create_only=True)
    except ConflictError:
        pass  # the same content, from an earlier try
    return Claim(uri, digest, len(body))


async def fetch(objects: Objects, claim: Claim) -> bytes:
    """Returns the body. Raises ClaimBrokenError (``claim_missing``, ``claim_mismatch``), ObjectError."""
    try:
        body = await objects.get(claim.uri)
    except NotFoundError:
        raise missing(objects, claim) from None
    if len(body) != claim.size or hashlib.sha256(body).hexdigest() != claim.sha256:
        raise ClaimBrokenError(
            "claim_mismatch",
            f"The body {claim.uri} ({len(body)} bytes) is not the one that its claim names: publish again.",
        )
    return body


def missing(objects: Objects, claim: Claim) -> ClaimBrokenError:
    """Returns the error of a claim whose body does not exist."""
    return ClaimBrokenError(
        "claim_missing",
        f"The body {claim.uri} is not in {objects.where}: do recorder and collector use the "
        "same object store?",
    )


async def resolve(objects: Objects, message: Message) -> Message:
    """Returns ``message`` with the body that its header claims. Raises ContractError for a header that is not
    in our form, ClaimBrokenError and ObjectError like ``fetch``."""
    return replace(message, data=await fetch(objects, parse(message.headers[HEADER])))


def without_claim(message: Message) -> Message:
    """Returns ``message``, which now contains its whole body, without its claim."""
    return replace(message, headers={k: v for k, v in message.headers.items() if k != HEADER})


async def delete_body(objects: Objects, headers: Mapping[str, str], keep: Claim | None) -> None:
    """Deletes the raw body that ``headers`` claim, unless it is ``keep``. Raises ObjectError."""
    if HEADER not in headers:
        return
    try:
        claim = parse(headers[HEADER])
    except ContractError:
        return
    if keep is None or keep.uri != claim.uri:
        await objects.delete(claim.uri)


def stand_in_message(document: dict[str, Any], claim: Claim) -> bytes:
    """Returns the message that stands for ``document``: a valid trajectory of one turn. Deterministic."""
    metadata = {key: document["metadata"][key] for key in _KEPT_METADATA if key in document["metadata"]}
    context = {
        key: _shortened(value)
        for key, value in document["task_context"].items()
        if isinstance(value, (str, int, float))
    }
    last = document["turns"][-1]
    note = f"{len(document['turns'])} turns in {claim.size} bytes: the whole trajectory is at metadata.claim."
    return canonical_json(
        {
            **{key: document[key] for key in document if key not in ("turns", "task_context", "metadata")},
            "turns": [
                {
                    "turn_id": 1,
                    "timestamp": document["turns"][0]["timestamp"],
                    "observation": {"type": "system_message", "content": note},
                    "action": {"type": last["action"]["type"]},
                    "result": {"success": last["result"]["success"]},
                }
            ],
            "task_context": context,
            "metadata": {**metadata, "claim": asdict(claim)},
        }
    )


def needs_store(bus: Bus, subject: str, body: bytes) -> bool:
    """Returns whether it is an attachment, or a trajectory that is too large for a message."""
    if subject == attachments.SUBJECT:
        return True
    return subject == subjects.TRAJECTORY and len(body) > min(DIRECT_BYTES, bus.max_payload - ROOM)


async def publish(
    bus: Bus,
    objects: Objects | None,
    now: datetime,
    body: bytes,
    *,
    subject: str,
    msg_id: str,
    headers: Mapping[str, str],
) -> Claim | None:
    """Publishes a message. A trajectory that is too large for one goes by claim check, which is returned; an
    attachment, whose ``msg_id`` is its key, is only stored. Raises ObjectError if the store is unavailable,
    PublishRejectedError if none is configured."""
    from onward.bus.connection import PublishRejectedError
    from onward.telemetry.crashpoints import crashpoint

    claim = None
    if needs_store(bus, subject, body):
        if objects is None:
            raise PublishRejectedError(
                f"A trajectory or attachment of {len(body)} bytes is too large for a message: open the "
                "recorder with objects= (the collector's object store)."
            )
        if subject == attachments.SUBJECT:
            with suppress(ConflictError):  # the same content, from an earlier try
                await objects.put(msg_id, body, create_only=True)
            return None
        document = json.loads(body)
        claim = await store(objects, document["trajectory_id"], body, now)
        crashpoint("claims.stored")
        body, headers = stand_in_message(document, claim), {**headers, HEADER: claim.header()}
    await bus.publish(subject, body, msg_id=msg_id, headers=headers)
    return claim


def outbox_sender(bus: Bus, objects: Objects | None, clock: Clock) -> Send:
    """Wraps ``publish`` in the form that an outbox calls."""

    async def send(message: Waiting) -> None:
        await publish(
            bus,
            objects,
            clock.now(),
            message.body,
            subject=message.subject,
            msg_id=message.msg_id,
            headers=message.headers,
        )

    return send


async def delete_old(objects: Objects, now: datetime) -> int:
    """Deletes bodies and attachments stored more than KEEP ago, claimed or not; returns their number. Raises
    ObjectError."""
    oldest = f"{(now - KEEP).astimezone(UTC):%Y%m%d}"
    gone = 0
    for key in [*await objects.list(PREFIX), *await objects.list(attachments.PREFIX)]:
        day = key.split("/")[1]
        if day.isdigit() and day < oldest:
            await objects.delete(key)
            gone += 1
    return gone


def _shortened(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= _TEXT else value[:_TEXT] + " …"
