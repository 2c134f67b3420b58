"""Reads first rewards that a predecessor published and perhaps never stored.

Publishing runs ahead of the warehouse (``storing.py``). A first reward depends on more than the stream: on
the feedback known by then, on the linter's results, on settings. So a restarted rewarder stores the published
rewards and computes none of them anew.
"""

from __future__ import annotations

import asyncio

import nats.errors
from nats.js.errors import NotFoundError

from onward.bus import Bus
from onward.contracts import MAX_BYTES, Reward, decode
from onward.errors import BusError, ContractError
from onward.reward.scoring.score import reward_id

STREAM = "RL_REWARDS"
TAIL = 2000
"""Messages read, the newest: four times the number that may wait for the warehouse."""
_AT_ONCE = 50


async def first_rewards(bus: Bus) -> dict[str, bytes]:
    """Returns trajectory id → payload of its first reward, from the newest ``TAIL`` messages. Raises
    BusError."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def read(sequence: int) -> bytes:
        async with places:
            try:
                return (await bus.js.get_msg(STREAM, seq=sequence)).data or b""
            except NotFoundError:
                return b""

    try:
        state = (await bus.js.stream_info(STREAM)).state
        first = max(1, state.first_seq, state.last_seq - TAIL + 1)
        found = await asyncio.gather(*(read(n) for n in range(first, state.last_seq + 1)))
    except nats.errors.Error as error:
        raise BusError(f"Stream {STREAM} cannot be read ({type(error).__name__}).") from None
    rewards: dict[str, bytes] = {}
    for data in found:
        try:
            reward = decode(data, Reward, max_bytes=2 * MAX_BYTES)
        except ContractError:
            continue
        if reward.reward_id == reward_id(reward.trajectory_id):
            rewards.setdefault(reward.trajectory_id, data)
    return rewards
