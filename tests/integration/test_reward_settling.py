"""The collector's acknowledgements are overheard; one that was missed is asked for."""

import asyncio

from onward.bus import Ack, Message, consume
from onward.clock import SystemClock
from onward.reward.role.progress import CollectorProgress

STREAM = "RL_TRAJECTORIES"


def messages(*sequences: int) -> list[Message]:
    return [Message(b"", {}, "", n, 1, SystemClock().now()) for n in sequences]


async def no(_) -> bool:
    return False


async def publish(bus, *names: str) -> None:
    for name in names:
        await bus.publish("agent.rl.trajectory.v1", name.encode(), msg_id=name)


async def collect(bus, until: int) -> None:
    """Acknowledge as the collector does, up to a sequence."""
    done = asyncio.Event()

    async def handle(batch):
        if batch[-1].sequence >= until:
            done.set()
        return [Ack()] * len(batch)

    task = asyncio.ensure_future(consume(bus, stream=STREAM, durable="collector", handler=handle, batch=1))
    await done.wait()
    while (await bus.js.consumer_info(STREAM, "collector")).ack_floor.stream_seq < until:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_was_settled_before_is_known_at_the_start(bus):
    await publish(bus, "a", "b")
    await collect(bus, 2)
    settled = CollectorProgress(bus, STREAM, SystemClock())
    await settled.start()
    assert await settled.wait(messages(1, 2), no, lambda: False) == 2


async def test_acknowledgements_are_heard_and_the_batch_ends_before_a_gap(bus):
    settled = CollectorProgress(bus, STREAM, SystemClock())
    await settled.start()
    waiting = asyncio.ensure_future(settled.wait(messages(1, 2, 5), no, lambda: False))
    await publish(bus, "a", "b")
    await collect(bus, 2)
    assert await waiting in (1, 2)
    assert await settled.wait(messages(1, 2, 5), no, lambda: False) == 2
    await settled.stop()


async def test_deaf_it_asks(bus):
    settled = CollectorProgress(bus, STREAM, SystemClock())
    await settled.start()
    await settled.stop()
    await publish(bus, "a")
    await collect(bus, 1)
    assert await settled.wait(messages(1), no, lambda: False) == 1


async def test_rows_will_do_where_acknowledgements_come_out_of_order(bus):
    settled = CollectorProgress(bus, STREAM, SystemClock())
    await settled.start()

    async def rows(_) -> bool:
        return True

    assert await settled.wait(messages(7, 8), rows, lambda: False) == 8
    await settled.stop()
