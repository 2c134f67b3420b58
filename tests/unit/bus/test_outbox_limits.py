"""The outbox at its limits: full disks, forks, large messages, messages that must wait."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from onward.bus import Outbox, PublishRejectedError
from onward.bus import outbox as module
from onward.bus.outbox import Waiting
from onward.clock import ManualClock, SystemClock
from onward.errors import BusError, ObjectError, OutboxFullError


class RecordingBus:
    def __init__(self, clock=None) -> None:
        self.clock = clock or SystemClock()
        self.ids: list[str] = []

    async def publish(self, subject, data, *, msg_id, headers=None, deadline=None):
        self.ids.append(msg_id)


def ids(path) -> list[str]:
    return [receipt.msg_id for receipt in Outbox(path).receipts()]


def test_a_full_disk_is_an_error_and_keeps_what_is_there(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    outbox.put("s", b"x" * 1000, "first")
    pages = outbox._writer.execute("PRAGMA page_count").fetchone()[0]
    outbox._writer.execute(f"PRAGMA max_page_count={pages + 3}")
    with pytest.raises(OutboxFullError, match=r"disk under .* is full: make room; nothing was dropped"):
        outbox.put("s", b"x" * 200_000, "too-much")
    assert ids(tmp_path / "o.db") == ["first"] and outbox.pending() == 1
    outbox._writer.execute("PRAGMA max_page_count=1000000")
    outbox.put("s", b"x" * 200_000, "again")
    assert ids(tmp_path / "o.db") == ["first", "again"]


FULL_DISK = """
import resource, signal, sys
from onward.bus.outbox import Outbox
from onward.errors import OutboxFullError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
outbox = Outbox(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
accepted = []
for i in range(100):
    try:
        outbox.put("s", b"x" * 10_000, f"id{i}")
        accepted.append(f"id{i}")
    except OutboxFullError:
        print("full", *accepted)
        break
"""


def test_a_file_that_may_not_grow_is_a_full_disk_and_every_accepted_message_is_there(tmp_path):
    path = tmp_path / "o.db"
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, timeout=60
    )
    word, *accepted = run.stdout.split()
    assert word == "full" and 5 < len(accepted) < 100, run.stderr
    assert ids(path) == accepted
    bus = RecordingBus()
    asyncio.run(Outbox(path).drain(bus, once=True))  # type: ignore[arg-type]
    assert bus.ids == accepted


DRAIN_ON_A_FULL_DISK = """
import asyncio, os, resource, signal, sys
from onward.bus.outbox import Outbox
from onward.clock import SystemClock
from onward.errors import OutboxFullError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
class Bus:
    clock = SystemClock()
    async def publish(self, *_, **__): pass
outbox = Outbox(sys.argv[1])
i = 0
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
try:
    while True:
        outbox.put("s", b"x" * 10_000, f"id{i}")
        i += 1
except OutboxFullError:
    pass
print(i, asyncio.run(outbox.drain(Bus(), once=True)), outbox.pending())
outbox.put("s", b"x" * 10_000, "after")
"""


def test_a_full_disk_can_still_be_emptied_and_then_takes_messages_again(tmp_path):
    command = [sys.executable, "-c", DRAIN_ON_A_FULL_DISK, str(tmp_path / "o.db")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    accepted, sent, pending = map(int, run.stdout.split())
    assert accepted == sent > 5 and pending == 0


def test_a_path_that_cannot_be_made_gives_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BusError, match="cannot be made"):
        Outbox(tmp_path / "file" / "o.db")


def test_a_closed_outbox_says_so(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    outbox.close()
    with pytest.raises(BusError, match="is closed"):
        outbox.put("s", b"x", "id")


def test_a_forked_child_and_its_parent_write_to_the_same_file_safely(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    outbox.put("s", b"x", "before")
    child = os.fork()
    if child == 0:
        try:
            for i in range(20):
                outbox.put("s", b"x", f"child{i}")
            os._exit(0)
        except BaseException:
            os._exit(1)
    for i in range(20):
        outbox.put("s", b"x", f"parent{i}")
    outbox.close()  # the last connection of this process: SQLite may remove the log only if it is nobody's
    assert os.waitpid(child, 0)[1] == 0
    expected = {"before", *(f"{who}{i}" for who in ("child", "parent") for i in range(20))}
    assert set(ids(tmp_path / "o.db")) == expected
    with sqlite3.connect(tmp_path / "o.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_forked_child_does_not_keep_its_parents_turn_as_the_drainer(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    lock = outbox.open_turn()
    assert outbox.take_turn(lock)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        outbox.end_turn(lock)
        other = Outbox(tmp_path / "o.db")
        assert other.take_turn(other.open_turn())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_drainer_holds_only_so_many_bytes(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    sizes = [module.BATCH_BYTES // 2, module.BATCH_BYTES // 2, 1000, module.BATCH_BYTES * 2, 1000]
    for i, size in enumerate(sizes):
        outbox.put("s", b"x" * size, f"id{i}")
    taken = []
    while batch := outbox.next_batch():
        taken.append([message.msg_id for message in batch])
        outbox.remove([message.seq for message in batch])
    assert taken == [["id0", "id1"], ["id2"], ["id3"], ["id4"]]


def test_a_batch_has_at_most_64_messages(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    for i in range(70):
        outbox.put("s", b"x", f"id{i}")
    assert len(outbox.next_batch()) == 64
    skipped = {message.seq for message in outbox.next_batch()}
    assert [message.msg_id for message in outbox.next_batch(skipped)] == [f"id{i}" for i in range(64, 70)]


async def test_what_was_refused_can_wait_again(tmp_path):
    outbox, bus, allowed = Outbox(tmp_path / "o.db"), RecordingBus(), []

    async def send(message: Waiting) -> None:
        if not allowed:
            raise PublishRejectedError("too large")
        await bus.publish("s", b"", msg_id=message.msg_id)

    outbox.put("s", b"x", "id")
    assert await outbox.drain(bus, once=True, send=send) == 0  # type: ignore[arg-type]
    assert len(outbox.refused()) == 1
    allowed.append(True)
    assert outbox.retry_refused() == 1
    assert await outbox.drain(bus, once=True, send=send) == 1  # type: ignore[arg-type]
    assert bus.ids == ["id"] and outbox.refused() == []


async def test_a_message_that_waits_for_the_object_store_lets_others_pass_and_follows(tmp_path):
    clock = ManualClock()
    outbox, bus, tries = Outbox(tmp_path / "o.db"), RecordingBus(clock), []

    async def send(message: Waiting) -> None:
        if message.msg_id == "large":
            tries.append(clock.monotonic())
            if len(tries) < 3:
                raise ObjectError("the store is away")
        await bus.publish("s", b"", msg_id=message.msg_id)

    for name in ("a", "large", "b"):
        outbox.put("s", b"x", name)
    draining = asyncio.create_task(outbox.drain(bus, once=True, send=send))  # type: ignore[arg-type]
    while not draining.done():
        await clock.advance(0.25)
        await asyncio.sleep(0.001)
    assert await draining == 3
    assert bus.ids == ["a", "b", "large"]
    gaps = [late - early for early, late in itertools.pairwise(tries)]
    assert len(gaps) == 2 and min(gaps) >= 5.0


async def test_old_receipts_are_forgotten_and_those_of_waiting_messages_never(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    for name in ("old", "new", "waiting"):
        outbox.put("s", b"x", name)
    outbox.remove([message.seq for message in outbox.next_batch()[:2]])
    long_ago = time.time() - module.RECEIPT_SECONDS - 10
    outbox._writer.execute("UPDATE receipts SET acked_at = ? WHERE msg_id = 'old'", (long_ago,))
    outbox._writer.execute("UPDATE receipts SET accepted_at = 0 WHERE msg_id = 'waiting'")
    outbox.forget_old_receipts()
    assert ids(tmp_path / "o.db") == ["new", "waiting"]


async def test_after_an_outage_the_file_gives_its_room_back(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    for i in range(40):
        outbox.put("s", b"x" * 1_000_000, f"id{i}")
    outbox._remover.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = (tmp_path / "o.db").stat().st_size
    await outbox.drain(RecordingBus(), once=True)  # type: ignore[arg-type]
    for _ in range(20):
        outbox.give_room_back()
    outbox._remover.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert before > 40_000_000 > 12_000_000 > (tmp_path / "o.db").stat().st_size


def test_an_outbox_of_an_older_version_goes_on(tmp_path):
    """A file made before there was an index of what waits."""
    outbox = Outbox(tmp_path / "o.db")
    outbox.put("s", b"x", "id")
    outbox.close()
    with sqlite3.connect(tmp_path / "o.db") as connection:
        connection.execute("DROP INDEX waiting")
    again = Outbox(tmp_path / "o.db")
    assert (again.pending(), again.waiting_bytes()) == (1, 1 + module.OVERHEAD)
    plan = again._writer.execute(
        "EXPLAIN QUERY PLAN SELECT count(*) FROM queue WHERE error IS NULL"
    ).fetchall()
    assert "waiting" in str(plan)
