"""Drains an outbox: publishes a few at a time in order, removes after the PubAck, waits for more.

Invariants: a message is removed only after its PubAck, and a batch is removed as one; a crash in between
publishes it again under the same id. A message that waits for the object store lets others pass, and if the
connection breaks, so do the at most ``AT_A_TIME`` messages whose PubAcks were awaited. The file is used in
threads only: it may wait for the disk, and the event loop may have requests to answer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from onward.clock import is_set_within
from onward.errors import ObjectError, OnwardError
from onward.telemetry import logs
from onward.telemetry.crashpoints import crashpoint

if TYPE_CHECKING:
    from onward.bus.connection import Bus
    from onward.bus.outbox import Outbox, Send, Waiting

log = logs.get("outbox")

HELD_SECONDS = 5.0
"""Seconds between tries for a message whose body cannot be stored elsewhere."""
FORGET_SECONDS = 6 * 3600.0
"""Seconds between two searches for old receipts."""
AT_A_TIME = 16
"""Messages whose PubAcks are awaited together: the server syncs each one, and this loop may be busy."""
_LOOK_SECONDS = 0.25
"""Seconds between two searches for messages that other processes put into the same file."""


async def drain(outbox: Outbox, bus: Bus, *, once: bool, send: Send | None) -> int:
    """Implements ``Outbox.drain``."""
    more = asyncio.Event()
    loop = asyncio.get_running_loop()
    lock = outbox.open_turn()
    published, held, forget_at = 0, dict[int, float](), bus.clock.monotonic()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has just ended
            loop.call_soon_threadsafe(more.set)

    async def plain(message: Waiting) -> object:
        return await bus.publish(
            message.subject, message.body, msg_id=message.msg_id, headers=message.headers
        )

    try:
        while not outbox.take_turn(lock):
            await bus.clock.sleep(0.2)
        outbox.wake_with(wake)
        while True:
            if bus.clock.monotonic() >= forget_at and not await _forget(outbox):
                forget_at = bus.clock.monotonic() + FORGET_SECONDS
            held = {seq: until for seq, until in held.items() if until > bus.clock.monotonic()}
            batch = await asyncio.to_thread(outbox.next_batch, held)
            if batch:
                published += await _send(outbox, bus, batch, send or plain, held)
            elif once and not held:
                return published
            else:
                with suppress(OnwardError):  # it can wait
                    await asyncio.to_thread(outbox.reclaim_space)
                await _wait(bus, more)
    finally:
        outbox.wake_with(None)
        outbox.end_turn(lock)


async def _forget(outbox: Outbox) -> bool:
    """Deletes some old receipts; returns whether there may be more."""
    try:
        return await asyncio.to_thread(outbox.forget_old_receipts) > 0
    except OnwardError as error:
        log.warning("old receipts stay", reason=str(error))
        return False


async def _send(outbox: Outbox, bus: Bus, batch: list[Waiting], send: Send, held: dict[int, float]) -> int:
    """Publishes a batch; returns the number of PubAcks. Marks refused messages, puts waiting ones in
    ``held``."""
    done: list[int] = []
    try:
        # The first one alone: it waits out an outage, and what comes after it is then sent in order.
        starts = [0, *range(1, len(batch), AT_A_TIME)]
        for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
            await _send_together(outbox, bus, batch[start:end], send, held, done)
    except BaseException:
        with suppress(OnwardError):  # a message that stays is published again under its id
            await asyncio.to_thread(outbox.remove, done)
        raise
    await _remove(outbox, bus, done)
    return len(done)


async def _send_together(
    outbox: Outbox, bus: Bus, messages: list[Waiting], send: Send, held: dict[int, float], done: list[int]
) -> None:
    """Publishes a few messages; adds those with a PubAck to ``done``. Raises the first error, at its end."""
    # Started in order, so they are sent in order; each waits for its own PubAck.
    tasks = [asyncio.ensure_future(_send_one(outbox, bus, message, send, held)) for message in messages]
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        done += [seq for seq in results if isinstance(seq, int)]
    for failure in results:
        if isinstance(failure, BaseException):
            raise failure


async def _send_one(
    outbox: Outbox, bus: Bus, message: Waiting, send: Send, held: dict[int, float]
) -> int | None:
    """Publishes one message; returns its number, or None if it stays in the outbox."""
    from onward.bus.connection import PublishRejectedError

    try:
        await send(message)
    except PublishRejectedError as error:
        log.error("a message was refused and stays in the outbox", reason=str(error))
        await asyncio.to_thread(outbox.mark_refused, message.seq, str(error))
        return None
    except ObjectError as error:
        log.warning("a message waits for the object store", reason=str(error))
        held[message.seq] = bus.clock.monotonic() + HELD_SECONDS
        return None
    crashpoint("outbox.acked")
    return message.seq


async def _remove(outbox: Outbox, bus: Bus, done: list[int]) -> None:
    """Removes published messages, retrying until the file allows it; else they would be published again."""
    while True:
        try:
            return await asyncio.to_thread(outbox.remove, done)
        except OnwardError as error:
            log.warning("what was published cannot be removed from the outbox", reason=str(error))
            await bus.clock.sleep(HELD_SECONDS)


async def _wait(bus: Bus, more: asyncio.Event) -> None:
    try:
        await is_set_within(more, _LOOK_SECONDS, bus.clock)
    finally:
        more.clear()
