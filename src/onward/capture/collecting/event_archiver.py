"""The archiver role: copies training status, deployments and session outcomes from their streams into tables.

Streams expire (RL_TRAINING after 90 days); reports and queries read the tables later. Nothing is decided from
these tables, so an unreadable message becomes a dead letter and the rest goes on. A row is named by the
content of its event, so a redelivered message stays one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from onward.bus import Ack, DeadLetter, Disposition, Message, consume
from onward.capture.make_redactor import redactor_of
from onward.capture.retrying import reason_of
from onward.context import Context
from onward.contracts import (
    ModelDeployed,
    SessionOutcome,
    TrainingStatus,
    canonical_json,
    decode,
    sha256_hex,
    subjects,
    to_document,
)
from onward.errors import ContractError, RedactionError
from onward.ids import new_id
from onward.redaction import Redactor
from onward.roles import ready, together
from onward.telemetry.crashpoints import crashpoint
from onward.warehouse import recovery_queries
from onward.warehouse.recovery_queries import MISSING, Line

ROLE = "archiver"
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
"""Range of a time column: for one row outside of it the warehouse would refuse a whole batch."""
UINT32 = 2**32 - 1

Row = dict[str, Any]


@dataclass(frozen=True)
class Copy:
    """Copies ``subject`` of ``stream`` into ``table``; ``row`` raises ContractError, RedactionError."""

    stream: str
    subject: str
    table: str
    row: Callable[[bytes, Redactor], Row]
    key: Callable[[Row], str]
    """Returns the id by which the warehouse distinguishes rows."""

    @property
    def durable(self) -> str:
        return f"{ROLE}-{self.table}"


async def run(ctx: Context) -> None:
    """Copies until cancelled; the current batches are finished first."""
    copying = [
        consume(
            ctx.bus,
            stream=copy.stream,
            durable=copy.durable,
            subject=copy.subject,
            handler=Archiver(ctx, copy).handle,
            clock=ctx.clock,
        )
        for copy in COPIES
    ]
    with ready(ctx, ROLE):
        await together(*copying)


class Archiver:
    """Stores the batches of one stream."""

    def __init__(self, ctx: Context, copy: Copy) -> None:
        self._ctx = ctx
        self._copy = copy
        self._redactor = redactor_of(ctx.settings)

    async def handle(self, messages: list[Message]) -> list[Disposition]:
        """Stores a batch. Raises WarehouseError if the warehouse is unavailable."""
        rows: list[Row] = []
        done: list[Disposition] = []
        for message in messages:
            try:
                rows.append({**self._copy.row(message.data, self._redactor), "stream_seq": message.sequence})
                done.append(Ack())
            except (ContractError, RedactionError) as error:
                reason = reason_of(error)
                self._ctx.metrics.dead_letters.labels(self._copy.stream, reason).inc()
                done.append(DeadLetter(reason, str(error), body=_clean(message.data, self._redactor)))
        crashpoint("archive.before_store")
        await self._ctx.warehouse.insert(self._copy.table, rows, token=_token(rows))
        crashpoint("archive.stored")
        return done

    async def examine(self, messages: list[Message], *, store: bool) -> list[Line]:
        """Judges messages that were settled before, as ``Collector.examine`` does."""
        lines: list[Line] = []
        rows: dict[str, Row] = {}
        for message in messages:
            if message.subject != self._copy.subject:
                lines.append((message.sequence, "", "another subject"))
                continue
            try:
                row = {**self._copy.row(message.data, self._redactor), "stream_seq": message.sequence}
            except (ContractError, RedactionError) as error:
                lines.append((message.sequence, "", reason_of(error)))
                continue
            key = self._copy.key(row)
            rows.setdefault(key, row)
            lines.append((message.sequence, key, "duplicate"))
        there = await recovery_queries.present(self._ctx.warehouse, self._copy.table, rows)
        new = {key: row for key, row in rows.items() if key not in there}
        if store:
            await self._ctx.warehouse.insert(self._copy.table, list(new.values()), token=new_id())
        missing = {row["stream_seq"] for row in new.values()}
        return [(n, key, MISSING if n in missing else reason) for n, key, reason in lines]


def status_row(data: bytes, redactor: Redactor) -> Row:
    """Returns the row of table ``status``."""
    event = decode(data, TrainingStatus)
    progress = event.progress
    return {
        "training_job_id": event.training_job_id,
        "ts": _time(event.timestamp),
        "status": event.status,
        "current_epoch": min((progress and progress.current_epoch) or 0, UINT32),
        "current_step": min((progress and progress.current_step) or 0, UINT32),
        "percent": float((progress and progress.percent_complete) or 0.0),
        "payload": _payload(to_document(event), redactor),
    }


def deployment_row(data: bytes, redactor: Redactor) -> Row:
    """Returns the row of table ``deployments``. ``traffic`` is a percentage; an event without one that takes
    effect at once means all traffic."""
    event = decode(data, ModelDeployed)
    config, metadata = event.deployment_config, event.metadata
    traffic = config.traffic_percentage
    if traffic is None:
        traffic = 100.0 if config.rollout_strategy == "immediate" else 0.0
    return {
        "deployment_id": event.deployment_id,
        "model_id": event.model_info.model_id,
        "ts": _time(event.timestamp),
        "event": (metadata and metadata.event) or "",
        "release_id": (metadata and metadata.release_id) or "",
        "traffic": float(traffic),
        "payload": _payload(to_document(event), redactor),
    }


def outcome_row(data: bytes, _: Redactor) -> Row:
    """Returns the row of table ``outcomes``; empty text if the event names no release or model."""
    event = decode(data, SessionOutcome)
    return {
        "outcome_id": event.outcome_id,
        "session_id": event.session_id,
        "release_id": event.release_id or "",
        "arm": event.arm,
        "weight": float(event.weight),
        "assigned_at": _time(event.assigned_at),
        "ts": _time(event.timestamp),
        "kind": event.kind,
        "value": float(event.value),
        "model_id": event.model_id or "",
    }


def _status_key(row: Row) -> str:
    milliseconds = (row["ts"] - EARLIEST) // timedelta(milliseconds=1)
    parts = (row["training_job_id"], milliseconds, row["status"], row["current_epoch"], row["current_step"])
    return " ".join(map(str, parts))


COPIES = (
    Copy("RL_TRAINING", subjects.TRAINING_STATUS, "status", status_row, _status_key),
    Copy("RL_DEPLOY", subjects.MODEL_DEPLOYED, "deployments", deployment_row, itemgetter("deployment_id")),
    Copy("RL_OUTCOMES", subjects.OUTCOME, "outcomes", outcome_row, itemgetter("outcome_id")),
)


def _payload(document: dict[str, Any], redactor: Redactor) -> str:
    """Returns the redacted document: error messages and notes may contain any text."""
    return canonical_json(redactor.document(document).document).decode()


def _time(value: datetime) -> datetime:
    if not EARLIEST <= value < LATEST:
        raise ContractError("timestamp", f"The event is dated {value.year}: expected 1970 to 2199.")
    return value


def _clean(data: bytes, redactor: Redactor) -> bytes:
    """Returns the body of a dead letter: redacted text, or nothing if redaction fails."""
    try:
        return str(redactor.document(data.decode("utf-8", "replace")).document).encode()
    except RedactionError:
        return b""


def _token(rows: list[Row]) -> str:
    """Returns a hash of the content, so that an exact repeat of a batch costs nothing."""
    return sha256_hex(canonical_json([{**row, **_texts(row)} for row in rows]))


def _texts(row: Row) -> dict[str, str]:
    return {name: value.isoformat() for name, value in row.items() if isinstance(value, datetime)}
