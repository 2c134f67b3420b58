"""The time of a message is the server's, to the microsecond, however it is read."""

from datetime import UTC, datetime

import pytest

from onward.bus.consumer import _stored_at

WHEN = 1_795_910_346_734_000_100
"""Nanoseconds. Divided by 1e9 as a float it is 734.000 ms or 733.999, as rounding has it."""


@pytest.mark.parametrize(
    "reply",
    [
        f"$JS.ACK.RL_TRAJECTORIES.rewarder.1.75.75.{WHEN}.15",
        f"$JS.ACK._.account.RL_TRAJECTORIES.rewarder.1.75.75.{WHEN}.15.token",
    ],
)
def test_a_time_is_cut_to_microseconds_and_never_rounded_through_a_float(reply: str) -> None:
    seconds, rest = divmod(WHEN, 1_000_000_000)
    assert rest == 734_000_100
    assert _stored_at(reply) == datetime.fromtimestamp(seconds, UTC).replace(microsecond=734_000)


def test_the_last_nanosecond_of_a_second_belongs_to_it() -> None:
    reply = "$JS.ACK.S.c.1.1.1.1795910346999999999.0"
    assert _stored_at(reply).microsecond == 999_999
