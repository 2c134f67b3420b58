"""Decides the fate of one message: stored, dead letter with a reason, held encrypted, or dropped on request.

Pure, and the only code that sees raw bodies.

Invariants: it never raises and it fails closed. A body that could not be read or redacted as JSON is held,
never passed on in part. A dead letter only gets a body in which redaction found nothing or which it cleaned.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from onward.bus import Message
from onward.capture import claim_check
from onward.capture.attachments import separate_trajectory
from onward.capture.collecting import trajectory_row
from onward.capture.conversations import turns
from onward.capture.opt_out import OptOut
from onward.capture.retrying import with_one_retry
from onward.clock import utc_text
from onward.contracts import (
    MAX_BYTES,
    Trajectory,
    canonical_json,
    decode,
    decode_document,
    to_document,
    validate,
)
from onward.errors import ContractError
from onward.redaction import PLAIN, Redactor

REDACTED = "Onward-Redacted"
"""Header of a message that the collector republished; its value is the policy version."""
ARRIVED = "Onward-Arrived"
"""Header of messages that Onward republished: the time of first arrival. The age of a message is its age at
that time, however long it was held or waited. A publisher who forges it gains no more than by a forged time
in the body."""
FUTURE = timedelta(hours=24)
PAST = timedelta(days=30)
"""Accepted: up to ``FUTURE`` after now and ``PAST`` (the retention period) before the arrival."""
NOBODY = OptOut()
_LIMITS = frozenset(("too_large", "too_deep"))
_TOKEN_WORDS = ("token_ids", "prompt_ids")
_DEEPEST = 200
"""Levels to which a body is read only to find the ids for opt-out and quarantine."""


class Fate(StrEnum):
    STORE = "store"
    DEAD_LETTER = "dead_letter"
    """Dead letter with ``reason``, ``detail`` and a clean ``body``."""
    HOLD = "hold"
    """Encrypted, since redaction failed; ``reason`` and, in ``detail``, the class of the error."""
    DROP = "drop"
    """Its session, agent or user opted out."""


@dataclass(frozen=True)
class Item:
    """One message with its verdict."""

    message: Message
    """Message with redacted headers, unless it is held."""
    fate: Fate
    document: dict[str, Any] | None = None
    """Document to be stored: redacted, not yet enriched."""
    identity: str = ""
    secret: bool = False
    """True if something in the raw message was redacted."""
    counts: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    detail: str = ""
    body: bytes = b""
    trajectory_id: str = ""
    """Id of a held trajectory; empty unless it is a UUID, since any other text might be the secret."""
    stand_in: bytes | None = None
    """Message on the stream, if the body came by claim check."""

    @property
    def must_erase(self) -> bool:
        return self.secret or self.fate in (Fate.HOLD, Fate.DROP)


@dataclass(frozen=True)
class Inspector:
    """Judges by one redactor and one opt-out."""

    redactor: Redactor = PLAIN
    opt_out: OptOut = NOBODY

    def inspect(self, message: Message, now: datetime, stand_in: bytes | None = None) -> Item:
        """Decodes, checks and redacts one message; after a failure it retries once and then holds the
        message.

        ``stand_in`` is the message on the stream of a body that came by claim check. It must equal the
        stand-in of the clean document; any other text is a publisher's own and is replaced like a secret.
        """
        try:
            item = with_one_retry(lambda: self._inspect(message, now))
        except Exception as error:
            item = held_item(message, "redaction", error)
        if stand_in is None:
            return item
        item = replace(item, stand_in=stand_in)
        if item.fate is Fate.STORE and not item.secret:
            claim = claim_check.parse(message.headers[claim_check.HEADER])
            assert item.document is not None
            ours = claim.trajectory_id == item.document["trajectory_id"]
            if not ours or claim_check.stand_in_message(item.document, claim) != stand_in:
                return replace(item, secret=True)
        return item

    def inspect_without_body(self, message: Message, error: ContractError) -> Item:
        """Judges a claim whose body is not available: a dead letter that can be replayed."""
        try:
            return with_one_retry(lambda: self._unreadable(message, error))
        except Exception as failure:
            return held_item(message, "redaction", failure)

    def _inspect(self, message: Message, now: datetime) -> Item:
        try:
            trajectory = decode(message.data, Trajectory, max_bytes=_limit(message))
            document = to_document(trajectory)
        except ContractError as error:
            return self._unreadable(message, error)
        if self.opt_out.matches_document(document):
            return Item(message, Fate.DROP)
        try:
            noted, _ = separate_trajectory(document)
            redacted = with_one_retry(lambda: self.redactor.trajectory(noted))
            changed = redacted.changed or noted is not document
            clean = to_document(validate(redacted.document, Trajectory)) if changed else document
            message, secret = self._clean_headers(message, document["trajectory_id"])
        except Exception as error:
            return held_item(message, "redaction", error, document)
        secret = secret or redacted.changed
        try:
            _check_limits(trajectory, clean, now, min(now, arrival_time(message)))
        except ContractError as error:
            body = canonical_json(clean)
            return Item(
                message, Fate.DEAD_LETTER, secret=secret, reason=error.reason, detail=str(error), body=body
            )
        identity = trajectory_row.identity(clean, redacted.policy_version)
        return Item(message, Fate.STORE, clean, identity, secret, redacted.counts)

    def _unreadable(self, message: Message, error: ContractError) -> Item:
        """Judges a message that is no trajectory: a dead letter if its body is clean or can be cleaned."""
        document = _read_anyway(message.data)
        if isinstance(document, dict) and self.opt_out.matches_document(document):
            return Item(message, Fate.DROP)
        if error.reason in _LIMITS:
            return held_item(message, error.reason, error, document)
        try:
            clean, secret = self._clean_headers(message)
            body = self._clean_body(message.data)
        except Exception as failure:
            return held_item(message, "redaction", failure, document)
        if body is None:
            return held_item(message, error.reason, error, document)
        secret = secret or body != message.data
        return Item(clean, Fate.DEAD_LETTER, secret=secret, reason=error.reason, detail=str(error), body=body)

    def _clean_body(self, data: bytes) -> bytes | None:
        """Returns ``data`` for a dead letter, redacted if it is JSON; None if it may not be clean."""
        try:
            document = decode_document(data)
        except ContractError:
            return data if self._spotless_text(data) else None
        whole = document if isinstance(document, dict) else {"document": document}
        redacted = with_one_retry(lambda: self.redactor.trajectory(whole))
        return canonical_json(redacted.document) if redacted.changed else data

    def _spotless_text(self, data: bytes) -> bool:
        """Returns whether ``data`` is plain text without findings. Escaped text and token ids cannot be
        judged without a parser, so they count as not clean."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return False
        if "\x00" in text or "\\u" in text or any(word in text for word in _TOKEN_WORDS):
            return False
        return not with_one_retry(lambda: self.redactor.document(text)).changed

    def _clean_headers(self, message: Message, trajectory_id: str = "") -> tuple[Message, bool]:
        """Returns ``message`` with redacted headers (the publisher's, too), and whether that changed any."""
        headers = {k: v for k, v in message.headers.items() if not _ours(k, v, trajectory_id)}
        if not headers:
            return message, False
        redacted = with_one_retry(lambda: self.redactor.document(headers))
        return (replace(message, headers=redacted.document), True) if redacted.changed else (message, False)


def held_item(message: Message, reason: str, error: Exception, document: Any = None) -> Item:
    """Returns the item for a message to be held. ``reason`` is a reason code. Only the class of the error is
    stored: its text may repeat a body."""
    name = _uuid_of(document)
    return Item(message, Fate.HOLD, reason=reason, detail=type(error).__name__, trajectory_id=name)


def poisoned_item(message: Message, error: Exception) -> Item:
    """Returns the item for a message to be held because the steps after redaction fail repeatedly."""
    return held_item(message, "handler_error", error, _read_anyway(message.data))


def arrival_time(message: Message) -> datetime:
    """Returns the time of first arrival: before the message was republished."""
    return _moment(message.headers.get(ARRIVED, "")) or message.timestamp


def conflict_item(item: Item) -> Item:
    """Returns ``item`` as a dead letter whose id already belongs to another trajectory."""
    return replace(
        item,
        fate=Fate.DEAD_LETTER,
        document=None,
        reason="conflict",
        detail="Another trajectory with this id is stored; it was not replaced.",
        body=canonical_json(item.document),
    )


def _limit(message: Message) -> int:
    """Returns the maximum size of a body in bytes: more if it came by claim check."""
    return claim_check.BODY_BYTES if claim_check.HEADER in message.headers else MAX_BYTES


def _ours(name: str, value: str, trajectory_id: str) -> bool:
    """Returns whether a header was made by Onward: a message id or claim derived from the trajectory's id,
    which is judged with the body; a policy version; a time of arrival. If one were taken for a secret, the
    message would be republished forever."""
    if name == "Nats-Msg-Id" and trajectory_id:
        rest = value.removeprefix(trajectory_id)
        return rest == "" or (rest.startswith(".redacted.") and _is_hex(rest.removeprefix(".redacted.")))
    if name == claim_check.HEADER and trajectory_id:
        return claim_check.claims_trajectory(value, trajectory_id)
    return (name == REDACTED and _is_hex(value)) or (name == ARRIVED and _moment(value) is not None)


def _check_limits(trajectory: Trajectory, clean: dict[str, Any], now: datetime, arrival: datetime) -> None:
    """Checks inbound limits beyond the contract. Raises ContractError."""
    if len(trajectory.turns) > turns.MAX_TURNS:
        raise ContractError("too_many_turns", f"The trajectory has more than {turns.MAX_TURNS} turns.")
    if turns.has_long_text(clean):
        raise ContractError("string_too_long", f"One text is longer than {turns.MAX_STRING} bytes.")
    if max(trajectory.start_timestamp, trajectory.end_timestamp) > now + FUTURE:
        raise ContractError("future", "The trajectory ends more than 24 hours in the future.")
    if trajectory.start_timestamp < arrival - PAST:
        raise ContractError("expired", f"The trajectory began more than {PAST.days} days before it came.")


def _read_anyway(data: bytes) -> Any:
    """Returns the document, if necessary beyond the limits of the contract; None if it cannot be read."""
    try:
        return decode_document(data, max_bytes=len(data), max_depth=_DEEPEST)
    except ContractError:
        return None


def _uuid_of(document: Any) -> str:
    value = document.get("trajectory_id") if isinstance(document, Mapping) else None
    try:
        return value if isinstance(value, str) and str(uuid.UUID(value)) == value else ""
    except ValueError:
        return ""


def _moment(text: str) -> datetime | None:
    """Returns the time that ``utc_text`` wrote, or None for any other text."""
    try:
        moment = datetime.fromisoformat(text)
        return moment if utc_text(moment) == text else None
    except ValueError:
        return None


def _is_hex(text: str) -> bool:
    return 0 < len(text) <= 64 and set(text) <= set("0123456789abcdef")
