"""Cron expressions as crontab(5) of Debian's cron describes them."""

import pytest

from onward.contracts.cron import is_cron


@pytest.mark.parametrize(
    "text",
    [
        "0 2 * * *",
        "*/5 * * * *",
        "23 0-23/2 * * *",
        "0,30 8-18 1,15 * 1-5",
        "5 4 * * sun",
        "0 0 1 JAN-mar 7",
        "59 23 31 12 0",
    ],
)
def test_an_expression_of_the_manual_is_one(text: str) -> None:
    assert is_cron(text)


@pytest.mark.parametrize(
    "text",
    [
        "daily",
        "",
        "0 2 * *",
        "0 2 * * * *",
        "60 2 * * *",
        "0 24 * * *",
        "0 0 0 * *",
        "0 0 32 * *",
        "0 0 * 13 *",
        "0 0 * 0 *",
        "0 0 * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "-5 * * * *",
        "1,,2 * * * *",
        "0 0 * * funday",
        "0 0 * sun *",
        "0 0 * * jan",
        "a * * * *",
        "² * * * *",
    ],
)
def test_what_is_out_of_range_or_of_another_form_is_none(text: str) -> None:
    assert not is_cron(text)
