import asyncio

import pytest

from onward.clock import ManualClock, utc_text
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
