"""Claim check: a body too large for a message goes to the object store, a small message stands for it.

The message is a valid trajectory of its own: ids, times, task and outcome, one turn that says where the
rest is, and header ``Rl-Claim``. Know before changing: the body is stored before the message is published,
under a name made of its content; it is taken away only by age, after the stream has forgotten the message,
or with a secret.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

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
"""Bytes of a message left for its headers."""
DIRECT_BYTES = MAX_BYTES - ROOM
"""A larger body travels by claim check: servers take messages of 1 MiB, headers included, unless told
else."""
BODY_BYTES = 64 << 20
"""The largest body that is taken at all."""
KEEP = timedelta(days=31)
"""A day longer than the stream keeps the message that names the body."""
_TEXT = 2000
_KEPT_METADATA = ("model", "temperature", "total_tokens", "total_cost_usd", "outcome", "release", "user_hash")
_URI = re.compile(rf"{PREFIX}/([0-9]{{8}})/({ID_PATTERN.pattern})\.([0-9a-f]{{16}})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Claim:
    """Where a body is. ``uri`` is a key of the object store that publisher and collector share, never an
    address: nobody can make the collector read from anywhere else."""

    uri: str
    sha256: str
    size: int

    @property
    def trajectory_id(self) -> str:
        found = _URI.fullmatch(self.uri)
        return found[2] if found else ""

    def header(self) -> str:
        return json.dumps({"sha256": self.sha256, "size": self.size, "uri": self.uri})


class ClaimBrokenError(ContractError):
    """The body that a claim names is not there (``claim_missing``), or is another one
    (``claim_mismatch``)."""


def parse(header: str) -> Claim:
    """The claim in a header. Raises ContractError (``claim``) for anything but one of our own form."""
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


def is_of(header: str, trajectory_id: str) -> bool:
    """Whether ``header`` claims a body of that trajectory, in our own form and with nothing else in it."""
    try:
        claim = parse(header)
    except ContractError:
        return False
    return claim.trajectory_id == trajectory_id and claim.header() == header


async def store(objects: Objects, trajectory_id: str, body: bytes, now: datetime) -> Claim:
    """Put ``body`` under a name made of its content; once more changes nothing. Raises ObjectError."""
    digest = hashlib.sha256(body).hexdigest()
    uri = f"{PREFIX}/{now.astimezone(UTC):%Y%m%d}/{trajectory_id}.{digest[:16]}"
    try:
        await objects.put(uri, body, create_only=True)
    except ConflictError:
        pass  # the same content, from a try before this one
    return Claim(uri, digest, len(body))


async def fetch(objects: Objects, claim: Claim) -> bytes:
    """The body. Raises ClaimBrokenError (``claim_missing``, ``claim_mismatch``), ObjectError when the store
    is away."""
    try:
        body = await objects.get(claim.uri)
    except NotFoundError:
        raise ClaimBrokenError(
            "claim_missing",
            f"The body {claim.uri} is not in {_shown(objects.where)}: do recorder and collector use the same "
            "object store?",
        ) from None
    if len(body) != claim.size or hashlib.sha256(body).hexdigest() != claim.sha256:
        raise ClaimBrokenError(
            "claim_mismatch",
            f"The body {claim.uri} ({len(body)} bytes) is not the one that its claim names: publish again.",
        )
    return body


async def resolve(objects: Objects, message: Message) -> Message:
    """``message`` with the body that its header claims. Raises ContractError for a header that is not ours,
    ClaimBrokenError and ObjectError as ``fetch``."""
    claim = parse(message.headers[HEADER])
    body = await fetch(objects, claim)
    return replace(message, data=body)


def direct(message: Message) -> Message:
    """``message``, which holds its whole body now, without its claim."""
    return replace(message, headers={k: v for k, v in message.headers.items() if k != HEADER})


async def forget(objects: Objects, headers: Mapping[str, str], keep: Claim | None) -> None:
    """Delete the raw body that ``headers`` claim, unless it is the clean one, ``keep``. Raises
    ObjectError."""
    if HEADER not in headers:
        return
    try:
        claim = parse(headers[HEADER])
    except ContractError:
        return
    if keep is None or keep.uri != claim.uri:
        await objects.delete(claim.uri)


def stand_in(document: dict[str, Any], claim: Claim) -> bytes:
    """The message that stands for ``document``: a valid trajectory with one turn, the same for the same
    input."""
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
            "metadata": {
                **metadata,
                "claim": {"uri": claim.uri, "sha256": claim.sha256, "size": claim.size},
            },
        }
    )


def needs_store(bus: Bus, subject: str, body: bytes) -> bool:
    """Whether it is a trajectory that is too large for a message."""
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
    """Publish a message; a trajectory by claim check (returned) where it is too large for a
    message.

    Raises ObjectError when the store is away, PublishRejectedError when there is none.
    """
    from onward.bus.connection import PublishRejectedError
    from onward.telemetry.crashpoints import crashpoint

    claim = None
    if needs_store(bus, subject, body):
        if objects is None:
            raise PublishRejectedError(
                f"A trajectory of {len(body)} bytes is too large for a message: open the recorder with "
                "objects= (the collector's object store)."
            )
        document = json.loads(body)
        claim = await store(objects, document["trajectory_id"], body, now)
        crashpoint("claims.stored")
        body, headers = stand_in(document, claim), {**headers, HEADER: claim.header()}
    await bus.publish(subject, body, msg_id=msg_id, headers=headers)
    return claim


def sender(bus: Bus, objects: Objects | None, clock: Clock) -> Send:
    """``publish`` as an outbox takes it."""

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


async def clean(objects: Objects, now: datetime) -> int:
    """Delete bodies that were stored more than KEEP ago, claimed or not; how many. Raises ObjectError."""
    oldest = f"{(now - KEEP).astimezone(UTC):%Y%m%d}"
    gone = 0
    for key in await objects.list(PREFIX):
        day = key.split("/")[1]
        if day.isdigit() and day < oldest:
            await objects.delete(key)
            gone += 1
    return gone


def _shortened(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= _TEXT else value[:_TEXT] + " …"


def _shown(where: str) -> str:
    """An address without a login in it."""
    return re.sub(r"//[^/@\s]*@", "//", where)
