"""Queries for stored trajectories that a user selects: by time, agent, model, reward and outcome.

The same rules as in ``queries.py`` hold. One expression decides on a match: it gives the first reason why a
trajectory does not match, so that listing, export and the count of the rest always agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from onward.warehouse.client import Warehouse
from onward.warehouse.queries import Row, by_ids

STATUSES = ("completed_successfully", "partial_completion", "failed", "abandoned")
OUTCOMES = ("success", "failure", *STATUSES, "none")
"""``success`` and ``failure`` come from the reward, or else from the reported outcome; a status is the
reported one; ``none``: none was reported."""
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2262, 1, 1, tzinfo=UTC)
_TIME = "parseDateTime64BestEffort({%s:String}, 3, 'UTC')"

_STATUS = "JSONExtractString(t.payload, 'metadata', 'outcome', 'status')"
_SUCCEEDED = "if(r.reward_id != '', r.success, t.success)"
_OTHER_OUTCOME = (
    "multiIf({outcome:String} = 'success', NOT " + _SUCCEEDED + ", "
    "{outcome:String} = 'failure', " + _SUCCEEDED + " OR (r.reward_id = '' AND " + _STATUS + " = ''), "
    "{outcome:String} = 'none', " + _STATUS + " != '', " + _STATUS + " != {outcome:String})"
)
_WHY = (
    "multiIf("
    "t.start_ts < " + _TIME % "since" + " OR t.start_ts >= " + _TIME % "until" + ", 'time', "
    "{agent:String} != '' AND t.agent_id != {agent:String}, 'agent', "
    "{domain:String} != '' AND t.domain != {domain:String}, 'domain', "
    "{model:String} != '' AND {model:String} NOT IN (t.model_version, t.model_digest), 'model', "
    "{session:String} != '' AND t.session_id != {session:String}, 'session', "
    "{task:String} != '' AND t.task_id != {task:String}, 'task', "
    "%s, 'outcome', "
    "{bounded:UInt8} AND r.reward_id = '', 'unscored', "
    "{bounded:UInt8} AND (r.raw_total < {low:Float64} OR r.raw_total > {high:Float64}), 'reward', "
    "'')"
)
_FROM = (
    "FROM trajectories_v AS t LEFT JOIN "
    "(SELECT trajectory_id, reward_id, raw_total, success FROM rewards_v) AS r "
    "ON t.trajectory_id = r.trajectory_id "
)


@dataclass(frozen=True)
class TrajectorySelection:
    """A selection of trajectories; None means any. ``model`` is a name (``metadata.model``) or a model
    digest. The bounds of the reward apply to ``raw_total`` and are inclusive."""

    since: datetime | None = None
    until: datetime | None = None
    agent: str | None = None
    domain: str | None = None
    model: str | None = None
    session: str | None = None
    task: str | None = None
    outcome: str | None = None
    min_reward: float | None = None
    max_reward: float | None = None

    def left_out_reason(self) -> str:
        """Returns the expression that is empty for a match; it reads payloads only for an outcome."""
        return _WHY % ("0" if self.outcome is None else _OTHER_OUTCOME)

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters of ``left_out_reason``."""
        given: dict[str, Any] = {
            "since": (self.since or _FIRST).astimezone(UTC).isoformat(timespec="milliseconds"),
            "until": (self.until or _LAST).astimezone(UTC).isoformat(timespec="milliseconds"),
            "bounded": self.min_reward is not None or self.max_reward is not None,
            "low": -1e300 if self.min_reward is None else float(self.min_reward),
            "high": 1e300 if self.max_reward is None else float(self.max_reward),
        }
        for name in ("agent", "domain", "model", "session", "task"):
            given[name] = getattr(self, name) or ""
        return given if self.outcome is None else {**given, "outcome": self.outcome}


async def reasons(w: Warehouse, chosen: TrajectorySelection) -> dict[str, int]:
    """Reason → number of stored trajectories left out for it; those that match are under the empty text."""
    rows = await w.query(
        f"SELECT {chosen.left_out_reason()} AS why, count() AS n {_FROM} GROUP BY why ORDER BY why",
        **chosen.parameters(),
    )
    return {row["why"]: row["n"] for row in rows}


async def newest(
    w: Warehouse, chosen: TrajectorySelection, limit: int, after: tuple[str, str] | None = None
) -> list[tuple[str, str]]:
    """``(start_ts, trajectory_id)`` of the next ``limit`` matches after ``after``, newest first."""
    start, name = after or (_LAST.isoformat(), "")
    rows = await w.query(
        f"SELECT t.start_ts AS start_ts, t.trajectory_id AS trajectory_id {_FROM} "
        f"WHERE (t.start_ts, t.trajectory_id) < ({_TIME % 'start'}, {{name:String}}) "
        f"AND {chosen.left_out_reason()} = '' "
        "ORDER BY t.start_ts DESC, t.trajectory_id DESC LIMIT {n:UInt64}",
        start=start,
        name=name,
        n=limit,
        **chosen.parameters(),
    )
    return [(row["start_ts"], row["trajectory_id"]) for row in rows]


async def by_group(
    w: Warehouse, chosen: TrajectorySelection, limit: int, after: tuple[str, str] | None = None
) -> list[tuple[str, str]]:
    """``(group_key, trajectory_id)`` of the next ``limit`` matches with a group after ``after``, by group."""
    group, name = after or ("", "")
    rows = await w.query(
        f"SELECT t.group_key AS group_key, t.trajectory_id AS trajectory_id {_FROM} "
        "WHERE t.group_key != '' AND (t.group_key, t.trajectory_id) > ({group:String}, {name:String}) "
        f"AND {chosen.left_out_reason()} = '' ORDER BY t.group_key, t.trajectory_id LIMIT {{n:UInt64}}",
        group=group,
        name=name,
        n=limit,
        **chosen.parameters(),
    )
    return [(row["group_key"], row["trajectory_id"]) for row in rows]


async def summaries(w: Warehouse, ids: Iterable[str]) -> dict[str, Row]:
    """Trajectory id → columns without payload, with ``status`` (empty: none reported), ``raw_total`` and
    ``total_reward`` (None: unscored); ``success`` is the reward's if there is one."""
    sql = (
        "SELECT t.* EXCEPT (payload, payload_sha256, success), " + _STATUS + " AS status, "
        "toUInt8(" + _SUCCEEDED + ") AS success, "
        "if(r.reward_id = '', NULL, r.raw_total) AS raw_total, "
        "if(r.reward_id = '', NULL, r.total_reward) AS total_reward "
        "FROM (SELECT * FROM trajectories_v WHERE trajectory_id IN {ids:Array(String)}) AS t LEFT JOIN "
        "(SELECT trajectory_id, reward_id, raw_total, total_reward, success FROM rewards_v "
        "WHERE trajectory_id IN {ids:Array(String)}) AS r ON t.trajectory_id = r.trajectory_id"
    )
    return {row["trajectory_id"]: row for row in await by_ids(w, sql, ids)}


async def ids_that_begin(w: Warehouse, prefix: str, limit: int) -> list[str]:
    """The first ``limit`` trajectory ids that begin with ``prefix``; an equal one comes first."""
    rows = await w.query(
        "SELECT trajectory_id FROM trajectories_v WHERE startsWith(trajectory_id, {prefix:String}) "
        "ORDER BY trajectory_id LIMIT {n:UInt64}",
        prefix=prefix,
        n=limit,
    )
    return [row["trajectory_id"] for row in rows]
