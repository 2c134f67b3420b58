"""Runs of the schedule against a walk over every minute, and what is refused at the start."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from onward.config import Settings
from onward.coordinator import schedule
from onward.errors import ConfigError
from onward.host import parts


def walked(minute: set[int], hour: set[int], after: datetime, weekdays: set[int] | None = None) -> datetime:
    """The first whole minute after ``after`` whose fields are among those given (weekday 0: Monday)."""
    at = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while not (at.minute in minute and at.hour in hour and (weekdays is None or at.weekday() in weekdays)):
        at += timedelta(minutes=1)
    return at


@pytest.mark.parametrize(
    ("expression", "minutes", "hours", "weekdays"),
    [
        ("0 2 * * *", {0}, {2}, None),
        ("*/20 8-10 * * *", {0, 20, 40}, {8, 9, 10}, None),
        ("30 6,18 * * 1-5", {30}, {6, 18}, {0, 1, 2, 3, 4}),
        ("15 0 * * 7", {15}, {0}, {6}),
    ],
)
@pytest.mark.parametrize(
    "after",
    [
        datetime(2026, 1, 1, 2, 0, tzinfo=UTC),
        datetime(2026, 1, 31, 1, 59, 59, 999_000, tzinfo=UTC),
        datetime(2026, 3, 29, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 24, 23, 59, tzinfo=UTC),
        datetime(2028, 2, 28, 12, 0, tzinfo=UTC),
    ],
)
def test_the_next_run_is_the_first_minute_that_fits(expression, minutes, hours, weekdays, after):
    assert schedule.next_run(expression, after) == walked(minutes, hours, after, weekdays)


def test_a_day_of_the_month_and_a_weekday_are_alternatives_as_in_crontab():
    after = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday
    assert schedule.next_run("0 2 13 * 1", after) == datetime(2026, 1, 5, 2, tzinfo=UTC)
    assert schedule.next_run("0 2 3 * 1", after) == datetime(2026, 1, 3, 2, tzinfo=UTC)


def test_runs_are_in_utc_whatever_the_zone_of_the_given_time():
    berlin = timezone(timedelta(hours=2))
    after = datetime(2026, 6, 1, 3, 30, tzinfo=berlin)  # 01:30 UTC
    assert schedule.next_run("0 2 * * *", after) == datetime(2026, 6, 1, 2, tzinfo=UTC)


def test_a_clock_that_was_set_back_makes_no_run():
    since, now = datetime(2026, 1, 9, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    assert not schedule.is_due("0 2 * * *", since, now)
    assert schedule.is_due("0 2 * * *", now, since)


def test_off_never_comes():
    assert schedule.next_run("off", datetime(2026, 1, 1, tzinfo=UTC)) is None
    schedule.check("off")


async def test_a_time_that_never_comes_is_refused_before_anything_starts(tmp_path):
    settings = Settings.model_validate(
        {"data_dir": tmp_path / "data", "training": {"schedule": "0 0 30 2 *"}}
    )
    with pytest.raises(ConfigError, match="'0 0 30 2 \\*', a time that never comes") as caught:
        async with parts(settings, roles=["coordinator"]):
            raise AssertionError("it started")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()
