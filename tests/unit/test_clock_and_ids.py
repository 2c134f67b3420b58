import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from onward.clock import ManualClock, read_time, utc_text
from onward.errors import ContractError
from onward.ids import check_id, derived_id, model_key


async def test_four_hours_pass_in_order_and_at_once() -> None:
    clock = ManualClock()
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(clock.monotonic())
        await clock.sleep(seconds)
        woken.append(clock.monotonic())

    tasks = [asyncio.create_task(sleeper(3600)), asyncio.create_task(sleeper(5400))]
    await clock.advance(4 * 3600)
    assert woken == [3600, 5400, 7200, 10800]
    assert utc_text(clock.now()) == "2026-01-01T04:00:00.000Z"
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("value", ["../x", "a.b", "a b", "", "a" * 129, "a*", "a>", "a/b", "a\x00b"])
def test_an_id_that_could_become_a_path_or_a_wildcard_is_refused(value: str) -> None:
    with pytest.raises(ContractError):
        check_id(value, "job id")


def test_the_seeds_manual_job_id_is_an_id() -> None:
    assert check_id("manual-5f1c2b1e-0000-4000-8000-000000000000", "job id")


def test_derived_ids_repeat_and_do_not_run_together() -> None:
    assert derived_id("a", "b") == derived_id("a", "b")
    assert derived_id("ab", "c") != derived_id("a", "bc")


def test_a_model_key_has_no_dots() -> None:
    assert model_key("agent-zero-rl-v2.10") == "agent-zero-rl-v2_10"


def test_a_time_without_an_offset_is_utc():
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for text in ("2026-03-01T12:00:00", "2026-03-01T12:00:00Z", "2026-03-01T14:00:00+02:00", "20260301T12"):
        assert read_time(text) == noon and read_time(text).utcoffset() == timedelta(0)
    for text in ("", "noon", "2026-13-01", "0001-01-01T00:00:00+10:00", None, 5):
        with pytest.raises(ValueError):
            read_time(text)  # type: ignore[arg-type]
