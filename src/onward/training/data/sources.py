"""Sources of logged trajectories: one function each, with one signature and one result.

A source yields pages of redacted trajectories, newest first, each with the reward that counts for it.
Filters, sampling and freezing are the same for all and do not know the source. ``SOURCES`` lists them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from onward.bus import Bus
from onward.capture.collecting import trajectory_row
from onward.capture.collecting.trajectory_row import MIXED
from onward.clock import Clock
from onward.config import Settings
from onward.context import Context
from onward.contracts.training import DatasetSpec
from onward.errors import TrainingError
from onward.training.data import archives, stream
from onward.training.data.admission import ScoredTrajectory
from onward.warehouse import Objects, Warehouse, queries

PAGE = 1000
"""Trajectories that are read at a time."""


@dataclass(frozen=True)
class Stores:
    """The places that a source may read."""

    settings: Settings
    bus: Bus
    warehouse: Warehouse
    objects: Objects
    clock: Clock

    @classmethod
    def of(cls, ctx: Context) -> Stores:
        return cls(ctx.settings, ctx.bus, ctx.warehouse, ctx.objects, ctx.clock)


@dataclass(frozen=True)
class Wanted:
    """The part of a source that a job asks for."""

    dataset: DatasetSpec
    digests: Sequence[str] | None
    """Policies whose work is wanted; None: of any."""
    most: int
    """Largest number of trajectories that the job looks at."""
    first: int = 1
    last: int | None = None
    """First and last sequence, both included; None: up to the present end."""
    until: datetime | None = None
    """Messages that the server stored later are left for the next job."""

    @property
    def since(self) -> datetime | None:
        span = self.dataset.filter.date_range if self.dataset.filter else None
        return span.start if span else None


@dataclass
class Reading:
    """Facts about what a source has read so far."""

    left_out: Counter[str] = field(default_factory=Counter)
    place: dict[str, Any] = field(default_factory=dict)
    """Provenance: stream and sequences, or files with their hashes."""


Pages = AsyncGenerator[list[ScoredTrajectory], None]
Source = Callable[[Stores, Wanted, Reading], Pages]


async def clickhouse(stores: Stores, wanted: Wanted, reading: Reading) -> Pages:
    """Yields stored trajectories of the wanted policies; those of others are counted."""
    digests, high = list(wanted.digests or ()), wanted.last
    known: set[str] = set()
    while True:
        rows = await queries.trajectories_for_training(
            stores.warehouse,
            model_digests=digests,
            since=wanted.since,
            limit=PAGE,
            since_seq=wanted.first - 1,
            until_seq=high,
        )
        low = min((row["stream_seq"] for row in rows), default=0)
        others = await queries.trajectories_of_others(stores.warehouse, digests, max(low, wanted.first), high)
        reading.left_out += _others(others)
        if rows:
            reading.place.setdefault("last", rows[0]["stream_seq"])
            reading.place["first"] = low
        new = [row for row in rows if row["trajectory_id"] not in known]
        if new:
            yield [_scored(row) for row in new]
        if len(rows) < PAGE:
            return
        # several rows may have one sequence, so the page may end in the middle of them
        known = {row["trajectory_id"] for row in rows if row["stream_seq"] == low}
        high = low if new else low - 1


async def nats_stream(stores: Stores, wanted: Wanted, reading: Reading) -> Pages:
    """Yields trajectories of a JetStream stream, each with its newest stored reward."""
    window = stream.Window(
        stores.bus, wanted.dataset.stream_name or stream.TRAJECTORIES, wanted.first, wanted.last, wanted.until
    )
    async for messages in window.pages():
        page = await stream.judged(stores, messages, reading.left_out)
        chosen = choose_policies(page, wanted.digests, reading.left_out)
        yield await with_rewards(stores.warehouse, chosen)
        reading.place |= {"stream": window.name, "first": window.low, "last": window.last}
        if wanted.since is not None and messages and messages[-1].timestamp < wanted.since:
            return  # what was stored before that day began before it


async def local(stores: Stores, wanted: Wanted, reading: Reading) -> Pages:
    """Yields trajectories of files under ``training.data_roots``, with the rewards in them."""
    found = archives.local_files(stores.settings, wanted.dataset.path)
    async for page in _archived(stores, wanted, reading, found):
        yield page


async def s3(stores: Stores, wanted: Wanted, reading: Reading) -> Pages:
    """Yields trajectories of objects below ``objects.trajectories_url``, with the rewards in them."""
    found = archives.stored_files(stores.settings, wanted.dataset.path)
    async for page in _archived(stores, wanted, reading, found):
        yield page


SOURCES: dict[str, Source] = {
    "clickhouse": clickhouse, "nats_stream": nats_stream, "local": local, "s3": s3,
}  # fmt: skip


async def _archived(
    stores: Stores, wanted: Wanted, reading: Reading, found: AsyncIterator[archives.File]
) -> Pages:
    newest = archives.Newest(wanted.most)
    async for file in found:
        reading.place.setdefault("files", []).append(file.facts())
        reading.left_out += newest.add(file)
    for page in newest.pages(PAGE):
        judged = await archives.judged(stores.settings, page, stores.clock.now(), reading.left_out)
        yield choose_policies(judged, wanted.digests, reading.left_out)


def choose_policies(
    page: Iterable[ScoredTrajectory], digests: Sequence[str] | None, left_out: Counter[str]
) -> list[ScoredTrajectory]:
    """Returns the work of the wanted policies and counts that of others, as ``clickhouse`` does."""
    if digests is None:
        return list(page)
    kept: list[ScoredTrajectory] = []
    for item in page:
        digest = trajectory_row.model_digest(dict(item.trajectory))
        if digest in digests:
            kept.append(item)
        else:
            left_out += _others({digest: 1})
    return kept


async def with_rewards(w: Warehouse, page: Sequence[ScoredTrajectory]) -> list[ScoredTrajectory]:
    """Returns the page with the newest stored reward of each trajectory."""
    rewards = await queries.reward_for(w, [item.trajectory["trajectory_id"] for item in page])
    found = {name: json.loads(row["payload"]) for name, row in rewards.items()}
    return [
        ScoredTrajectory(
            item.trajectory, found.get(item.trajectory["trajectory_id"]), None, item.identity, item.sequence
        )
        for item in page
    ]


def _scored(row: dict[str, Any]) -> ScoredTrajectory:
    reward = json.loads(row["reward_payload"]) if row["reward_payload"] else None
    return ScoredTrajectory(
        json.loads(row["payload"]), reward, None, row["payload_sha256"], row["stream_seq"]
    )


def _others(found: dict[str, int]) -> Counter[str]:
    """Counts the work of other policies (such as a rolled-back candidate's), which is never used."""
    counts = Counter({"mixed_policies": found.pop(MIXED, 0), "no_tokens": found.pop("", 0)})
    return +(counts + Counter(other_policy=sum(found.values())))


def find(name: str) -> Source:
    """Returns a source. Raises TrainingError("DATA") for an unknown one."""
    if name not in SOURCES:
        raise TrainingError("DATA", f"Data source {name!r} is unknown: use one of {', '.join(SOURCES)}.")
    return SOURCES[name]
