"""Every query that Onward sends to the warehouse, by name.

``reward_queries.py`` has those about feedback and scoring again, ``trajectory_queries.py`` those that a user
chooses; no other module writes SQL. All of them read the views, which show each id once however often it was
stored. Rows are dicts with the columns of ``tables.sql``; times are ISO 8601 text. Ids are bound in portions,
because a bound list travels in the URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from onward.warehouse.client import Warehouse

Row = dict[str, Any]
PORTION = 2000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEWEST_REWARD = "ORDER BY trajectory_id, revision DESC, ts DESC, stream_seq DESC LIMIT 1 BY trajectory_id"


# --- collector -----------------------------------------------------------------------------------


async def stored_identities(w: Warehouse, ids: Iterable[str]) -> dict[str, str]:
    """Trajectory id → ``payload_sha256`` for those of ``ids`` that are stored."""
    sql = (
        "SELECT trajectory_id, payload_sha256 FROM trajectories_v WHERE trajectory_id IN {ids:Array(String)}"
    )
    return {row["trajectory_id"]: row["payload_sha256"] for row in await by_ids(w, sql, ids)}


# --- rewarder ------------------------------------------------------------------------------------


async def trajectories_by_id(w: Warehouse, ids: Iterable[str]) -> dict[str, Row]:
    """Trajectory id → its row, payload included."""
    sql = "SELECT * FROM trajectories_v WHERE trajectory_id IN {ids:Array(String)}"
    return {row["trajectory_id"]: row for row in await by_ids(w, sql, ids)}


async def trajectory(w: Warehouse, trajectory_id: str) -> Row | None:
    return (await trajectories_by_id(w, [trajectory_id])).get(trajectory_id)


async def reward_for(w: Warehouse, trajectory_ids: Iterable[str]) -> dict[str, Row]:
    """Trajectory id → its newest reward; ids without one are absent."""
    sql = "SELECT * FROM reward_history_v WHERE trajectory_id IN {ids:Array(String)} " + _NEWEST_REWARD
    return {row["trajectory_id"]: row for row in await by_ids(w, sql, trajectory_ids)}


async def rewards_by_id(w: Warehouse, reward_ids: Iterable[str]) -> dict[str, Row]:
    """Reward id → its row; also of rewards that were superseded."""
    sql = "SELECT * FROM reward_history_v WHERE reward_id IN {ids:Array(String)}"
    return {row["reward_id"]: row for row in await by_ids(w, sql, reward_ids)}


async def reward_history(w: Warehouse, trajectory_id: str) -> list[Row]:
    """Every reward of a trajectory, oldest first."""
    return await w.query(
        "SELECT * FROM reward_history_v WHERE trajectory_id = {id:String} ORDER BY revision, ts, stream_seq",
        id=trajectory_id,
    )


async def newest_rewards(w: Warehouse, limit: int) -> list[Row]:
    """The newest reward of each of the newest ``limit`` rewarded trajectories, newest first."""
    return await w.query(
        "SELECT * FROM reward_history_v WHERE reward_id IN "
        "(SELECT reward_id FROM rewards_v ORDER BY stream_seq DESC, trajectory_id LIMIT {n:UInt64}) "
        "ORDER BY stream_seq DESC, trajectory_id",
        n=limit,
    )


async def why_unscored(w: Warehouse, trajectory_id: str) -> Row | None:
    """Reason and detail of a trajectory that has no reward and will get none; else None."""
    rows = await w.query(
        "SELECT reason, detail FROM unscored_v WHERE trajectory_id = {id:String}", id=trajectory_id
    )
    return rows[0] if rows else None


async def scored_at(w: Warehouse, trajectory_ids: Iterable[str]) -> dict[str, int]:
    """Trajectory id → stream sequence of the message from which its first reward was computed."""
    sql = (
        "SELECT trajectory_id, min(stream_seq) AS seq FROM reward_history_v "
        "WHERE trajectory_id IN {ids:Array(String)} GROUP BY trajectory_id"
    )
    return {row["trajectory_id"]: row["seq"] for row in await by_ids(w, sql, trajectory_ids)}


# --- coordinator and trainer ---------------------------------------------------------------------


async def latest_seq(w: Warehouse) -> int:
    """Highest stream sequence among stored trajectories; 0 when there is none."""
    return (await w.query("SELECT max(stream_seq) AS seq FROM trajectories_v"))[0]["seq"]


async def rewarded_count(
    w: Warehouse, model_digest: str, since_seq: int = 0, until_seq: int | None = None
) -> int:
    """Number of trajectories of one policy with a reward, of messages after ``since_seq`` and up to
    ``until_seq``; the threshold counts them."""
    rows = await w.query(
        "SELECT uniqExact(trajectory_id) AS n FROM reward_history_v "
        "WHERE model_digest = {digest:String} AND stream_seq > {low:UInt64} AND stream_seq <= {high:UInt64}",
        digest=model_digest,
        low=since_seq,
        high=2**63 if until_seq is None else until_seq,
    )
    return rows[0]["n"]


async def session_values(
    w: Warehouse, model_digest: str, after_seq: int, scored_until: datetime, settle_seconds: float, limit: int
) -> list[Row]:
    """``seq`` and ``value`` of the next ``limit`` sessions of one policy, in order: the sequence of a
    session's first trajectory, above ``after_seq``, and the mean raw total of its newest rewards. Only
    rewards that were stored within ``settle_seconds`` of the session's first one count, whenever they are
    read, and only sessions whose first reward was stored by ``scored_until``."""
    return await w.query(
        """
        SELECT min(first_seq) AS seq, avg(newest) AS value FROM
        (
            SELECT whole, min(stream_seq) AS first_seq,
                   argMax(raw_total, (revision, ts, stream_seq)) AS newest
            FROM
            (
                SELECT *, if(session_id = '', trajectory_id, session_id) AS whole,
                       min(ingested_at) OVER (PARTITION BY whole) AS began
                FROM reward_history_v WHERE model_digest = {digest:String}
            )
            WHERE began <= parseDateTime64BestEffort({until:String}, 3, 'UTC')
              AND ingested_at <= addMilliseconds(began, {settle:Int64})
            GROUP BY whole, trajectory_id
        )
        GROUP BY whole HAVING seq > {low:UInt64} ORDER BY seq LIMIT {n:UInt64}
        """,
        digest=model_digest,
        until=_moment(scored_until),
        settle=round(settle_seconds * 1000),
        low=after_seq,
        n=limit,
    )


async def unscored_count(w: Warehouse, since_seq: int = 0) -> dict[str, int]:
    """Reason → number of trajectories that have no valid reward and will get none, after ``since_seq``."""
    rows = await w.query(
        "SELECT reason, count() AS n FROM unscored_v WHERE stream_seq > {seq:UInt64} GROUP BY reason",
        seq=since_seq,
    )
    return {row["reason"]: row["n"] for row in rows}


async def trajectories_for_training(
    w: Warehouse,
    model_digests: Sequence[str | None],
    since: datetime | str | None = None,
    limit: int = 10_000,
    *,
    since_seq: int = 0,
    until_seq: int | None = None,
) -> list[Row]:
    """Trajectories of these policies, newest first, each with its newest reward.

    Columns: trajectory_id, session_id, task_id, task_type, group_key, domain, model_digest,
    release_id, arm, n_turns, success, completion, start_ts, stream_seq, payload_sha256, payload, and
    from the reward reward_id, raw_total, total_reward, confidence, reward_payload (empty text: unscored).
    """
    return await w.query(
        """
        WITH picked AS
        (
            SELECT trajectory_id, session_id, task_id, task_type, group_key, domain, model_digest, release_id,
                   arm, n_turns, success, completion, start_ts, stream_seq, payload_sha256, payload
            FROM trajectories_v
            WHERE model_digest IN {digests:Array(String)}
              AND start_ts >= parseDateTime64BestEffort({since:String}, 3, 'UTC')
              AND stream_seq > {low:UInt64} AND stream_seq <= {high:UInt64}
            ORDER BY stream_seq DESC, trajectory_id
            LIMIT {n:UInt64}
        )
        SELECT picked.*, r.reward_id AS reward_id, r.raw_total AS raw_total, r.total_reward AS total_reward,
               r.confidence AS confidence, r.payload AS reward_payload
        FROM picked LEFT JOIN
        (
            SELECT * FROM reward_history_v WHERE trajectory_id IN (SELECT trajectory_id FROM picked)
            """
        + _NEWEST_REWARD
        + """
        ) AS r ON picked.trajectory_id = r.trajectory_id
        ORDER BY stream_seq DESC, trajectory_id
        """,
        digests=[digest or "" for digest in model_digests],
        since=_moment(since),
        low=since_seq,
        high=2**63 if until_seq is None else until_seq,
        n=limit,
    )


async def trajectories_of_others(
    w: Warehouse, model_digests: Sequence[str], since_seq: int, until_seq: int | None = None
) -> dict[str, int]:
    """``model_digest`` → number of trajectories from ``since_seq`` to ``until_seq`` that a job leaves out,
    because another policy sampled them, or several (``mixed``), or an unknown one (empty text)."""
    rows = await w.query(
        "SELECT model_digest, count() AS n FROM trajectories_v WHERE stream_seq >= {seq:UInt64} "
        "AND stream_seq <= {high:UInt64} AND model_digest NOT IN {digests:Array(String)} "
        "GROUP BY model_digest",
        seq=since_seq,
        high=2**63 if until_seq is None else until_seq,
        digests=list(model_digests),
    )
    return {row["model_digest"]: row["n"] for row in rows}


# --- status, reports, the demonstration ----------------------------------------------------------


async def summary_figures(w: Warehouse, since: datetime, model_digest: str) -> Row:
    """Figures of what came since ``since``: trajectories, unscored, rewarded, mean and deviation (population)
    of raw totals, of_current and current_mean of one policy's. A mean of nothing is None."""
    rows = await w.query(
        "SELECT (SELECT count() FROM trajectories_v WHERE ingested_at >= from_time) AS trajectories, "
        "(SELECT count() FROM unscored_v WHERE ts >= from_time) AS unscored, "
        "count() AS rewarded, avgOrNull(raw_total) AS mean, stddevPopOrNull(raw_total) AS deviation, "
        "countIf(model_digest = {digest:String}) AS of_current, "
        "avgOrNullIf(raw_total, model_digest = {digest:String}) AS current_mean "
        "FROM (SELECT raw_total, model_digest FROM rewards_v WHERE ts >= from_time)".replace(
            "from_time", "parseDateTime64BestEffort({since:String}, 3, 'UTC')"
        ),
        since=_moment(since),
        digest=model_digest,
    )
    return rows[0]


async def counts(w: Warehouse) -> Row:
    """Totals for a status page: trajectories, rewarded, unscored, outcomes, deployments, status_events,
    newest (ISO text, or None), latest_seq."""
    rows = await w.query(
        "SELECT (SELECT count() FROM trajectories_v) AS trajectories, "
        "(SELECT uniqExact(trajectory_id) FROM reward_history_v) AS rewarded, "
        "(SELECT count() FROM unscored_v) AS unscored, "
        "(SELECT count() FROM outcomes_v) AS outcomes, "
        "(SELECT count() FROM deployments_v) AS deployments, "
        "(SELECT count() FROM status_v) AS status_events, "
        "(SELECT max(end_ts) FROM trajectories_v) AS newest, "
        "(SELECT max(stream_seq) FROM trajectories_v) AS latest_seq"
    )
    row = rows[0]
    return {**row, "newest": row["newest"] if row["trajectories"] else None}


async def by_ids(w: Warehouse, sql: str, ids: Iterable[str]) -> list[Row]:
    """Rows of ``sql`` for all ``ids``, which it binds as ``{ids:Array(String)}``, in portions."""
    wanted = list(dict.fromkeys(ids))
    rows: list[Row] = []
    for start in range(0, len(wanted), PORTION):
        rows += await w.query(sql, ids=wanted[start : start + PORTION])
    return rows


def _moment(value: datetime | str | None) -> str:
    if isinstance(value, str):
        return value
    return (value or _EPOCH).astimezone(UTC).isoformat(timespec="milliseconds")
