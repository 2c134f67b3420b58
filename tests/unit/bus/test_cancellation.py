"""A role's loop ends also when the client swallowed the request to stop."""

import asyncio

import pytest

from onward.bus.cancellation import until_cancelled


async def test_a_loop_ends_in_the_round_after_a_swallowed_cancellation() -> None:
    rounds, waits = 0, asyncio.Event()

    async def role() -> None:
        nonlocal rounds
        for _ in until_cancelled():
            rounds += 1
            waits.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue  # as the client does

    task = asyncio.create_task(role())
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rounds == 1


async def test_an_earlier_cancellation_does_not_end_the_clean_up_that_follows_it() -> None:
    async def role() -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            for number, _ in enumerate(until_cancelled()):
                if number == 2:
                    return number
        return -1

    task = asyncio.create_task(role())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == 2
