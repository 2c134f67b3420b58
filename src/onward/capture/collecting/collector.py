"""The collector role: every trajectory on the stream becomes one row without secrets.

Invariants: a message that contains a secret is first stored redacted, then republished redacted, and only
then erased from the stream. A message that cannot be redacted is encrypted in the quarantine and then erased.
A crash between any two steps repeats them, and each is idempotent. Raw bodies never reach a log, a metric or
a dead letter.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import nats.errors
import nats.js.errors

from onward.bus import Ack, Bus, Disposition, Message, Retry, consume, read_stored
from onward.bus.consumer import AWAY, POISON_AFTER
from onward.bus.deadletter import fits_dead_letter, store_dead_letter
from onward.capture import claim_check
from onward.capture.collecting import trajectory_row
from onward.capture.collecting.failed_share import FailedShare
from onward.capture.collecting.inspection import (
    ARRIVED,
    REDACTED,
    Fate,
    Inspector,
    Item,
    arrival_time,
    conflict_item,
    poisoned_item,
)
from onward.capture.collecting.late_bodies import LateBodies
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys, place_of
from onward.capture.make_redactor import inspector_of
from onward.clock import utc_text
from onward.context import Context
from onward.contracts import canonical_json, sha256_hex, subjects
from onward.contracts.buckets import OptOutCount
from onward.errors import BusError, ConflictError, ContractError, ObjectError
from onward.ids import new_id
from onward.roles import ready, together
from onward.telemetry import logs
from onward.telemetry.crashpoints import crashpoint
from onward.warehouse import Objects, queries, recovery_queries
from onward.warehouse.recovery_queries import MISSING, Line

STREAM = "RL_TRAJECTORIES"
DURABLE = "collector"
ACK_WAIT_SECONDS = 15.0
"""After this long without a sign of life the collector's messages go to another collector."""
_RECENT = 1000
STUCK_SECONDS = 60.0
"""Pause before the retry of a message that can be neither stored nor held."""
CLEAN_SECONDS = 6 * 3600.0
"""Period of deleting bodies that are older than the stream keeps their messages."""

_log = logs.get("collector")


async def run(ctx: Context) -> None:
    """Collects until cancelled; the current batch is finished first."""
    collecting = consume(
        ctx.bus,
        stream=STREAM,
        durable=DURABLE,
        handler=Collector(ctx).handle,
        batch=200,
        clock=ctx.clock,
        ack_wait=ACK_WAIT_SECONDS,
    )
    with ready(ctx, DURABLE):
        await together(collecting, clean_claims(ctx))


async def clean_claims(ctx: Context) -> None:
    """Deletes old bodies of the claim check, four times a day, until cancelled."""
    while True:
        try:
            gone = await claim_check.delete_old(ctx.objects, ctx.clock.now())
            if gone:
                _log.info("old bodies deleted", count=gone)
        except ObjectError as error:
            _log.warning("old bodies stay for now", reason=str(error))
        await ctx.clock.sleep(CLEAN_SECONDS)


class Collector:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._inspector: Inspector = inspector_of(ctx.settings)
        self._quarantine = Quarantine(ctx.objects, QuarantineKeys.from_settings(ctx.settings), ctx.clock)
        self._late = LateBodies(ctx.clock)
        self._failed = FailedShare(ctx.alerts)

    async def handle(self, messages: list[Message]) -> Sequence[Disposition]:
        """Stores a batch. Raises BusError, WarehouseError or ObjectError if one of them is unavailable: the
        batch is then repeated. A message that fails in any other way, also alone in its batch, is put into
        the quarantine: the bus would make it a dead letter without its body and leave the raw message on the
        stream."""
        try:
            claimed = [message for message in messages if claim_check.HEADER in message.headers]
            direct = [message for message in messages if claim_check.HEADER not in message.headers]
            if direct:
                await self._keep(direct)
            answers = await self._keep_claimed(claimed) if claimed else {}
            return [answers.get(message.sequence, Ack()) for message in messages]
        except AWAY:
            raise
        except Exception as error:
            if len(messages) > 1 or messages[0].num_delivered < POISON_AFTER:
                raise
            return [await self._give_up(messages[0], error)]

    async def _keep_claimed(self, messages: list[Message]) -> dict[int, Disposition]:
        """Stores messages with a claim, one at a time, as a body may be as large as 64 MiB. Returns an answer
        for each that is to come again, by its sequence."""
        objects, claims = self._ctx.objects, dict[int, claim_check.Claim]()
        broken: list[tuple[Message, ContractError]] = []
        late: list[tuple[Message, ContractError]] = []
        for message in messages:
            try:
                claims[message.sequence] = claim_check.parse(message.headers[claim_check.HEADER])
            except ContractError as error:
                broken.append((message, error))
        stored = await objects.find_existing(claim.uri for claim in claims.values())
        for message in messages:
            claim = claims.get(message.sequence)
            if claim is None:
                continue
            if claim.uri not in stored:
                late.append((message, claim_check.missing(objects, claim)))
                continue
            try:
                whole = await claim_check.resolve(objects, message)
            except claim_check.ClaimBrokenError as error:
                late.append((message, error))
            else:
                await self._keep([whole], stand_in=message.data)
        answers: dict[int, Disposition] = {}
        for message, error in await self._unsettled(late):
            if self._late.may_wait(message):
                answers[message.sequence] = Retry(float(2 ** (message.num_delivered - 1)))
            else:
                broken.append((message, error))
        if broken:
            inspect = self._inspector.inspect_without_body
            await self._settle(await asyncio.to_thread(lambda: [inspect(*each) for each in broken]))
        return answers

    async def _keep(self, messages: list[Message], stand_in: bytes | None = None) -> None:
        """Takes messages the whole way: judges them, stores the new ones, and settles all of them."""
        now, inspector = self._ctx.clock.now(), self._inspector
        items = await asyncio.to_thread(
            lambda: [inspector.inspect(message, now, stand_in) for message in messages]
        )
        items, new = await self._sort(items)
        if new:
            self._observe(new, await self._store(new))
        await self._settle(items)

    async def examine(self, messages: list[Message], *, store: bool) -> list[Line]:
        """Judges messages that were settled before, and says what became of each: ``MISSING`` if its row
        should exist and does not. With ``store`` such a row is stored again, by the same steps as the first
        time; a message that was refused then gets no second dead letter. Raises as ``handle`` does."""
        direct = [message for message in messages if claim_check.HEADER not in message.headers]
        lines = await self._examine(direct, store)
        for message in messages:
            if claim_check.HEADER in message.headers:
                try:
                    whole = await claim_check.resolve(self._ctx.objects, message)
                except ContractError as error:
                    lines.append((message.sequence, "", error.reason))
                else:
                    lines += await self._examine([whole], store, stand_in=message.data)
        return lines

    async def _examine(
        self, messages: list[Message], store: bool, stand_in: bytes | None = None
    ) -> list[Line]:
        now, inspector = self._ctx.clock.now(), self._inspector
        items = await asyncio.to_thread(
            lambda: [inspector.inspect(message, now, stand_in) for message in messages]
        )
        items, new = await self._sort(items, count=False)
        if store:
            if new:
                await self._store(new, again=True)
            await self._settle([item for item in items if item.must_erase])
        missing = {item.message.sequence for item in new}
        return [_line(item, item.message.sequence in missing) for item in items]

    async def _sort(self, items: list[Item], *, count: bool = True) -> tuple[list[Item], list[Item]]:
        """Returns all items, with conflicts turned into dead letters, and the items to be stored."""
        ids = {item.document["trajectory_id"] for item in items if item.document is not None}
        known = await queries.stored_identities(self._ctx.warehouse, ids) if ids else {}
        sorted_items: list[Item] = []
        new: dict[str, Item] = {}
        for item in items:
            if item.document is not None:
                trajectory_id = item.document["trajectory_id"]
                if trajectory_id not in known:
                    known[trajectory_id] = item.identity
                    new[trajectory_id] = item
                elif not trajectory_row.same(known[trajectory_id], item.identity):
                    earlier = await self._earlier(trajectory_id, new)
                    if trajectory_row.completes(item.document, earlier):
                        known[trajectory_id] = item.identity
                        new[trajectory_id] = item
                    elif not trajectory_row.completes(earlier, item.document):
                        item = conflict_item(item)
                elif count and REDACTED not in item.message.headers:
                    self._ctx.metrics.duplicates.labels(STREAM).inc()
            sorted_items.append(item)
        return sorted_items, list(new.values())

    async def _earlier(self, trajectory_id: str, new: Mapping[str, Item]) -> dict[str, Any]:
        """Returns the document that an earlier message brought under this id; empty if it is gone."""
        if trajectory_id in new:
            return new[trajectory_id].document or {}
        row = await queries.trajectory(self._ctx.warehouse, trajectory_id)
        return json.loads(row["payload"]) if row is not None else {}

    async def _store(self, new: list[Item], *, again: bool = False) -> list[dict[str, Any]]:
        """``again``: the warehouse may remember a batch whose rows it has lost."""
        now = self._ctx.clock.now()
        rows = []
        for item in new:
            assert item.document is not None
            document, sequence = trajectory_row.enrich(item.document), item.message.sequence
            rows.append(
                trajectory_row.row(document, identity=item.identity, stream_seq=sequence, ingested_at=now)
            )
        crashpoint("collector.before_store")
        # The token is a hash of the content: a batch with other rows must never count as a repeat.
        token = sha256_hex("\n".join(f"{r['trajectory_id']} {r['payload_sha256']}" for r in rows).encode())
        await self._ctx.warehouse.insert("trajectories", rows, token=new_id() if again else token)
        crashpoint("collector.stored")
        return rows

    def _observe(self, new: list[Item], rows: list[dict[str, Any]]) -> None:
        self._ctx.recent_rows.put(rows)
        metrics, now = self._ctx.metrics, self._ctx.clock.now()
        for item, row in zip(new, rows, strict=True):
            profile = (item.document or {}).get("subordinate_profile")
            metrics.trajectories_collected.labels(profile or "main", row["domain"]).inc()
            metrics.trajectory_length.observe(row["n_turns"])
            metrics.collector_seconds.observe(max(0.0, (now - item.message.timestamp).total_seconds()))
            for kind, count in item.counts.items():
                metrics.redactions.labels(kind).inc(count)

    async def _settle(self, items: list[Item]) -> None:
        """Holds, dead-letters or republishes items after their rows, then erases what must not stay raw."""
        bus, objects, metrics = self._ctx.bus, self._ctx.objects, self._ctx.metrics
        dropped = [item.message.sequence for item in items if item.fate is Fate.DROP]
        if dropped:
            count = await count_opted_out(bus, dropped)
            metrics.opted_out.inc(count)
            _log.info("trajectories dropped by opt-out", count=count)
            crashpoint("collector.counted")
        erased = [_line(item, False) for item in items if item.must_erase]
        if erased:
            await recovery_queries.settle(self._ctx.warehouse, "trajectories", erased, self._ctx.clock.now())
        for item in items:
            clean = None
            if item.fate is Fate.HOLD or self._is_too_large_for_dead_letter(item):
                await self._hold(item)
            elif item.fate is Fate.DEAD_LETTER:
                body = item.body if item.stand_in is None else item.stand_in
                await store_dead_letter(bus, STREAM, item.message, item.reason, item.detail, body)
                metrics.dead_letters.labels(STREAM, item.reason).inc()
                crashpoint("collector.dead_lettered")
            elif item.secret:
                clean = await republish(bus, item, objects, self._ctx.clock.now())
                crashpoint("collector.republished")
            if item.must_erase:
                await claim_check.delete_body(objects, item.message.headers, keep=clean)
                await erase(bus, item.message.sequence)
                crashpoint("collector.erased")
        await self._failed.follow(item.fate in (Fate.HOLD, Fate.DEAD_LETTER) for item in items)
        held = [item for item in items if item.fate is Fate.HOLD]
        if held:
            await self._ctx.alerts.raise_(
                "quarantine",
                f"{len(held)} message(s) could not be redacted and are held encrypted: "
                "see 'onward quarantine list'.",
                reasons=sorted({item.reason for item in held}),
            )

    def _is_too_large_for_dead_letter(self, item: Item) -> bool:
        """Reports a large body with a secret: a dead letter would leave it where it is about to be erased."""
        if item.fate is not Fate.DEAD_LETTER or not item.secret:
            return False
        return item.stand_in is not None or not fits_dead_letter(self._ctx.bus, item.body)

    async def _hold(self, item: Item) -> None:
        crashpoint("collector.before_hold")
        held = await self._quarantine.hold(STREAM, item.message, item.reason, item.detail, item.trajectory_id)
        crashpoint("collector.held")
        self._ctx.metrics.held.labels(item.reason).inc()
        _log.warning("held in quarantine", held=held.held_id, reason=item.reason, error=item.detail)

    async def _unsettled(
        self, late: list[tuple[Message, ContractError]]
    ) -> list[tuple[Message, ContractError]]:
        """Erases claims that repeat a step before a crash, and returns the others. A body is deleted only
        with a secret, after its clean form was stored or the whole was held."""
        places = {
            message.sequence: (
                claim_check.parse(message.headers[claim_check.HEADER]).trajectory_id,
                place_of(STREAM, message),
            )
            for message, error in late
            if error.reason == "claim_missing"
        }
        if not places:
            return late
        stored = await queries.stored_identities(self._ctx.warehouse, {name for name, _ in places.values()})
        held = await self._ctx.objects.find_existing(place for _, place in places.values())
        left: list[tuple[Message, ContractError]] = []
        for message, error in late:
            name, place = places.get(message.sequence, ("", ""))
            if name in stored or place in held:
                await erase(self._ctx.bus, message.sequence)
            else:
                left.append((message, error))
        return left

    async def _give_up(self, message: Message, error: Exception) -> Disposition:
        """Holds the whole message; if even that fails, it stays unacknowledged and is redelivered forever."""
        try:
            if claim_check.HEADER in message.headers:
                try:
                    message = await claim_check.resolve(self._ctx.objects, message)
                except ContractError:
                    pass  # the body is not available
            await self._settle([poisoned_item(message, error)])
        except AWAY:
            raise
        except Exception as failure:
            _log.error(
                "a message can be neither stored nor held",
                sequence=message.sequence,
                error=type(error).__name__,
                holding=type(failure).__name__,
            )
            return Retry(STUCK_SECONDS)
        return Ack()


def _line(item: Item, is_missing: bool) -> Line:
    """Returns the sequence of a message, the id of its row (or empty), and what became of it."""
    if item.fate is Fate.STORE and item.document is not None:
        name = item.document["trajectory_id"]
        return (item.message.sequence, name, MISSING if is_missing else "duplicate")
    return (item.message.sequence, "", item.reason if item.fate is Fate.DEAD_LETTER else item.fate.value)


async def count_opted_out(bus: Bus, sequences: Sequence[int | str]) -> int:
    """Adds messages by name to the count of ``onward status``, each once; returns the number of new ones."""
    bucket = bus.bucket(OptOutCount.BUCKET)
    while True:
        stored = await read_stored(bucket, OptOutCount)
        before = stored.document or OptOutCount()
        new = [sequence for sequence in sequences if sequence not in before.recent]
        if not new:
            return 0
        counted = before.model_copy(
            update={"count": before.count + len(new), "recent": [*before.recent, *new][-_RECENT:]}
        )
        try:
            await bucket.update(OptOutCount.KEY, counted.dump(), stored.revision)
            return len(new)
        except ConflictError:
            continue  # another collector counted at the same time


async def republish(bus: Bus, item: Item, objects: Objects, now: datetime) -> claim_check.Claim | None:
    """Publishes the redacted form under a message id of its own: the dedupe window refuses the old one. A
    large one goes by claim check, which is returned. Raises BusError, ObjectError."""
    assert item.document is not None
    return await claim_check.publish(
        bus,
        objects,
        now,
        canonical_json(item.document),
        subject=subjects.TRAJECTORY,
        msg_id=f"{item.document['trajectory_id']}.redacted.{item.identity[-16:]}",
        headers={REDACTED: item.identity.partition(":")[0], ARRIVED: utc_text(arrival_time(item.message))},
    )


async def erase(bus: Bus, sequence: int, stream: str = STREAM) -> None:
    """Overwrites the raw message on the server's disk (secure delete). Erasing twice is harmless. Raises
    BusError if the server is unavailable or refuses."""
    try:
        await bus.js.delete_msg(stream, sequence)
    except nats.js.errors.NotFoundError:
        return
    except nats.js.errors.APIError as error:
        if error.err_code != _NO_MESSAGE:
            raise BusError(
                f"NATS refused to erase message {sequence} of {stream} ({error.err_code})."
            ) from None
    except nats.errors.Error as error:
        raise BusError(
            f"NATS did not erase message {sequence} of {stream} ({type(error).__name__})."
        ) from None
    _log.info("a message that held secrets was erased", sequence=sequence)


_NO_MESSAGE = 10043
