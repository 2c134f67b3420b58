"""Path of a vote to the bus: redacted, then on disk, then acknowledged, then published.

Invariants: the same id with the same words is accepted once, however often it is sent; only the time of the
first counts. A vote that cannot be redacted is not accepted, so its sender still has it.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

from onward.bus import Bus, Outbox
from onward.bus.cancellation import until_cancelled
from onward.capture.opt_out import OptOut
from onward.clock import Clock, utc_text
from onward.contracts import Feedback, canonical_json, encode, subjects, validate
from onward.errors import ContractError, OnwardError
from onward.redaction import Redactor
from onward.telemetry import logs

OUTBOX = "feedback.db"
_RETRY_SECONDS = 1.0
_log = logs.get("feedback")


class FeedbackIntake:
    """The outbox of one api process and the steps before it."""

    def __init__(self, folder: Path, *, clock: Clock, redactor: Redactor, opt_out: OptOut) -> None:
        """Raises BusError for a file that cannot be used."""
        self._clock, self._redactor, self._opt_out = clock, redactor, opt_out
        self._outbox = Outbox(folder / OUTBOX)
        self._outbox.retry_refused()

    async def accept(self, feedback_id: str, said: dict[str, Any]) -> bool:
        """Accepts one vote; durable on return. False: its session opted out, and nothing of it is stored.

        ``said`` is a feedback.v1 without id and time. Raises ConflictError for an id that was used for other
        words, ContractError for a session that could not be found again, RedactionError, OutboxFullError,
        BusError; then nothing was accepted.
        """
        if self._opt_out.matches(said["session_id"], None, None):
            return False
        await asyncio.to_thread(self._put, feedback_id, said, self._clock.now())
        return True

    def _put(self, feedback_id: str, said: dict[str, Any], now: datetime) -> None:
        clean = self._redactor.document(said).document
        if clean["session_id"] != said["session_id"] and "trajectory_id" not in said:
            raise ContractError(
                "session_id",
                "This session id reads like personal data or a secret and is stored redacted, so the vote "
                "would be lost: name a 'trajectory_id' too, or call sessions by other ids.",
            )
        document = {**clean, "feedback_id": feedback_id, "timestamp": utc_text(now)}
        data = encode(validate(document, Feedback))
        self._outbox.put(subjects.FEEDBACK, data, msg_id=feedback_id, same=canonical_json(clean))

    async def deliver(self, bus: Bus) -> None:
        """Publishes accepted votes, until cancelled."""
        for _ in until_cancelled():
            try:
                await self._outbox.drain(bus)
            except OnwardError as error:
                _log.warning("feedback waits in the outbox", reason=str(error))
            await self._clock.sleep(_RETRY_SECONDS)

    def pending(self) -> int:
        """Returns the number of votes that wait for NATS."""
        return self._outbox.pending()

    def close(self) -> None:
        """Closes the file. Waiting votes are published at the next start."""
        self._outbox.close()
