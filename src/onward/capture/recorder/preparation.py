"""Converts a finished document to the bytes that may be written: redacts, cuts, checks and encodes it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onward.bus.outbox import Outgoing
from onward.capture import claim_check
from onward.capture.attachments import SUBJECT, Attachment, separate_trajectory
from onward.capture.conversations import turns
from onward.contracts import Trajectory, canonical_json, validate
from onward.errors import ContractError
from onward.forks import Gate
from onward.redaction import Known, Redactor, read_rules
from onward.redaction.own_rules import NO_RULES

_REDACTING = Gate()
"""RE2 locks its own memory while it runs without the interpreter's lock."""


def agents_redactor(
    known_secrets: Iterable[str] | None,
    nats_url: str | None,
    nats_token: str | None,
    optional_kinds: Iterable[str],
    redaction_rules: Path | str | None = None,
) -> Redactor:
    """Makes a recorder's redactor. Raises ConfigError for a short secret, an unknown optional kind, a wrong
    rule."""
    own = {"NATS_URL": nats_url or "", "NATS_TOKEN": nats_token or ""}
    if known_secrets is None:
        known = Known.from_environment({**os.environ, **own})
    else:
        logins = (nats_token, urlsplit(nats_url or "").password)
        known = Known([*known_secrets, *(login for login in logins if login and len(login) >= 6)])
    rules = NO_RULES if redaction_rules is None else read_rules(Path(redaction_rules))
    return Redactor(known, tuple(optional_kinds), own=rules)


class Preparer:
    def __init__(self, redactor: Redactor, *, has_store: bool, keeps_attachments: bool = False) -> None:
        """``keeps_attachments``: pictures go to the store under the day on which their task ended."""
        self._redactor, self._keeps_attachments = redactor, keeps_attachments
        self._limit = claim_check.BODY_BYTES if has_store else claim_check.DIRECT_BYTES

    def prepare(self, document: dict[str, Any]) -> bytes:
        """Returns canonical JSON without secrets; its attachments are stored nowhere. Raises RedactionError,
        ContractError."""
        return self._prepare(document, None)[0]

    def prepare_with_attachments(self, document: dict[str, Any]) -> tuple[bytes, list[Outgoing]]:
        """Returns what ``prepare`` does, and the attachments that it refers to, for their outbox. They are
        not redacted."""
        day = document["end_timestamp"][:10].replace("-", "") if self._keeps_attachments else None
        data, found = self._prepare(document, day)
        keyed = [(one.key(day), one) for one in found] if day is not None else []
        return data, [Outgoing(SUBJECT, one.data, key) for key, one in keyed if key is not None]

    def redact(self, document: dict[str, Any]) -> dict[str, Any]:
        """Returns the document without secrets and with notes in place of pictures. Raises RedactionError."""
        return self._redact(document, None)[0]

    def _prepare(self, document: dict[str, Any], day: str | None) -> tuple[bytes, list[Attachment]]:
        if len(document["turns"]) > turns.MAX_TURNS:
            raise ContractError(
                "too_many_turns", f"A trajectory takes at most {turns.MAX_TURNS} turns: split the task."
            )
        redacted, found = self._redact(document, day)
        return self.encode(redacted), found

    def _redact(self, document: dict[str, Any], day: str | None) -> tuple[dict[str, Any], list[Attachment]]:
        noted, found = separate_trajectory(document, day)
        with _REDACTING:
            return self._redactor.trajectory(noted).document, found

    def encode(self, redacted: dict[str, Any]) -> bytes:
        """Cuts, checks and encodes a document that is redacted already. Raises ContractError."""
        if turns.has_long_text(redacted):
            redacted, cut = turns.cut_long(redacted)
            redacted["metadata"]["texts_cut"] = cut
        data = canonical_json(validate(redacted, Trajectory))
        if len(data) > self._limit:
            raise ContractError("too_large", self._too_large(len(data)))
        return data

    def _too_large(self, size: int) -> str:
        if self._limit == claim_check.BODY_BYTES:
            return f"The trajectory has {size} bytes and at most {self._limit} are taken: split the task."
        return (
            f"The trajectory has {size} bytes and a message takes {self._limit}: open the recorder with "
            f"objects= (the collector's object store), which takes {claim_check.BODY_BYTES}, or record less."
        )
