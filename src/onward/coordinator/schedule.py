"""Runs of the cron expression ``training.schedule``, in UTC, by the injected clock.

A run that was missed, while Onward was down or a job was open, is made once, however many were missed.
"""

from __future__ import annotations

from datetime import UTC, datetime

from croniter import CroniterError, croniter

from onward.bus import read_stored
from onward.clock import read_time, utc_text
from onward.context import Context
from onward.contracts.buckets import LastRequest, ScheduleMark
from onward.contracts.cron import OFF
from onward.errors import ConfigError
from onward.telemetry import logs

log = logs.get("coordinator")

_ANY_DAY = datetime(2024, 1, 1, tzinfo=UTC)


def check(expression: str) -> None:
    """Raises ConfigError for an expression that never comes due, such as ``0 0 30 2 *``."""
    try:
        next_run(expression, _ANY_DAY)
    except CroniterError:
        raise ConfigError(
            f"training.schedule is {expression!r}, a time that never comes: give five fields, for example "
            f"'0 2 * * *', or 'off'."
        ) from None


def next_run(expression: str, after: datetime) -> datetime | None:
    """Returns the first run after ``after``; None for a schedule that is off."""
    if expression == OFF:
        return None
    return croniter(expression, after.astimezone(UTC)).get_next(datetime)


def is_due(expression: str, since: datetime, now: datetime) -> bool:
    """Returns whether at least one run lies after ``since`` and not after ``now``. A ``since`` in the future
    (the clock was set back) has no run."""
    following = next_run(expression, since)
    return following is not None and following <= now


class ScheduleKeeper:
    """Stores from which time runs count."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._expression = ctx.settings.training.schedule

    async def is_due(self, record: LastRequest) -> bool:
        """Returns whether a run is due. A job that was requested since, for whatever reason, has made it."""
        if self._expression == OFF:
            return False
        bucket, now = self.ctx.bus.bucket(ScheduleMark.BUCKET), self.ctx.clock.now()
        mark = (await read_stored(bucket, ScheduleMark)).document
        if mark is None or mark.expression != self._expression:
            await self._write(None)
            return False
        return is_due(self._expression, counts_from(mark, record), now)

    async def leave_out(self, why: str) -> None:
        """Records that the run which is due makes no job."""
        log.info("scheduled training left out", why=why)
        await self._write(why)

    async def _write(self, left_out: str | None) -> None:
        mark = ScheduleMark(
            expression=self._expression, since=utc_text(self.ctx.clock.now()), left_out=left_out
        )
        await self.ctx.bus.bucket(ScheduleMark.BUCKET).put(ScheduleMark.KEY, mark.dump())


def counts_from(mark: ScheduleMark, record: LastRequest) -> datetime:
    """Returns the time from which runs count: the mark, or the last request if it is newer."""
    since = read_time(mark.since)
    return max(since, read_time(record.published_at)) if record.published_at else since
