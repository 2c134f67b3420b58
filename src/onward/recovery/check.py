"""One pass over the warehouse: which rows should exist and do not, and stores them again from the streams.

A message that its consumer has acknowledged has a row, or a line in ``settled`` that says why not. The pass
reads the messages of all other sequences once, by the steps of their consumer. Rewards have no sequence of
their own stream, so their stream is read as a whole when one is missing.

Invariants: a row that a person or a rule kept out stays out (opt-outs and refusals are judged again, and dead
letters are skipped). Everything is idempotent by id, so a pass may end anywhere and begin again. Every insert
has a token of its own, because the warehouse refuses a block that it remembers, also when its rows are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import nats.errors
import nats.js.errors

from onward.bus import Message, read_document
from onward.bus.deadletter import dead_letters
from onward.bus.pull import PullBroken, Puller
from onward.capture.collecting import collector
from onward.capture.collecting.event_archiver import COPIES, Archiver
from onward.context import Context
from onward.contracts import MAX_BYTES, Reward, decode, subjects
from onward.contracts.buckets import CheckedUntil, RewarderState
from onward.errors import BusError, ContractError
from onward.ids import new_id
from onward.recovery.inventory import Inventory, Lost
from onward.reward.role import feedback
from onward.reward.role.feedback import FeedbackRows
from onward.reward.scoring import rows
from onward.reward.scoring.score import reward_id
from onward.reward.stored_feedback import StoredFeedback
from onward.telemetry import logs
from onward.warehouse import recovery_queries
from onward.warehouse.recovery_queries import BESIDE, LOST, MISSING, SHAPES, Line

REWARDS = "RL_REWARDS"
PORTION = 200
"""Messages that are read and judged at once."""
MOST_DEAD_LETTERS = 100_000
_CONCURRENT_READS = 50
_log = logs.get("recovery")

Progress = Callable[[str, int, int], Awaitable[None]]
"""Gets the table, the messages read and the messages to read."""


@dataclass(frozen=True)
class Source:
    """A table and the messages that its rows are made of."""

    table: str
    stream: str
    durable: str
    examine: Callable[..., Awaitable[list[Line]]]


@dataclass
class TableResult:
    """Findings of a pass in one table."""

    missing: int = 0
    """Rows that did not exist and that a stream holds."""
    restored: int = 0
    lost_rows: int = 0
    """Rows that existed and that no stream holds any more; all that are listed, also of earlier passes."""
    lost_messages: int = 0
    """Messages that were lost before they made a row."""
    damaged_parts: list[str] = field(default_factory=list)
    """Parts with damaged files that this pass found."""


def sources(ctx: Context) -> list[Source]:
    votes = FeedbackRows(ctx, StoredFeedback(ctx.warehouse))
    return [
        Source("trajectories", collector.STREAM, collector.DURABLE, collector.Collector(ctx).examine),
        Source("feedback", feedback.STREAM, feedback.DURABLE, votes.examine),
        *(Source(copy.table, copy.stream, copy.durable, Archiver(ctx, copy).examine) for copy in COPIES),
    ]


class Check:
    """One pass. Without ``store`` it only counts."""

    def __init__(self, ctx: Context, *, store: bool, progress: Progress) -> None:
        self._ctx, self._store, self._progress = ctx, store, progress
        self.results = {table: TableResult() for table in SHAPES}
        self.without_reward = 0
        """Trajectories that are neither rewarded nor unscored, and whose reward no stream holds."""
        self._newly_lost = 0

    async def run(self, *, read_files: bool, read_rewards: bool) -> None:
        """``read_files`` compares each file of the warehouse with its checksum; ``read_rewards`` reads the
        stream of rewards in any case. Raises BusError, WarehouseError, ObjectError."""
        if read_files or self._ctx.warehouse.found_damage:
            await self._set_damaged_parts_aside()
        for source in sources(self._ctx):
            await self._check_source(source)
        await self._check_rewards(read_rewards or self.results["trajectories"].missing > 0)
        for table in SHAPES:
            await self._compare(table)
        await self._tell()

    async def _set_damaged_parts_aside(self) -> None:
        warehouse = self._ctx.warehouse
        for table in (*SHAPES, *BESIDE):
            parts = await recovery_queries.damaged_parts(warehouse, table)
            if table in self.results:
                self.results[table].damaged_parts = parts
            for part in parts if self._store else ():
                await recovery_queries.detach(warehouse, table, part)
                _log.error("a damaged part of the warehouse is set aside", table=table, part=part)
        if self._store:
            warehouse.found_damage = False

    async def _check_source(self, source: Source) -> None:
        bus = self._ctx.bus
        try:
            stream = await bus.js.stream_info(source.stream)
            consumer = await bus.js.consumer_info(source.stream, source.durable)
        except nats.js.errors.NotFoundError:
            return  # nothing was read yet: its consumer will store everything
        except nats.errors.Error as error:
            raise BusError(f"Stream {source.stream} cannot be read ({type(error).__name__}).") from None
        floor = min(consumer.ack_floor.stream_seq if consumer.ack_floor else 0, stream.state.last_seq)
        created, mark = str(stream.created), await read_document(bus, CheckedUntil, source.table)
        until = mark.sequence if mark and mark.stream_created == created else None
        first = max(1, stream.state.first_seq)
        if until is not None:
            first = min(first, until + 1)
        if floor < first or stream.created is None:
            return
        gaps = await recovery_queries.gaps(self._ctx.warehouse, source.table, first, floor, stream.created)
        await self._fill(source, gaps, until)
        if self._store:
            document = CheckedUntil(stream_created=created, sequence=floor)
            await bus.bucket(CheckedUntil.BUCKET).put(CheckedUntil.KEY + source.table, document.dump())

    async def _fill(self, source: Source, gaps: Sequence[tuple[int, int]], until: int | None) -> None:
        """Reads the messages of all gaps. A message that the stream no longer holds was dealt with before
        ``until``, or before the first pass (None); after it, it is lost."""
        total, done = sum(high - low + 1 for low, high in gaps), 0
        lost: list[int] = []
        refused: set[int] | None = None
        for portion in _portions(gaps):
            messages = await self._read(source.stream, portion)
            absent = sorted(set(portion) - {message.sequence for message in messages})
            lines: list[Line] = []
            for sequence in absent:
                is_lost = until is not None and sequence > until
                lines.append((sequence, "", LOST if is_lost else "before the check"))
                if is_lost:
                    lost.append(sequence)
            judged = await source.examine(messages, store=False) if messages else []
            if any(reason == MISSING for _, _, reason in judged):
                if refused is None:
                    refused = await self._dead_letters(source.stream)
                judged = [(n, "", "dead letter") if n in refused else (n, key, why) for n, key, why in judged]
                await self._restore(source, messages, judged)
            lines += [line for line in judged if line[2] != MISSING]
            if self._store:
                await recovery_queries.settle(self._ctx.warehouse, source.table, lines, self._ctx.clock.now())
            done += len(portion)
            await self._progress(source.table, done, total)
        await self._add_lost_messages(source.table, lost)

    async def _restore(self, source: Source, messages: list[Message], judged: list[Line]) -> None:
        missing = {sequence for sequence, _, reason in judged if reason == MISSING}
        result = self.results[source.table]
        result.missing += len(missing)
        if self._store and missing:
            wanted = [message for message in messages if message.sequence in missing]
            stored = await source.examine(wanted, store=True)
            result.restored += sum(reason == MISSING for _, _, reason in stored)

    async def _read(self, stream: str, portion: Sequence[int]) -> list[Message]:
        slots = asyncio.Semaphore(_CONCURRENT_READS)

        async def read(sequence: int) -> Message | None:
            async with slots:
                try:
                    raw = await self._ctx.bus.js.get_msg(stream, seq=sequence)
                except nats.js.errors.NotFoundError:
                    return None
                except nats.errors.Error as error:
                    raise BusError(f"Stream {stream} cannot be read ({type(error).__name__}).") from None
            stored_at = raw.time or datetime.fromtimestamp(0, self._ctx.clock.now().tzinfo)
            return Message(
                raw.data or b"", dict(raw.headers or {}), raw.subject or "", sequence, 1, stored_at
            )

        found = await asyncio.gather(*(read(sequence) for sequence in portion))
        return [message for message in found if message is not None]

    async def _dead_letters(self, stream: str) -> set[int]:
        found = await dead_letters(self._ctx.bus, stream=stream, limit=MOST_DEAD_LETTERS)
        return {record.source_sequence for record in found}

    async def _check_rewards(self, read_rewards: bool) -> None:
        """First rewards follow from the trajectories; that a later one is missing, the inventory knows."""
        ctx, result = self._ctx, self.results["rewards"]
        state = await read_document(self._ctx.bus, RewarderState)
        until = state.stream_seq if state else 0
        unrewarded = await recovery_queries.without_reward(ctx.warehouse, until)
        known = await Inventory(ctx.objects, ctx.warehouse, "rewards").missing()
        if not (read_rewards or unrewarded or known):
            return
        async for payloads in self._published_rewards():
            missing = await self._missing_rewards(payloads, until)
            result.missing += len(missing)
            if self._store and missing:
                await ctx.warehouse.insert("rewards", missing, token=new_id())
                result.restored += len(missing)
        unrewarded = await recovery_queries.without_reward(ctx.warehouse, until)
        self.without_reward = max(0, len(unrewarded) - (0 if self._store else result.missing))
        if self._store and unrewarded:
            why = {"reason": "reward_lost", "detail": "its reward was lost; 'onward rescore' scores it again"}
            await ctx.warehouse.insert("unscored", [{**row, **why} for row in unrewarded], token=new_id())

    async def _published_rewards(self):
        bus = self._ctx.bus
        puller = None
        try:
            state = (await bus.js.stream_info(REWARDS)).state
            puller = await Puller.after(bus, REWARDS, subjects.REWARD, 0, prefix="recovery")
            last = 0
            while last < state.last_seq:
                batch = await puller.pull(PORTION, linger=0.5)
                if not batch:
                    break
                last = batch[-1].metadata.sequence.stream
                yield [message.data for message in batch]
                await self._progress("rewards", last, state.last_seq)
        except nats.js.errors.NotFoundError:
            return
        except (PullBroken, nats.errors.Error) as error:
            raise BusError(f"Stream {REWARDS} cannot be read ({type(error).__name__}).") from None
        finally:
            if puller is not None:
                await puller.close(delete=True)

    async def _missing_rewards(self, payloads: Sequence[bytes], until: int) -> list[dict[str, Any]]:
        """Returns the rows of published rewards that are not stored. A first reward after the rewarder's
        checkpoint is left to the rewarder."""
        found: dict[str, tuple[Reward, bytes]] = {}
        for payload in payloads:
            try:
                reward = decode(payload, Reward, max_bytes=2 * MAX_BYTES)
            except ContractError:
                continue
            found.setdefault(reward.reward_id, (reward, payload))
        there = await recovery_queries.present(self._ctx.warehouse, "rewards", found)
        missing = {name: pair for name, pair in found.items() if name not in there}
        sequences = await recovery_queries.sequences(
            self._ctx.warehouse, (reward.trajectory_id for reward, _ in missing.values())
        )
        made: list[dict[str, Any]] = []
        for reward, payload in missing.values():
            sequence = sequences.get(reward.trajectory_id, 0)
            is_first = reward.reward_id == reward_id(reward.trajectory_id)
            if sequence <= until or not is_first:
                made.append(rows.published_row(payload, sequence))
        return made

    async def _compare(self, table: str) -> None:
        """Compares the table with its inventory, and lists what is lost."""
        inventory, result = Inventory(self._ctx.objects, self._ctx.warehouse, table), self.results[table]
        gone, lost = await inventory.missing(), await inventory.lost()
        back = await recovery_queries.present(self._ctx.warehouse, table, lost.rows)
        kept = {key: day for key, day in lost.rows.items() if key not in back}
        new = {key: day for key, day in gone.items() if key not in kept}
        if not self._store:
            result.lost_rows = max(0, len(kept | new) - result.missing)
        else:
            self._newly_lost += len(new)
            if kept | new != lost.rows:
                lost = Lost({**kept, **new}, lost.messages)
                await inventory.list_lost(lost)
            await inventory.update()
            result.lost_rows = len(lost.rows)
        result.lost_messages += lost.count - len(lost.rows)

    async def _add_lost_messages(self, table: str, sequences: Sequence[int]) -> None:
        if not sequences:
            return
        if not self._store:
            self.results[table].lost_messages += len(sequences)
            return
        self._newly_lost += len(sequences)
        inventory = Inventory(self._ctx.objects, self._ctx.warehouse, table)
        lost = await inventory.lost()
        await inventory.list_lost(Lost(lost.rows, [*lost.messages, *_ranges(sequences)]))

    async def _tell(self) -> None:
        if not self._store:
            return
        alerts = self._ctx.alerts
        restored: dict[str, Any] = {table: r.restored for table, r in self.results.items() if r.restored}
        if restored:
            text = ", ".join(f"{count} of {table}" for table, count in restored.items())
            await alerts.raise_(
                "warehouse_rows",
                f"Rows were missing from the warehouse and were stored again from the streams: {text}.",
                "warning",
                **restored,
            )
        if self._newly_lost or self.without_reward:
            counts = {table: r.lost_rows + r.lost_messages for table, r in self.results.items()}
            lost: dict[str, Any] = {table: count for table, count in counts.items() if count}
            text = ", ".join(f"{count} of {table}" for table, count in lost.items()) or "none"
            more = f" {self.without_reward} trajectories have no reward: 'onward rescore' scores them."
            await alerts.raise_(
                "warehouse_rows_lost",
                f"Rows that no stream holds any more: {text}. 'onward warehouse verify' lists them."
                + (more if self.without_reward else ""),
                "critical",
                **lost,
            )


def _portions(gaps: Sequence[tuple[int, int]]):
    portion: list[int] = []
    for low, high in gaps:
        for sequence in range(low, high + 1):
            portion.append(sequence)
            if len(portion) == PORTION:
                yield portion
                portion = []
    if portion:
        yield portion


def _ranges(sequences: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for sequence in sequences:
        if found and sequence == found[-1][1] + 1:
            found[-1][1] = sequence
        else:
            found.append([sequence, sequence])
    return found
