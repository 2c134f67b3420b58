"""Reads feedback about a trajectory from the warehouse, without a query where there is none.

Invariants: feedback that names no trajectory is about its whole session, but not about work that began after
it was given. One vote must not count for everything that the same user does in the following month.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from onward.contracts import Feedback, decode
from onward.warehouse import Warehouse, reward_queries

Row = dict[str, Any]
KEYS = 100_000
"""Most trajectories and sessions known to have feedback; above it the warehouse is always queried."""
SKEW = timedelta(minutes=5)
"""Maximum lead of an agent's clock over the server's."""
MOST = 100
"""Maximum pieces of feedback of each kind in one reward: the newest."""


class StoredFeedback:
    """Feedback about trajectories, found in the warehouse. The active rewarder alone stores feedback, so its
    set of known keys is complete."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._keys: set[str] | None = set()

    async def load(self) -> None:
        """Loads the keys that already have feedback. Raises WarehouseError."""
        found = await reward_queries.feedback_keys(self._warehouse, KEYS)
        self._keys = set()
        self.register(found)
        if len(found) == KEYS:
            self._keys = None

    def register(self, stored: Iterable[Row]) -> None:
        """Registers rows of table ``feedback`` that are about to be stored."""
        if self._keys is None:
            return
        self._keys.update(_key(row) for row in stored)
        if len(self._keys) > KEYS:
            self._keys = None

    async def for_trajectories(self, trajectories: Iterable[Row]) -> dict[str, list[Row]]:
        """Returns trajectory id → rows of feedback about it, in order of arrival. Raises WarehouseError."""
        candidates = [row for row in trajectories if self._may_have(row)]
        if not candidates:
            return {}
        names = {row["trajectory_id"] for row in candidates}
        sessions = {row["session_id"] for row in candidates}
        stored = await reward_queries.feedback_about(self._warehouse, names, sessions)
        return {
            row["trajectory_id"]: found
            for row in candidates
            if (found := [f for f in stored if is_about(f, row)])
        }

    def _may_have(self, row: Row) -> bool:
        keys = self._keys
        return keys is None or f"t:{row['trajectory_id']}" in keys or f"s:{row['session_id']}" in keys

    @staticmethod
    def select(
        stored: Sequence[Row], until: datetime | None = None, before: Collection[str] = ()
    ) -> list[Feedback]:
        """Selects the feedback that a reward takes into account: the pieces that had arrived by ``until`` and
        those in ``before``, which the previous reward knew. Of each kind the newest ``MOST`` are used."""
        known = [
            row
            for row in stored
            if until is None or as_time(row["received_at"]) <= until or row["feedback_id"] in before
        ]
        used = {
            row["feedback_id"]
            for kind in ("explicit", "implicit")
            for row in [row for row in known if row["kind"] == kind][-MOST:]
        }
        return [decode(row["payload"].encode(), Feedback) for row in known if row["feedback_id"] in used]


def is_about(feedback: Row, trajectory: Row) -> bool:
    """Checks whether a row of feedback is about a row of trajectories."""
    if feedback["trajectory_id"]:
        return feedback["trajectory_id"] == trajectory["trajectory_id"]
    began = as_time(trajectory["start_ts"])
    return (
        feedback["session_id"] == trajectory["session_id"]
        and as_time(feedback["received_at"]) >= began - SKEW
    )


def as_time(value: datetime | str) -> datetime:
    """Returns the time of a row (the warehouse returns text) in whole milliseconds, as it is stored."""
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _key(row: Row) -> str:
    return f"t:{row['trajectory_id']}" if row["trajectory_id"] else f"s:{row['session_id']}"
