"""The drainer's tries: what one message needs keeps no other waiting, and failures are tried less often."""

import asyncio

import pytest

from onward.bus.connection import Bus
from onward.bus.outbox import Outbox
from onward.capture import claim_check
from onward.capture.recorder.delivery import RETRY_SECONDS, Delivery
from onward.clock import SystemClock
from onward.contracts import canonical_json, subjects

DOCUMENT = {
    "trajectory_id": "large", "session_id": "s", "agent_id": "a",
    "start_timestamp": "2026-03-05T10:00:00.000Z", "end_timestamp": "2026-03-05T10:05:00.000Z",
    "turns": [
        {
            "turn_id": 1, "timestamp": "2026-03-05T10:00:00.000Z",
            "observation": {"type": "user_message", "content": "x" * claim_check.DIRECT_BYTES},
            "action": {"type": "response"}, "result": {"success": True},
        }
    ],
    "task_context": {"task_id": "t", "instructions": "i"}, "metadata": {"model": "m"},
}  # fmt: skip


class Server:
    """What ``Bus.connect`` gives; ``broken`` is what each publish raises."""

    max_payload, is_connected = 1 << 20, True

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.ids: list[str] = []
        self.got = asyncio.Event()
        self.broken: Exception | None = None

    async def publish(self, subject, data, *, msg_id, headers=None, deadline=None):
        if self.broken is not None:
            raise self.broken
        self.ids.append(msg_id)
        self.got.set()

    async def close(self) -> None: ...


class Pauses(SystemClock):
    """Notes the pauses between tries and does not wait, but for ever when there were ``number``."""

    def __init__(self, number: int) -> None:
        self.seconds: list[float] = []
        self.enough = asyncio.Event()
        self._number = number

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == self._number:
            self.enough.set()
            await asyncio.Event().wait()


@pytest.fixture
def server(monkeypatch):
    made = Server()

    async def connect(*_, **__) -> Server:
        return made

    monkeypatch.setattr(Bus, "connect", connect)
    return made


async def until(event: asyncio.Event, outbox: Outbox, clock, objects: str | None = None) -> None:
    """Deliver until the event, or until there were as many pauses as the clock counts."""
    tasks = [
        asyncio.create_task(Delivery(outbox, "nats://unused", None, objects, clock).run()),
        asyncio.create_task(event.wait()),
        asyncio.create_task(clock.enough.wait()),
    ]
    await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("address", ["nonsense://store", "/dev/null/store"])
async def test_a_store_that_cannot_be_opened_keeps_only_what_needs_it_waiting(tmp_path, server, address):
    outbox = Outbox(tmp_path / "o.db")
    outbox.put(subjects.TRAJECTORY, canonical_json(DOCUMENT), "large")
    outbox.put(subjects.TRAJECTORY, b"small", "small")
    clock = Pauses(1)
    await until(server.got, outbox, clock, address)
    assert server.ids == ["small"]
    assert clock.seconds == []  # and the connection stays
    assert [message.msg_id for message in outbox.next_batch()][:1] == ["large"]
    assert outbox.refused() == []


async def test_a_drain_that_fails_after_each_connect_is_tried_less_and_less_often(tmp_path, server):
    outbox, clock = Outbox(tmp_path / "o.db"), Pauses(7)
    outbox.put("s", b"x", "one")
    server.broken = RuntimeError("whatever it is")
    await until(clock.enough, outbox, clock)
    assert clock.seconds == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_the_first_pause_after_a_message_got_through_is_short_again(tmp_path, server):
    outbox = Outbox(tmp_path / "o.db")
    outbox.put("s", b"x", "one")
    server.broken = RuntimeError("whatever it is")
    answers = iter([server.broken, server.broken, None, server.broken])

    async def publish(*_, **__):
        error = next(answers, server.broken)
        if error is not None:
            raise error
        outbox.put("s", b"x", "two")

    server.publish = publish
    clock = Pauses(4)
    await until(clock.enough, outbox, clock)
    assert clock.seconds == [0.2, 0.4, RETRY_SECONDS[0], 0.4]
