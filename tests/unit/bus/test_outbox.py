"""The outbox without a server: what is accepted stays, in order, until it was acknowledged."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from onward.bus import Outbox, PublishRejectedError, draining
from onward.clock import SystemClock
from onward.errors import BusError, ConflictError, OutboxFullError


class RecordingBus:
    """Takes messages like a server; ``refuse`` are ids it will never take, ``die_at`` a crash."""

    def __init__(self, refuse=(), die_at=None) -> None:
        self.clock = SystemClock()
        self.got: list[tuple[str, str, bytes, dict]] = []
        self.refuse, self.die_at = set(refuse), die_at

    async def publish(self, subject, data, *, msg_id, headers=None, deadline=None):
        if msg_id == self.die_at:
            raise asyncio.CancelledError
        if msg_id in self.refuse:
            raise PublishRejectedError("too large: make it smaller")
        self.got.append((msg_id, subject, data, dict(headers or {})))

    @property
    def ids(self) -> list[str]:
        return [message[0] for message in self.got]


async def test_messages_leave_in_order_with_their_headers_and_receipts_stay(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    for i in range(200):
        outbox.put("s.a", bytes([i]), f"id{i}", {"H": str(i)})
    assert outbox.pending() == 200
    assert all(r.acked_at is None for r in outbox.receipts())
    bus = RecordingBus()
    assert await outbox.drain(bus, once=True) == 200
    assert bus.ids == [f"id{i}" for i in range(200)]
    assert bus.got[7] == ("id7", "s.a", b"\x07", {"H": "7"})
    assert outbox.pending() == 0
    receipts = list(outbox.receipts())
    assert [r.msg_id for r in receipts] == bus.ids
    assert all(r.acked_at is not None and r.acked_at >= r.accepted_at for r in receipts)
    outbox.close()


async def test_a_new_process_goes_on_where_the_last_one_died(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    for i in range(10):
        outbox.put("s", b"x", f"id{i}")
    first = RecordingBus(die_at="id4")
    with pytest.raises(asyncio.CancelledError):
        await outbox.drain(first, once=True)
    outbox.close()
    again, second = Outbox(tmp_path / "o.db"), RecordingBus()
    await again.drain(second, once=True)
    assert sorted(first.ids + second.ids) == [f"id{i}" for i in range(10)]


async def test_after_the_first_several_messages_wait_for_their_acks_together_and_a_failed_one_stays(tmp_path):
    outbox, waiting, full = Outbox(tmp_path / "o.db"), set[str](), asyncio.Event()
    for i in range(1 + draining.AT_A_TIME):
        outbox.put("s", b"x", f"id{i}")

    class Slow(RecordingBus):
        async def publish(self, subject, data, *, msg_id, headers=None, deadline=None):
            waiting.add(msg_id)
            if len(waiting) == 1 + draining.AT_A_TIME:
                full.set()
            if msg_id != "id0":
                await full.wait()
            if msg_id == "id3":
                raise BusError("away")
            await super().publish(subject, data, msg_id=msg_id, headers=headers)

    with pytest.raises(BusError):
        await outbox.drain(Slow(), once=True)
    assert [waiting.msg_id for waiting in outbox.next_batch()] == ["id3"]
    outbox.close()


def test_what_put_returned_for_survives_kill_9(tmp_path):
    code = (
        "import os, sys; from onward.bus.outbox import Outbox; o = Outbox(sys.argv[1]);"
        "[o.put('s', b'x' * 100, f'id{i}') for i in range(20)]; os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "o.db")], check=False)
    assert done.returncode == -9
    assert [r.msg_id for r in Outbox(tmp_path / "o.db").receipts()] == [f"id{i}" for i in range(20)]


def test_put_is_an_fsync_before_it_returns(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    assert outbox._file.writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert outbox._file.writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_only_its_owner_can_read_it(tmp_path):
    path = tmp_path / "box" / "o.db"
    outbox = Outbox(path)
    outbox.put("s", b"x", "1")
    assert [oct(os.stat(f).st_mode & 0o777) for f in path.parent.iterdir()] == ["0o600"] * 3
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_full_outbox_refuses_and_drops_nothing(tmp_path):
    outbox = Outbox(tmp_path / "o.db", max_bytes=3 * 1200)
    for i in range(3):
        outbox.put("s", b"x" * 1000, f"id{i}")
    with pytest.raises(OutboxFullError, match="Nothing was dropped"):
        outbox.put("s", b"x" * 1000, "id3")
    assert [r.msg_id for r in outbox.receipts()] == ["id0", "id1", "id2"]
    asyncio.run(outbox.drain(RecordingBus(), once=True))
    outbox.put("s", b"x" * 1000, "id3")
    assert outbox.pending() == 1


def test_the_same_id_is_accepted_once_and_never_for_another_body(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    outbox.put("s", b"one", "id")
    outbox.put("s", b"one", "id")
    assert outbox.pending() == 1
    with pytest.raises(ConflictError):
        outbox.put("s", b"two", "id")
    asyncio.run(outbox.drain(RecordingBus(), once=True))
    outbox.put("s", b"one", "id")
    assert outbox.pending() == 0


async def test_a_body_is_the_same_by_what_the_caller_says_makes_it_so(tmp_path):
    """A second try holds another time; what was said is the same. The body that left is the first one."""
    outbox, bus = Outbox(tmp_path / "o.db"), RecordingBus()
    outbox.put("s", b"up at 1", "id", same=b"up")
    outbox.put("s", b"up at 2", "id", same=b"up")
    with pytest.raises(ConflictError):
        outbox.put("s", b"down at 3", "id", same=b"down")
    assert await outbox.drain(bus, once=True) == 1
    outbox.put("s", b"up at 4", "id", same=b"up")
    assert outbox.pending() == 0 and bus.got[0][2] == b"up at 1"


async def test_a_message_that_cannot_be_sent_is_kept_with_its_reason_and_does_not_block(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    for i in range(3):
        outbox.put("s", b"x" * (i + 1), f"id{i}")
    bus = RecordingBus(refuse={"id1"})
    assert await outbox.drain(bus, once=True) == 2
    assert bus.ids == ["id0", "id2"]
    (refused,) = outbox.refused()
    assert (refused.msg_id, refused.subject, refused.size) == ("id1", "s", 2)
    assert refused.error == "too large: make it smaller"
    assert outbox.pending() == 0
    assert {r.msg_id: r.acked_at is None for r in outbox.receipts()}["id1"]


async def test_many_threads_put_while_it_drains_and_all_arrive_once(tmp_path):
    outbox, bus = Outbox(tmp_path / "o.db"), RecordingBus()
    draining = asyncio.create_task(outbox.drain(bus))

    def produce(n: int) -> None:
        for i in range(25):
            outbox.put("s", b"x", f"{n}-{i}")

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads) or outbox.pending():
        await asyncio.sleep(0.01)
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    assert sorted(bus.ids) == sorted(f"{n}-{i}" for n in range(8) for i in range(25))
    for n in range(8):
        assert [i for i in bus.ids if i.startswith(f"{n}-")] == [f"{n}-{i}" for i in range(25)]


class CountingClock(SystemClock):
    """Says how often it was asked to wait."""

    def __init__(self) -> None:
        self.waits = asyncio.Semaphore(0)

    async def sleep(self, seconds: float) -> None:
        self.waits.release()
        await super().sleep(seconds)


async def test_one_drainer_at_a_time(tmp_path):
    outbox, bus, late = Outbox(tmp_path / "o.db"), RecordingBus(), RecordingBus()
    bus.clock, late.clock = CountingClock(), CountingClock()
    outbox.put("s", b"x", "before")
    first = asyncio.create_task(outbox.drain(bus))
    async with asyncio.timeout(30):
        await bus.clock.waits.acquire()  # it has sent what there was, and has its turn
        second = asyncio.create_task(Outbox(tmp_path / "o.db").drain(late, once=True))
        for _ in range(3):
            await late.clock.waits.acquire()
        assert bus.ids == ["before"] and not second.done()
        first.cancel()
        assert await second == 0
    await asyncio.gather(first, return_exceptions=True)


def test_a_file_that_is_no_outbox_gives_one_sentence(tmp_path):
    (tmp_path / "o.db").write_bytes(b"not a database, really not one" * 50)
    with pytest.raises(BusError, match="not a usable outbox"):
        Outbox(tmp_path / "o.db")
