"""Reads stored trajectories with their newest rewards, keeping only a few in memory at a time.

Ids are read in large pages, because each page scans every stored id. Documents are read in portions; the size
of a portion follows from the size of the last documents.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from onward.warehouse import queries, trajectory_queries
from onward.warehouse.client import Warehouse
from onward.warehouse.trajectory_queries import TrajectorySelection

ID_PAGE = 20_000
PORTION_BYTES = 8 << 20
MOST_AT_ONCE = 256


@dataclass(frozen=True)
class Record:
    """A stored, redacted ``trajectory.v1`` document and its newest ``reward.v1`` (None: unscored)."""

    trajectory: dict[str, Any]
    reward: dict[str, Any] | None = None

    @property
    def raw_total(self) -> float | None:
        """Weighted sum of the raw scores: the reward that can be compared over time."""
        return None if self.reward is None else (self.reward.get("metadata") or {}).get("raw_total")

    @property
    def outcome(self) -> dict[str, Any] | None:
        """``{success, completion, unparsable}`` from the reward; None if unscored."""
        return None if self.reward is None else (self.reward.get("metadata") or {}).get("outcome")


async def newest(
    w: Warehouse, chosen: TrajectorySelection, limit: int | None = None
) -> AsyncIterator[Record]:
    """Yields the matching records, newest first, ``limit`` at most."""
    left = limit
    after: tuple[str, str] | None = None
    while left is None or left > 0:
        size = ID_PAGE if left is None else min(ID_PAGE, left)
        page = await trajectory_queries.newest(w, chosen, size, after)
        async for record in documents(w, [name for _, name in page]):
            yield record
        if len(page) < size:
            return
        after = page[-1]
        left = None if left is None else left - len(page)


async def groups(
    w: Warehouse, chosen: TrajectorySelection, most: int
) -> AsyncIterator[tuple[list[Record], int]]:
    """Yields the matching attempts of each group, ``most`` at most, and the number of further ones."""
    members: list[Record] = []
    group, counted, beyond = "", 0, 0
    after: tuple[str, str] | None = None
    while True:
        page = await trajectory_queries.by_group(w, chosen, ID_PAGE, after)
        kept: dict[str, str] = {}
        more: Counter[str] = Counter()
        for key, name in page:  # ordered by group, which may continue from the previous page
            counted = counted + 1 if after is not None and key == after[0] else 1
            after = (key, name)
            if counted <= most:
                kept[name] = key
            else:
                more[key] += 1
        async for record in documents(w, list(kept)):
            key = kept[record.trajectory["trajectory_id"]]
            if key != group and members:
                yield members, beyond + more[group]
                members, beyond = [], 0
            group = key
            members.append(record)
        beyond += more[group]
        if len(page) < ID_PAGE:
            break
    if members:
        yield members, beyond


async def documents(w: Warehouse, ids: Sequence[str]) -> AsyncIterator[Record]:
    """Yields the records of ``ids`` in order; one that was deleted meanwhile is skipped."""
    at, size = 0, 16
    while at < len(ids):
        part = ids[at : at + size]
        at += len(part)
        rows, rewards = await queries.trajectories_by_id(w, part), await queries.reward_for(w, part)
        told = sum(len(row["payload"]) for row in (*rows.values(), *rewards.values()))
        size = max(1, min(MOST_AT_ONCE, PORTION_BYTES * len(part) // max(1, told)))
        for name in part:
            if name in rows:
                reward = rewards.get(name)
                yield Record(
                    json.loads(rows[name]["payload"]),
                    None if reward is None else json.loads(reward["payload"]),
                )


async def one(w: Warehouse, trajectory_id: str) -> Record | None:
    """Returns the record of one trajectory; None if there is none."""
    return await anext(documents(w, [trajectory_id]), None)
