"""Reads ``agent.rl.feedback.v1``: every piece is stored once, redacted, and counts for the work it is about.

Feedback may arrive before its trajectory is stored or scored. It is then only stored, and the first scoring
includes it. Where the first reward is still to come, the message stays on the stream until that reward shows
whether it included the feedback: the reward may have been published already, before a restart.

Invariants: the reader of feedback and the scorer both store before they read, so at least one of them sees
the other's record. Feedback never edits a trajectory and never moves a window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from onward.bus import Ack, DeadLetter, Disposition, Message, Retry
from onward.bus.deadletter import store_dead_letter
from onward.capture.collecting.collector import erase
from onward.capture.collecting.inspection import ARRIVED, FUTURE, REDACTED, arrival_time
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.capture.make_redactor import inspector_of
from onward.capture.retrying import with_one_retry
from onward.clock import utc_text
from onward.context import Context
from onward.contracts import (
    Feedback,
    canonical_json,
    decode,
    decode_document,
    encode,
    sha256_hex,
    subjects,
    to_document,
    validate,
)
from onward.errors import ContractError
from onward.ids import new_id
from onward.reward.role.rescoring import Rescorer, Task
from onward.reward.scoring.rows import Cause
from onward.reward.stored_feedback import Row, StoredFeedback, is_about
from onward.telemetry import logs
from onward.telemetry.crashpoints import crashpoint
from onward.warehouse import recovery_queries, reward_queries
from onward.warehouse.recovery_queries import MISSING, Line

STREAM = "RL_FEEDBACK"
DURABLE = "rewarder-feedback"
SESSION_TRAJECTORIES = 100
"""Maximum trajectories, the newest, that feedback about a whole session scores again."""
RETRY_SECONDS = 2.0
"""Seconds between checks for an awaited first reward."""
MAX_DELIVERIES = 1000
"""Maximum deliveries, over half an hour: rows of a recreated stream may never get a first reward."""
LATE_COMPONENTS = frozenset({"user_feedback"})
"""Components that late feedback computes anew. The others retain their raw scores: no opinion makes work
faster."""
_log = logs.get("rewarder")


@dataclass(frozen=True)
class FeedbackMessage:
    """One checked message. Without ``feedback`` it is refused with a reason, or discarded by an opt-out."""

    message: Message
    feedback: Feedback | None = None
    refused: DeadLetter | None = None
    secret: bool = False
    """True if part of the raw message was redacted, so it must not stay on the stream."""
    redaction_error: str = ""
    """Class of the redactor's error, if it failed: the raw message is sealed, and only the vote is stored."""

    @property
    def arrived(self) -> datetime:
        return arrival_time(self.message)


class FeedbackRows:
    """Checks, stores and cleans messages. ``FeedbackReader`` scores again too."""

    def __init__(self, ctx: Context, stored: StoredFeedback) -> None:
        self._ctx, self._stored = ctx, stored
        self._inspector = inspector_of(ctx.settings)
        self._quarantine = Quarantine(ctx.objects, QuarantineKeys.from_settings(ctx.settings), ctx.clock)

    async def examine(self, messages: list[Message], *, store: bool) -> list[Line]:
        """Judges messages that were settled before, as ``Collector.examine`` does. Nothing is scored again:
        a restored vote counted when its first row was stored."""
        pieces = await asyncio.to_thread(lambda: [self._read(message) for message in messages])
        pieces, new = await self._sort(pieces, count=False)
        if store:
            await self._store(new, again=True)
            for piece in pieces:
                if piece.secret and piece.refused is None:
                    await self._clean(piece)
        missing = {row["stream_seq"] for row in new}
        return [_line(piece, piece.message.sequence in missing) for piece in pieces]

    def _read(self, message: Message) -> FeedbackMessage:
        try:
            feedback = decode(message.data, Feedback)
            if feedback.timestamp > self._ctx.clock.now() + FUTURE:
                raise ContractError("future", "The feedback was given more than 24 hours in the future.")
        except ContractError as error:
            return self._unreadable(message, error)
        if self._inspector.opt_out.matches(feedback.session_id, None, None):
            return FeedbackMessage(message, secret=True)
        document = to_document(feedback)
        try:
            redacted = with_one_retry(lambda: self._inspector.redactor.document(document))
            if not redacted.changed:
                return FeedbackMessage(message, feedback)
            return FeedbackMessage(message, _redacted(redacted.document, document), secret=True)
        except Exception as error:
            bare = {key: value for key, value in document.items() if key not in ("comment", "source")}
            return FeedbackMessage(
                message, validate(bare, Feedback), secret=True, redaction_error=type(error).__name__
            )

    def _unreadable(self, message: Message, error: ContractError) -> FeedbackMessage:
        """Makes a dead letter with a clean body; a message that cannot be shown to be clean is sealed."""
        try:
            try:
                document = decode_document(message.data)
            except ContractError:
                document = message.data.decode()
            whole = document if isinstance(document, dict | list | str) else {"document": document}
            redacted = with_one_retry(lambda: self._inspector.redactor.document(whole))
            if not redacted.changed:
                return FeedbackMessage(
                    message, refused=DeadLetter(error.reason, str(error), body=message.data)
                )
            body = canonical_json(redacted.document)
            return FeedbackMessage(
                message, refused=DeadLetter(error.reason, str(error), body=body), secret=True
            )
        except Exception as failure:
            refused = DeadLetter(error.reason, str(error), body=b"")
            return FeedbackMessage(
                message, refused=refused, secret=True, redaction_error=type(failure).__name__
            )

    async def _sort(
        self, pieces: list[FeedbackMessage], *, count: bool = True
    ) -> tuple[list[FeedbackMessage], list[Row]]:
        """Returns all pieces, with conflicts turned into dead letters, and the rows to store."""
        ids = {piece.feedback.feedback_id for piece in pieces if piece.feedback is not None}
        stored = await reward_queries.feedback_by_id(self._ctx.warehouse, ids) if ids else {}
        known = {name: row["payload"] for name, row in stored.items()}
        sorted_pieces: list[FeedbackMessage] = []
        new: list[Row] = []
        for piece in pieces:
            if piece.feedback is not None:
                row = feedback_row(piece.feedback, piece.message, piece.arrived)
                name = row["feedback_id"]
                if name not in known:
                    known[name] = row["payload"]
                    new.append(row)
                elif known[name] != row["payload"]:
                    detail = "Other feedback with this id is stored; it was not replaced."
                    refused = DeadLetter("conflict", detail, body=row["payload"].encode())
                    piece = replace(piece, feedback=None, refused=refused)
                elif count and REDACTED not in piece.message.headers and piece.message.num_delivered == 1:
                    self._ctx.metrics.duplicates.labels(STREAM).inc()
            sorted_pieces.append(piece)
        return sorted_pieces, new

    async def _store(self, new: list[Row], *, again: bool = False) -> None:
        self._stored.register(new)  # before the insert: a first scoring now makes at worst one query too many
        token = new_id() if again else None  # the warehouse may remember a batch whose rows it has lost
        await self._ctx.warehouse.insert("feedback", new, token=token)
        crashpoint("feedback.stored")
        for row in new:
            self._ctx.metrics.feedback.labels(kind=row["kind"], signal=_known_signal(row["signal"])).inc()

    async def _clean(self, piece: FeedbackMessage) -> None:
        """Sends a refused piece to the dead letters. Replaces a message with a secret by its redacted form,
        then erases it, as the collector does."""
        if piece.refused is not None:
            reason, detail = piece.refused.reason, piece.refused.detail
            await store_dead_letter(
                self._ctx.bus, STREAM, piece.message, reason, detail, piece.refused.body or b""
            )
            self._ctx.metrics.dead_letters.labels(STREAM, reason).inc()
            crashpoint("feedback.dead_lettered")
        if not piece.secret:
            return
        if piece.redaction_error:
            await self._quarantine.hold(STREAM, piece.message, "redaction", piece.redaction_error)
            self._ctx.metrics.held.labels("redaction").inc()
        if piece.feedback is not None:
            body = encode(piece.feedback)
            await self._ctx.bus.publish(
                subjects.FEEDBACK,
                body,
                msg_id=f"{piece.feedback.feedback_id}.redacted.{sha256_hex(body)[:16]}",
                headers={REDACTED: self._inspector.redactor.policy_version, ARRIVED: utc_text(piece.arrived)},
                deadline=60.0,
            )
            crashpoint("feedback.republished")
        line = _line(piece, False)
        await recovery_queries.settle(self._ctx.warehouse, "feedback", [line], self._ctx.clock.now())
        await erase(self._ctx.bus, piece.message.sequence, STREAM)
        crashpoint("feedback.erased")


class FeedbackReader(FeedbackRows):
    def __init__(self, ctx: Context, stored: StoredFeedback, rescorer: Rescorer) -> None:
        super().__init__(ctx, stored)
        self._rescorer = rescorer
        self.stopping = False

    async def handle(self, messages: list[Message]) -> Sequence[Disposition]:
        """Stores, cleans the stream, scores again. Raises BusError, WarehouseError or ObjectError when one is
        unavailable; work done by then is recognised by its id."""
        if self.stopping:
            return [Retry(0.0)] * len(messages)
        pieces = await asyncio.to_thread(lambda: [self._read(message) for message in messages])
        pieces, new = await self._sort(pieces)
        await self._store(new)
        for piece in pieces:
            await self._clean(piece)
        tasks = await self._tasks([piece for piece in pieces if piece.feedback is not None])
        waiting: set[str] = set()
        tally = await self._rescorer.rescore(tasks, waiting=waiting)
        if tally:
            _log.debug("scored again after feedback", **tally)
        later = {
            id(piece.message)
            for piece in pieces
            if _name(piece) in waiting and piece.message.num_delivered < MAX_DELIVERIES
        }
        return [Retry(RETRY_SECONDS) if id(message) in later else Ack() for message in messages]

    async def _tasks(self, pieces: Sequence[FeedbackMessage]) -> list[Task]:
        """Returns the trajectories that each piece scores again, in the order of the stream."""
        sessions = {p.feedback.session_id for p in pieces if p.feedback and not p.feedback.trajectory_id}
        found: dict[str, Row] = {}
        if sessions:
            found = await reward_queries.trajectories_of_sessions(
                self._ctx.warehouse, sessions, SESSION_TRAJECTORIES
            )
        tasks: list[Task] = []
        for piece in pieces:
            feedback = piece.feedback
            assert feedback is not None
            cause = Cause("feedback", feedback.feedback_id, LATE_COMPONENTS)
            names = [feedback.trajectory_id] if feedback.trajectory_id else _of_session(found, piece)
            tasks += [Task(name, cause, piece.arrived, piece.arrived) for name in names]
        return tasks


def feedback_row(feedback: Feedback, message: Message, received_at: datetime) -> Row:
    """Builds the row of table ``feedback``."""
    return {
        "feedback_id": feedback.feedback_id,
        "trajectory_id": feedback.trajectory_id or "",
        "session_id": feedback.session_id,
        "turn_id": feedback.turn_id or 0,
        "kind": feedback.kind,
        "signal": feedback.signal,
        "value": feedback.value,
        "comment": feedback.comment or "",
        "source": feedback.source or "",
        "ts": feedback.timestamp,
        "received_at": received_at,
        "stream_seq": message.sequence,
        "payload": encode(feedback).decode(),
    }


def _of_session(found: dict[str, Row], piece: FeedbackMessage) -> list[str]:
    assert piece.feedback is not None
    row = feedback_row(piece.feedback, piece.message, piece.arrived)
    about = [item for item in found.values() if is_about(row, item)]
    return [
        item["trajectory_id"] for item in sorted(about, key=lambda r: (r["start_ts"], r["trajectory_id"]))
    ]


def _name(piece: FeedbackMessage) -> str:
    return piece.feedback.feedback_id if piece.feedback is not None else ""


def _line(piece: FeedbackMessage, is_missing: bool) -> Line:
    sequence = piece.message.sequence
    if piece.feedback is not None:
        return (sequence, piece.feedback.feedback_id, MISSING if is_missing else "duplicate")
    return (sequence, "", "drop" if piece.refused is None else piece.refused.reason)


_SIGNALS = frozenset(("thumbs_up", "thumbs_down", "rating", "correction", "abandoned", "retry", "accepted"))


def _known_signal(signal: str) -> str:
    """Limits the values of a metric label, which clients must not choose freely."""
    return signal if signal in _SIGNALS else "other"


def _redacted(clean: dict[str, object], raw: dict[str, object]) -> Feedback:
    """Validates redacted feedback with usable ids: a placeholder is no id. Raises ContractError where the id
    of the feedback or of its trajectory itself is a secret."""
    if clean.get("session_id") != raw["session_id"]:
        clean = {**clean, "session_id": f"redacted-{raw['feedback_id']}"}
    return validate(clean, Feedback)
