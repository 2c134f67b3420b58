"""One policy at a time at a server, without a policy that waits for ever."""

import asyncio
import random

import pytest

from onward.serving.engines.turns import Turns


async def play(turns: Turns, policy: str, log: list[str], rounds: int = 3) -> None:
    async with turns.turn(policy):
        log.append(f"+{policy}")
        for _ in range(rounds):
            await asyncio.sleep(0)
        log.append(f"-{policy}")


def together(log: list[str]) -> int:
    """The most policies that were inside at once."""
    inside: list[str] = []
    most = 0
    for entry in log:
        if entry[0] == "+":
            inside.append(entry[1:])
        else:
            inside.remove(entry[1:])
        most = max(most, len(set(inside)))
    return most


async def test_policies_are_mixed_until_they_must_be_separate() -> None:
    turns, log = Turns(), []
    for separate, most in ((False, 3), (True, 1)):
        turns.separate = separate
        log.clear()
        await asyncio.gather(*(play(turns, name, log) for name in "abcabcabc"))
        assert together(log) == most and len(log) == 18


async def test_requests_of_one_policy_still_run_together_and_no_policy_starves() -> None:
    """While b waits, no further a enters: b is next after those that run."""
    turns, log = Turns(), []
    turns.separate = True
    tasks = [asyncio.create_task(play(turns, name, log)) for name in "aabab"]
    await asyncio.gather(*tasks)
    assert log[:2] == ["+a", "+a"] and log[4:6] == ["+b", "+b"] and log[8:] == ["+a", "-a"]


@pytest.mark.parametrize("seed", range(5))
async def test_cancelled_requests_give_their_turn_back(seed: int) -> None:
    rnd = random.Random(seed)
    turns, log = Turns(), []
    turns.separate = True
    tasks = [asyncio.create_task(play(turns, rnd.choice("abc"), log)) for _ in range(30)]
    for _ in range(12):
        for _ in range(rnd.randrange(3)):
            await asyncio.sleep(0)
        rnd.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.wait_for(play(turns, "last", log), 10)
    assert turns._running == 0 and not turns._waiting
