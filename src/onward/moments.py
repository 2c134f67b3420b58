"""Times that people give: an age before now, or a time in ISO 8601."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from onward.clock import Clock, read_time
from onward.errors import ConfigError

_AGE = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_time(text: str, option: str, clock: Clock) -> datetime:
    """Parses an age before now, such as ``7d``, or an ISO 8601 time (UTC when it has no offset). Raises
    ConfigError when ``text`` is neither, or when the age exceeds the range of dates."""
    if (age := _AGE.fullmatch(text)) is not None:
        try:
            return clock.now() - timedelta(**{_UNITS[age[2]]: int(age[1])})
        except OverflowError:
            raise ConfigError(
                f"{text!r} is longer ago than dates reach: leave {option} out for everything."
            ) from None
    try:
        return read_time(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is no time: give an age such as 7d or 12h, or an ISO 8601 time."
        ) from None
