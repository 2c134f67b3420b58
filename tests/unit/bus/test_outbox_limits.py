"""The outbox at its limits: full disks, forks, large messages, messages that must wait."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from onward.bus import Outbox, PublishRejectedError
from onward.bus import draining as draining_module
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
    pages = outbox._file.writer.execute("PRAGMA page_count").fetchone()[0]
    outbox._file.writer.execute(f"PRAGMA max_page_count={pages + 3}")
    with pytest.raises(OutboxFullError, match=r"disk under .* is full: make room; nothing was dropped"):
        outbox.put("s", b"x" * 200_000, "too-much")
    assert ids(tmp_path / "o.db") == ["first"] and outbox.pending() == 1
    outbox._file.writer.execute("PRAGMA max_page_count=1000000")
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
        turn, until = other.open_turn(), time.monotonic() + 30
        while not (taken := other.take_turn(turn)) and time.monotonic() < until:
            time.sleep(0.01)  # the child lets go as soon as it runs, which the parent does not wait for
        assert taken
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
    outbox._file.writer.execute("UPDATE receipts SET acked_at = ? WHERE msg_id = 'old'", (long_ago,))
    outbox._file.writer.execute("UPDATE receipts SET accepted_at = 0 WHERE msg_id = 'waiting'")
    outbox.forget_old_receipts()
    assert ids(tmp_path / "o.db") == ["new", "waiting"]


async def test_after_an_outage_the_file_gives_its_room_back(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    for i in range(40):
        outbox.put("s", b"x" * 1_000_000, f"id{i}")
    outbox._file.remover.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = (tmp_path / "o.db").stat().st_size
    await outbox.drain(RecordingBus(), once=True)  # type: ignore[arg-type]
    for _ in range(20):
        outbox.reclaim_space()
    outbox._file.remover.execute("PRAGMA wal_checkpoint(TRUNCATE)")
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
    plan = again._file.writer.execute(
        "EXPLAIN QUERY PLAN SELECT count(*) FROM queue WHERE error IS NULL"
    ).fetchall()
    assert "waiting" in str(plan)


def damage(path) -> None:
    """As a broken disk does: the file's pages are noise, under whoever has it open."""
    path.write_bytes(os.urandom(path.stat().st_size))


def test_a_file_damaged_while_it_is_open_is_one_error_in_every_method(tmp_path):
    outbox = Outbox(tmp_path / "o.db")
    outbox.put("s", b"x" * 10_000, "id")
    outbox._file.remover.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(tmp_path / "o.db")
    for use in (
        lambda: outbox.put("s", b"y", "next"),
        outbox.pending,
        outbox.waiting_bytes,
        outbox.refused,
        outbox.retry_refused,
        lambda: list(outbox.receipts()),
        outbox.next_batch,
        lambda: outbox.remove([1]),
        lambda: outbox.mark_refused(1, "no"),
        outbox.forget_old_receipts,
    ):
        with pytest.raises(BusError, match=r"The outbox .* cannot be used"):
            use()


class FileWithout:
    """The remover's connection, on a disk where nothing can be written while ``full`` is true."""

    def __init__(self, file) -> None:
        self._file, self.full, self.tries = file, True, 0

    def __getattr__(self, name):
        return getattr(self._file, name)

    def execute(self, statement, *given):
        if self.full and statement.startswith(("BEGIN", "PRAGMA wal_checkpoint")):
            self.tries += statement.startswith("BEGIN")
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._file.execute(statement, *given)


async def test_what_cannot_be_removed_is_published_once_and_removed_when_there_is_room(tmp_path):
    outbox, clock = Outbox(tmp_path / "o.db"), ManualClock()
    bus = RecordingBus(clock)
    outbox.put("s", b"x", "id")
    disk = FileWithout(outbox._file.remover)
    outbox._file._connections["NORMAL"] = disk  # type: ignore[assignment]
    draining = asyncio.create_task(outbox.drain(bus, once=True))  # type: ignore[arg-type]
    while disk.tries < 6:  # two with each removal
        await clock.advance(1.0)
        await asyncio.sleep(0.001)
    assert bus.ids == ["id"] and outbox.pending() == 1
    disk.full = False
    while not draining.done():
        await clock.advance(1.0)
        await asyncio.sleep(0.001)
    assert await draining == 1
    assert bus.ids == ["id"] and outbox.pending() == 0


async def test_a_drain_that_is_cancelled_on_a_full_disk_ends_as_cancelled(tmp_path):
    outbox, sending = Outbox(tmp_path / "o.db"), asyncio.Event()
    sent = []

    async def send(message: Waiting) -> None:
        if sent:
            sending.set()
            await asyncio.Event().wait()
        sent.append(message.msg_id)

    for name in ("a", "b"):
        outbox.put("s", b"x", name)
    outbox._file._connections["NORMAL"] = FileWithout(outbox._file.remover)  # type: ignore[assignment]
    draining = asyncio.create_task(outbox.drain(RecordingBus(), send=send))  # type: ignore[arg-type]
    await sending.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert outbox.pending() == 2


async def test_a_drain_uses_the_file_in_threads_only(tmp_path, monkeypatch):
    outbox, bus, threads = Outbox(tmp_path / "o.db"), RecordingBus(), {}
    for name in ("next_batch", "remove", "mark_refused", "forget_old_receipts", "reclaim_space"):

        def used(*given, name=name, real=getattr(outbox, name)):
            threads.setdefault(name, set()).add(threading.current_thread())
            return real(*given)

        monkeypatch.setattr(outbox, name, used)

    async def send(message: Waiting) -> None:
        if message.msg_id == "refused":
            raise PublishRejectedError("too large")

    outbox.put("s", b"x", "id")
    outbox.put("s", b"x", "refused")
    draining = asyncio.create_task(outbox.drain(bus, send=send))  # type: ignore[arg-type]
    while len(threads) < 5:
        await asyncio.sleep(0.01)
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    assert threading.current_thread() not in set.union(*threads.values())


async def test_old_receipts_are_forgotten_while_it_drains_in_slices_that_an_index_finds(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "RECEIPTS_AT_A_TIME", 3)
    outbox, clock = Outbox(tmp_path / "o.db"), ManualClock()
    draining = asyncio.create_task(outbox.drain(RecordingBus(clock)))  # type: ignore[arg-type]
    for i in range(10):
        outbox.put("s", b"x", f"id{i}")
    while outbox.pending():
        await clock.advance(0.25)
        await asyncio.sleep(0.001)
    outbox._file.writer.execute("UPDATE receipts SET acked_at = 1.0 WHERE seq <= 8")
    assert [outbox.forget_old_receipts(), len(list(outbox.receipts()))] == [3, 7]
    while len(list(outbox.receipts())) > 2:
        await clock.advance(600.0)
        await asyncio.sleep(0.001)
    assert clock.monotonic() >= draining_module.FORGET_SECONDS
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)
    plan = outbox._file.writer.execute(
        "EXPLAIN QUERY PLAN SELECT seq FROM receipts WHERE acked_at < ? ORDER BY acked_at LIMIT 3", (1.0,)
    ).fetchall()
    assert "acknowledged" in str(plan) and "SCAN" not in str(plan)
