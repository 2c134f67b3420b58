"""Answers of ``/ready``: all parts at once, one deadline, one word for each part that fails."""

from __future__ import annotations

import asyncio

import pytest

from onward.health.readiness import Readiness, answers_within


async def test_a_part_that_hangs_delays_nothing_and_is_named() -> None:
    hanging = asyncio.Event()

    async def hangs() -> bool:
        await hanging.wait()
        return True

    async def fails() -> bool:
        raise OSError("no route to host")

    async def full() -> str:
        return "full"

    async def works() -> bool:
        return True

    probes = {"warehouse": hangs, "bus": fails, "disk": full, "engine": works}
    ready = Readiness(probes, {"collector": True, "trainer": False}, seconds=0.05)
    assert await ready() == {
        "collector": True,
        "trainer": False,
        "warehouse": "hung",
        "bus": "away",
        "disk": "full",
        "engine": True,
    }


async def test_calls_share_a_check_that_is_under_way() -> None:
    asked = 0
    go_on = asyncio.Event()

    async def probe() -> bool:
        nonlocal asked
        asked += 1
        await go_on.wait()
        return True

    ready = Readiness({"bus": probe}, {}, seconds=30.0)
    first, second = asyncio.create_task(ready()), asyncio.create_task(ready())
    await asyncio.sleep(0)
    first.cancel()  # its client went away
    await asyncio.sleep(0)
    go_on.set()
    assert await second == {"bus": True}
    assert asked == 1
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await ready() == {"bus": True}
    assert asked == 2


async def test_work_that_ignores_its_cancellation_is_not_waited_for() -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    found = await answers_within(0.05, {"a": stubborn(), "b": asyncio.sleep(0, "b")})
    release.set()
    assert isinstance(found["a"], TimeoutError) and found["b"] == "b"
    assert await answers_within(1.0, {}) == {}
