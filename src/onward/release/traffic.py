"""Measured traffic: sessions a day, from which the least sessions of a step and the power follow."""

from __future__ import annotations

from datetime import datetime, timedelta

from onward.clock import utc_text
from onward.errors import OnwardError
from onward.release.plan import DAY
from onward.telemetry import logs
from onward.warehouse import Warehouse

log = logs.get("releaser")
DAYS = 3
LEAST_SECONDS = 3600.0
"""Least time over which a rate is measured: a busy first minute is no day."""


async def sessions_per_day(warehouse: Warehouse, now: datetime) -> float | None:
    """Returns the sessions a day that the warehouse received in the last days; None if it has none, or if it
    does not answer."""
    since = now - timedelta(days=DAYS)
    try:
        rows = await warehouse.query(
            "SELECT uniqExact(session_id) AS sessions, toUnixTimestamp64Milli(min(start_ts)) AS first "
            "FROM trajectories_v WHERE start_ts >= parseDateTime64BestEffort({since:String}, 3, 'UTC')",
            since=utc_text(since),
        )
    except OnwardError as error:
        log.warning("traffic not measured", reason=str(error))
        return None
    sessions = int(rows[0]["sessions"]) if rows else 0
    if not sessions:
        return None
    seconds = now.timestamp() - int(rows[0]["first"]) / 1000
    return sessions * DAY / max(seconds, LEAST_SECONDS)
