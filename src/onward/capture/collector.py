"""The collector role: every trajectory on the stream becomes one row without secrets.

Know before changing: what carries a secret is first stored redacted, then published again redacted, and only
then erased from the stream; a crash between any two steps repeats them, and each is idempotent. Raw
bodies never reach a log, a metric or a dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import nats.errors
import nats.js.errors

from onward.bus import Ack, Bus, Disposition, Message, consume
from onward.bus.deadletter import bury
from onward.capture import enrich, turns
from onward.capture.redaction import POLICY_VERSION, redact, redact_trajectory
from onward.context import Context
from onward.contracts import (
    Trajectory,
    canonical_json,
    decode,
    decode_document,
    sha256_hex,
    subjects,
    to_document,
    validate,
)
from onward.errors import BusError, ContractError, RedactionError
from onward.telemetry import logs
from onward.telemetry.crashpoints import crashpoint
from onward.warehouse import queries

STREAM = "RL_TRAJECTORIES"
DURABLE = "collector"
REDACTED = "Onward-Redacted"
"""Header of a message that the collector published again; its value is the policy version."""
ACK_WAIT_SECONDS = 15.0
"""After this long without a sign of life another collector gets what this one held."""
FUTURE = timedelta(hours=24)
PAST = timedelta(days=30)
"""Accepted range around now. A late outbox is legitimate; the retention period is the limit."""

_log = logs.get("collector")


@dataclass(frozen=True)
class Item:
    """One message, judged. Without ``document`` it is a dead letter with ``reason`` and ``body``."""

    message: Message
    document: dict[str, Any] | None = None
    """Redacted, not yet enriched."""
    identity: str = ""
    secret: bool = False
    """The raw message holds something that was redacted, so it must be erased."""
    counts: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    detail: str = ""
    body: bytes = b""


async def run(ctx: Context) -> None:
    """Collect until cancelled; the batch in hand is finished first."""
    collector = Collector(ctx)
    ctx.ready[DURABLE] = True
    try:
        await consume(
            ctx.bus,
            stream=STREAM,
            durable=DURABLE,
            handler=collector.handle,
            batch=200,
            clock=ctx.clock,
            ack_wait=ACK_WAIT_SECONDS,
        )
    finally:
        ctx.ready[DURABLE] = False


class Collector:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def handle(self, messages: list[Message]) -> Sequence[Disposition]:
        """Store a batch. Raises BusError or WarehouseError when one is away: the batch is then repeated."""
        now = self._ctx.clock.now()
        items = await asyncio.to_thread(lambda: [judge(message, now) for message in messages])
        items, new = await self._sort(items)
        await self._store(new)
        for item in items:
            await self._settle(item)
        return [Ack() for _ in messages]

    async def _sort(self, items: list[Item]) -> tuple[list[Item], list[Item]]:
        """All items, with conflicts turned into dead letters, and those that are to be stored."""
        ids = {item.document["trajectory_id"] for item in items if item.document is not None}
        known = await queries.stored(self._ctx.warehouse, ids) if ids else {}
        sorted_items: list[Item] = []
        new: list[Item] = []
        for item in items:
            if item.document is not None:
                trajectory_id = item.document["trajectory_id"]
                if trajectory_id not in known:
                    known[trajectory_id] = item.identity
                    new.append(item)
                elif not enrich.same(known[trajectory_id], item.identity):
                    item = _conflict(item)
                elif REDACTED not in item.message.headers:
                    self._ctx.metrics.duplicates.labels(STREAM).inc()
            sorted_items.append(item)
        return sorted_items, new

    async def _store(self, new: list[Item]) -> None:
        if not new:
            return
        now = self._ctx.clock.now()
        rows = []
        for item in new:
            assert item.document is not None
            enriched = enrich.enrich(item.document)
            rows.append(
                enrich.row(
                    enriched, identity=item.identity, stream_seq=item.message.sequence, ingested_at=now
                )
            )
        crashpoint("collector.before_store")
        # The token names the content: a batch with other rows must never pass for a repeat.
        token = sha256_hex("\n".join(f"{r['trajectory_id']} {r['payload_sha256']}" for r in rows).encode())
        await self._ctx.warehouse.insert("trajectories", rows, token=token)
        crashpoint("collector.stored")
        self._count(new, rows)

    def _count(self, new: list[Item], rows: list[dict[str, Any]]) -> None:
        metrics, now = self._ctx.metrics, self._ctx.clock.now()
        for item, row in zip(new, rows, strict=True):
            profile = (item.document or {}).get("subordinate_profile")
            metrics.trajectories_collected.labels(profile or "main", row["domain"]).inc()
            metrics.trajectory_length.observe(row["n_turns"])
            metrics.collector_seconds.observe(max(0.0, (now - item.message.timestamp).total_seconds()))
            for kind, count in item.counts.items():
                metrics.redactions.labels(kind).inc(count)

    async def _settle(self, item: Item) -> None:
        """What remains after the row: bury a dead letter; publish again and erase what held a secret."""
        if item.document is None:
            await bury(
                self._ctx.bus, STREAM, _clean_headers(item.message), item.reason, item.detail, item.body
            )
            self._ctx.metrics.dead_letters.labels(STREAM, item.reason).inc()
            crashpoint("collector.buried")
        elif item.secret:
            await republish(self._ctx.bus, item)
            crashpoint("collector.republished")
        if item.secret:
            await erase(self._ctx.bus, item.message.sequence)
            crashpoint("collector.erased")


def judge(message: Message, now: datetime) -> Item:
    """Decode, check and redact one message. Never raises for what a publisher sends."""
    try:
        trajectory = decode(message.data, Trajectory)
        document = to_document(trajectory)
    except ContractError as error:
        return _unreadable(message, error)
    try:
        redacted = redact_trajectory(document)
        clean = to_document(validate(redacted.document, Trajectory)) if redacted.changed else document
    except (RedactionError, ContractError) as error:
        return Item(message, reason="redaction", detail=str(error))
    try:
        _check_limits(trajectory, clean, now)
    except ContractError as error:
        return Item(
            message,
            secret=redacted.changed,
            reason=error.reason,
            detail=str(error),
            body=canonical_json(clean),
        )
    return Item(message, clean, enrich.identity(clean), redacted.changed, redacted.counts)


def _unreadable(message: Message, error: ContractError) -> Item:
    """A dead letter that keeps what can be kept: the redacted document, else the redacted text."""
    try:
        try:
            document = decode_document(message.data)
        except ContractError:
            text = message.data.decode("utf-8", "replace")
            redacted = redact(text)
            # Token ids in text that cannot be parsed cannot be told from other numbers.
            body = b"" if redacted.changed or '"token_ids"' in text else message.data
        else:
            whole = document if isinstance(document, dict) else {"document": document}
            redacted = redact_trajectory(whole)
            body = canonical_json(redacted.document) if redacted.changed else message.data
    except (RedactionError, ContractError) as failure:
        detail = f"{error} It could not be redacted either ({failure})"
        return Item(message, reason=error.reason, detail=detail)
    return Item(message, secret=redacted.changed, reason=error.reason, detail=str(error), body=body)


def _check_limits(trajectory: Trajectory, clean: dict[str, Any], now: datetime) -> None:
    """Inbound limits beyond the contract. Raises ContractError."""
    if len(trajectory.turns) > turns.MAX_TURNS:
        raise ContractError("too_many_turns", f"The trajectory has more than {turns.MAX_TURNS} turns.")
    if turns.has_long_text(clean):
        raise ContractError("string_too_long", f"One text is longer than {turns.MAX_STRING} bytes.")
    if max(trajectory.start_timestamp, trajectory.end_timestamp) > now + FUTURE:
        raise ContractError("future", "The trajectory ends more than 24 hours in the future.")
    if trajectory.start_timestamp < now - PAST:
        raise ContractError("expired", f"The trajectory began more than {PAST.days} days ago.")


def _conflict(item: Item) -> Item:
    return replace(
        item,
        document=None,
        reason="conflict",
        detail="Another trajectory with this id is stored; it was not replaced.",
        body=canonical_json(item.document),
    )


def _clean_headers(message: Message) -> Message:
    """Headers come from the publisher too. Ids of the server's own stay as they are."""
    try:
        headers = redact(message.headers).document
    except RedactionError:
        headers = {}
    return replace(message, headers=headers)


async def republish(bus: Bus, item: Item) -> None:
    """Publish the redacted form under a message id of its own: the dedupe window refuses the old one."""
    assert item.document is not None
    data = canonical_json(item.document)
    msg_id = f"{item.document['trajectory_id']}.redacted.{item.identity[-16:]}"
    await bus.publish(subjects.TRAJECTORY, data, msg_id=msg_id, headers={REDACTED: POLICY_VERSION})


async def erase(bus: Bus, sequence: int) -> None:
    """Overwrite the raw message on the server's disk (secure delete). Erasing twice is harmless.

    Raises BusError when the server is away or refuses.
    """
    try:
        await bus.js.delete_msg(STREAM, sequence)
    except nats.js.errors.NotFoundError:
        return
    except nats.js.errors.APIError as error:
        if error.err_code != _NO_MESSAGE:
            raise BusError(
                f"NATS refused to erase message {sequence} of {STREAM} ({error.err_code})."
            ) from None
    except nats.errors.Error as error:
        raise BusError(
            f"NATS did not erase message {sequence} of {STREAM} ({type(error).__name__})."
        ) from None
    _log.info("a message that held secrets was erased", sequence=sequence)


_NO_MESSAGE = 10043
