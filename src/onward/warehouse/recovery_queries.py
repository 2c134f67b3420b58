"""Queries that look for missing rows: damaged parts, gaps in the sequences of a stream, ids per day.

The other rules of ``queries.py`` hold: views only, rows as dicts. Sequences belong to one stream: a stream
that was created again begins at 1, so rows of an earlier one (before ``created``) do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onward.ids import new_id
from onward.warehouse.client import Warehouse
from onward.warehouse.queries import Row, by_ids

Line = tuple[int, str, str]
"""A message without a row of its own: sequence, id of the row that it belongs to (or empty), reason."""
MISSING = "missing"
"""Reason of a message whose row should exist; never stored in ``settled``."""
LOST = "lost"
"""Reason of a message that the stream lost before it was stored."""


@dataclass(frozen=True)
class Shape:
    """Columns of a table that a check needs: an expression for the id of a row, the time that decides its day
    (and its partition), its time of arrival."""

    table: str
    key: str
    day: str
    arrival: str


STATUS_KEY = (
    "concat(training_job_id, ' ', toString(toUnixTimestamp64Milli(ts)), ' ', status, ' ', "
    "toString(current_epoch), ' ', toString(current_step))"
)
SHAPES = {
    shape.table: shape
    for shape in (
        Shape("trajectories", "trajectory_id", "start_ts", "ingested_at"),
        Shape("rewards", "reward_id", "ts", "ingested_at"),
        Shape("feedback", "feedback_id", "ts", "received_at"),
        Shape("status", STATUS_KEY, "ts", "ts"),
        Shape("deployments", "deployment_id", "ts", "ts"),
        Shape("outcomes", "outcome_id", "ts", "ts"),
    )
}
BESIDE = ("settled", "unscored")
"""Tables without rows of their own to restore: what they say is found out again."""
_VIEWS = {table: f"{table}_v" for table in SHAPES} | {"rewards": "reward_history_v"}


async def gaps(w: Warehouse, table: str, first: int, last: int, created: datetime) -> list[tuple[int, int]]:
    """Ranges of sequences from ``first`` to ``last`` that have neither a row nor a line in ``settled``."""
    shape, view = SHAPES[table], _VIEWS[table]
    rows = await w.query(
        "SELECT seq + 1 AS low, next - 1 AS high FROM (SELECT seq, leadInFrame(seq, 1, {after:UInt64}) OVER "
        "(ORDER BY seq ASC ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS next FROM ("
        f"SELECT DISTINCT stream_seq AS seq FROM {view} WHERE stream_seq BETWEEN {{first:UInt64}} AND "
        f"{{last:UInt64}} AND {shape.arrival} >= {{created:DateTime64(3, 'UTC')}} "
        "UNION DISTINCT SELECT stream_seq AS seq FROM settled_v WHERE table_name = {table:String} AND "
        "stream_seq BETWEEN {first:UInt64} AND {last:UInt64} AND ts >= {created:DateTime64(3, 'UTC')} AND "
        f"(row_key = '' OR row_key IN (SELECT {shape.key} FROM {view})) "
        "UNION DISTINCT SELECT {before:UInt64} AS seq)) WHERE next > seq + 1 ORDER BY low",
        table=table,
        first=first,
        last=last,
        before=first - 1,
        after=last + 1,
        created=created,
    )
    return [(row["low"], row["high"]) for row in rows]


async def present(w: Warehouse, table: str, keys: Iterable[str]) -> set[str]:
    """Those of ``keys`` that have a row."""
    key = SHAPES[table].key
    sql = f"SELECT DISTINCT {key} AS key FROM {_VIEWS[table]} WHERE {key} IN {{ids:Array(String)}}"
    return {row["key"] for row in await by_ids(w, sql, keys)}


async def days(w: Warehouse, table: str) -> dict[str, tuple[int, str]]:
    """Day → number of rows and a hash of their ids."""
    shape = SHAPES[table]
    rows = await w.query(
        f"SELECT toString(toYYYYMMDD({shape.day})) AS day, count() AS n, "
        f"hex(groupBitXor(cityHash64({shape.key}))) AS hash FROM {_VIEWS[table]} GROUP BY day"
    )
    return {row["day"]: (row["n"], row["hash"]) for row in rows}


async def keys_of_day(w: Warehouse, table: str, day: str) -> list[str]:
    """Ids of the rows of one day, sorted."""
    shape = SHAPES[table]
    rows = await w.query(
        f"SELECT {shape.key} AS key FROM {_VIEWS[table]} "
        f"WHERE toYYYYMMDD({shape.day}) = {{day:UInt32}} ORDER BY key",
        day=int(day),
    )
    return [row["key"] for row in rows]


async def without_reward(w: Warehouse, until_seq: int) -> list[Row]:
    """Trajectories of messages up to ``until_seq`` that are neither rewarded nor unscored: ``trajectory_id``,
    ``ts`` and ``stream_seq``."""
    return await w.query(
        "SELECT trajectory_id, start_ts AS ts, stream_seq FROM trajectories_v "
        "WHERE stream_seq <= {until:UInt64} AND trajectory_id NOT IN "
        "(SELECT trajectory_id FROM reward_history_v) AND trajectory_id NOT IN "
        "(SELECT trajectory_id FROM unscored_v)",
        until=until_seq,
    )


async def sequences(w: Warehouse, trajectory_ids: Iterable[str]) -> dict[str, int]:
    """Trajectory id → the stream sequence of its row."""
    sql = "SELECT trajectory_id, stream_seq FROM trajectories_v WHERE trajectory_id IN {ids:Array(String)}"
    return {row["trajectory_id"]: row["stream_seq"] for row in await by_ids(w, sql, trajectory_ids)}


async def settle(w: Warehouse, table: str, lines: Sequence[Line], now: datetime) -> None:
    """Records messages that make no row of their own."""
    rows: list[Row] = [
        {"table_name": table, "stream_seq": sequence, "row_key": key, "reason": reason, "ts": now}
        for sequence, key, reason in lines
    ]
    await w.insert("settled", rows, token=new_id())


async def lost_messages(w: Warehouse, table: str) -> list[int]:
    """Sequences of messages that were lost before their rows were stored."""
    rows = await w.query(
        "SELECT stream_seq FROM settled_v WHERE table_name = {table:String} AND reason = {reason:String} "
        "ORDER BY stream_seq",
        table=table,
        reason=LOST,
    )
    return [row["stream_seq"] for row in rows]


async def detached_parts(w: Warehouse) -> dict[str, list[str]]:
    """Table → parts that the engine or a check has put aside."""
    found: dict[str, list[str]] = {}
    sql = "SELECT table, name FROM system.detached_parts WHERE database = currentDatabase() ORDER BY name"
    for row in await w.query(sql):
        found.setdefault(row["table"], []).append(row["name"])
    return found


async def bytes_on_disk(w: Warehouse) -> int:
    sql = "SELECT sum(bytes_on_disk) AS n FROM system.parts WHERE active AND database = currentDatabase()"
    return (await w.query(sql))[0]["n"]


async def damaged_parts(w: Warehouse, table: str) -> list[str]:
    """Parts of a table whose files do not match their checksums; reads the whole table."""
    sql = f"CHECK TABLE {_table(table)} SETTINGS check_query_single_value_result = 0"
    rows: list[dict[str, Any]] = await w.query(sql)
    return [row["part_path"] for row in rows if not row["is_passed"]]


async def detach(w: Warehouse, table: str, part: str) -> None:
    """Puts a part aside, so that queries can be answered again. Its files stay on the disk."""
    await w.command(f"ALTER TABLE {_table(table)} DETACH PART {{part:String}}", part=part)


def _table(table: str) -> str:
    if table not in SHAPES and table not in BESIDE:
        raise KeyError(table)
    return table
