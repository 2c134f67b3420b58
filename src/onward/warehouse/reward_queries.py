"""Queries of the rewarder beside those of ``queries.py``: about feedback, and about scoring again.

The same rules hold: views only, ids bound in portions, rows as dicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onward.warehouse.client import Warehouse
from onward.warehouse.queries import PORTION, Row, by_ids

_TO_SCORE = (
    "start_ts >= parseDateTime64BestEffort({since:String}, 3, 'UTC') "
    "AND ingested_at <= parseDateTime64BestEffort({until:String}, 3, 'UTC') "
)


async def last_scored(w: Warehouse) -> int:
    """Highest stream sequence of a trajectory message that was rewarded; 0 when there is none."""
    return (await w.query("SELECT max(stream_seq) AS seq FROM reward_history_v"))[0]["seq"]


async def rewards_by_id(w: Warehouse, reward_ids: Mapping[str, str]) -> dict[str, Row]:
    """Reward id → its row, for those of ``reward_ids`` (reward id → trajectory id) that are stored."""
    wanted = list(reward_ids)
    found: dict[str, Row] = {}
    for start in range(0, len(wanted), PORTION):
        part = wanted[start : start + PORTION]
        rows = await w.query(
            "SELECT * FROM reward_history_v WHERE trajectory_id IN {names:Array(String)} "
            "AND reward_id IN {ids:Array(String)}",
            names=sorted({reward_ids[name] for name in part}),
            ids=part,
        )
        found.update({row["reward_id"]: row for row in rows})
    return found


async def feedback_by_id(w: Warehouse, feedback_ids: Iterable[str]) -> dict[str, Row]:
    """Feedback id → its row."""
    sql = "SELECT * FROM feedback_v WHERE feedback_id IN {ids:Array(String)}"
    return {row["feedback_id"]: row for row in await by_ids(w, sql, feedback_ids)}


async def feedback_about(
    w: Warehouse, trajectory_ids: Iterable[str], session_ids: Iterable[str]
) -> list[Row]:
    """Feedback about these trajectories, and about these sessions as a whole, in order of arrival."""
    sessions = "SELECT * FROM feedback_v WHERE trajectory_id = '' AND session_id IN {ids:Array(String)}"
    rows = await by_ids(
        w, "SELECT * FROM feedback_v WHERE trajectory_id IN {ids:Array(String)}", trajectory_ids
    )
    rows += await by_ids(w, sessions, session_ids)
    return sorted(rows, key=lambda row: (row["received_at"], row["stream_seq"], row["feedback_id"]))


async def new_corrections(w: Warehouse, model_digest: str, since_seq: int) -> list[Row]:
    """Corrections of a policy's work that was stored after ``since_seq``, in order of time: ``trajectory_id``
    (or empty), ``session_id`` and ``comment``."""
    new = "FROM trajectories_v WHERE model_digest = {digest:String} AND stream_seq > {seq:UInt64}"
    return await w.query(
        "SELECT trajectory_id, session_id, comment FROM feedback_v "
        "WHERE kind = 'explicit' AND signal = 'correction' AND "
        f"(trajectory_id IN (SELECT trajectory_id {new}) "
        f"OR (trajectory_id = '' AND session_id IN (SELECT session_id {new}))) "
        "ORDER BY ts, feedback_id",
        digest=model_digest,
        seq=since_seq,
    )


async def feedback_keys(w: Warehouse, limit: int) -> list[Row]:
    """``trajectory_id`` (or empty) and ``session_id`` of the newest ``limit`` pieces of feedback."""
    return await w.query(
        "SELECT trajectory_id, session_id FROM feedback_v ORDER BY received_at DESC LIMIT {n:UInt64}", n=limit
    )


async def trajectories_of_sessions(w: Warehouse, session_ids: Iterable[str], limit: int) -> dict[str, Row]:
    """Trajectory id → trajectory_id, session_id, start_ts of the newest ``limit`` of each session."""
    sql = (
        "SELECT trajectory_id, session_id, start_ts FROM trajectories_v "
        "WHERE session_id IN {ids:Array(String)} "
        f"ORDER BY session_id, start_ts DESC, trajectory_id LIMIT {int(limit)} BY session_id"
    )
    return {row["trajectory_id"]: row for row in await by_ids(w, sql, session_ids)}


async def to_score_again(
    w: Warehouse, since: str, stored_until: str, after: tuple[str, str], limit: int
) -> list[Row]:
    """``trajectory_id`` and ``start_ts`` of the next ``limit`` trajectories that began at ``since`` or later
    and were stored by ``stored_until``, ordered by start, after the position ``after`` = (start_ts,
    trajectory_id)."""
    return await w.query(
        "SELECT trajectory_id, start_ts FROM trajectories_v WHERE "
        + _TO_SCORE
        + "AND (start_ts, trajectory_id) > "
        "(parseDateTime64BestEffort({start:String}, 3, 'UTC'), {id:String}) "
        "ORDER BY start_ts, trajectory_id LIMIT {n:UInt64}",
        since=since,
        until=stored_until,
        start=after[0],
        id=after[1],
        n=limit,
    )


async def count_to_score_again(w: Warehouse, since: str, stored_until: str) -> int:
    """Number of all trajectories that ``to_score_again`` returns."""
    rows = await w.query(
        "SELECT count() AS n FROM trajectories_v WHERE " + _TO_SCORE, since=since, until=stored_until
    )
    return rows[0]["n"]


async def unscored_share(w: Warehouse, last: int = 200) -> Row:
    """Counts over the newest ``last`` trajectories that the rewarder decided on: n, unscored."""
    rows = await w.query(
        "SELECT count() AS n, sum(gap) AS unscored FROM (SELECT gap FROM ("
        "SELECT trajectory_id, min(stream_seq) AS seq, 0 AS gap FROM reward_history_v GROUP BY trajectory_id "
        "UNION ALL SELECT trajectory_id, stream_seq AS seq, 1 AS gap FROM unscored_v) "
        "ORDER BY seq DESC LIMIT {n:UInt64})",
        n=last,
    )
    return rows[0]
