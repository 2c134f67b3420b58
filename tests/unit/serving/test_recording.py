"""What stands between answers and disk: nothing accepted is lost, whatever the files do, and nobody hears."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from datetime import UTC, datetime
from typing import Any

import pytest

from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.capture.opt_out import OptOut
from onward.clock import ManualClock, SystemClock
from onward.config import load
from onward.errors import BusError, OutboxFullError
from onward.redaction import Redactor
from onward.serving.recording.recording import RESTART, Journal, Recording, Work, journal_of, outbox_of
from onward.serving.recording.write_behind import WriteBehind
from onward.warehouse import Objects

NOW = datetime(2026, 5, 4, tzinfo=UTC)
OUTBOX, JOURNAL = outbox_of("gateway"), journal_of("gateway")


def document(number: int = 1, text: str = "hello") -> dict[str, Any]:
    return {
        "trajectory_id": f"00000000-0000-4000-8000-{number:012d}",
        "session_id": f"s{number}",
        "agent_id": "agent",
        "start_timestamp": "2026-01-01T00:00:00.000Z",
        "end_timestamp": "2026-01-01T00:01:00.000Z",
        "turns": [
            {
                "turn_id": 1,
                "timestamp": "2026-01-01T00:00:01.000Z",
                "observation": {"type": "user_message", "content": text},
                "action": {"type": "response", "raw_response": "done"},
                "result": {"success": True},
            }
        ],
        "task_context": {"task_id": "t", "instructions": "Say hello", "domain": "general"},
        "metadata": {"model": "m"},
    }


class Files:
    """A recording in ``folder``; ``errors`` are what it was told of."""

    def __init__(self, folder) -> None:
        self.folder, self.errors = folder, []
        self.quarantine = Quarantine(
            Objects.open(folder / "objects"),
            QuarantineKeys.from_settings(load(environ={}, overrides={"data_dir": str(folder)})),
            ManualClock(NOW),
        )

    def open(self, name: str = "gateway") -> Recording:
        return Recording(
            self.folder,
            name,
            clock=SystemClock(),
            quarantine=self.quarantine,
            redactor=Redactor(),
            opt_out=OptOut(),
            on_error=lambda step, error: self.errors.append((step, type(error))),
            on_held=lambda reason: None,
        )

    def journal(self) -> list[str]:
        journal = Journal(self.folder / JOURNAL)
        try:
            return [item["session_id"] for item in journal.read()]
        finally:
            journal.close()


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path)


async def behind(files: Files, changed=list) -> WriteBehind:
    writing = WriteBehind(files.open, changed, ManualClock(NOW))
    await writing.start()
    return writing


def accepted(recording: Recording) -> list[str]:
    return [receipt.msg_id[-1] for receipt in recording._outbox.receipts()]


async def test_an_outbox_damaged_while_it_is_open_loses_nothing_and_ends_nobody(files):
    writing = await behind(files)
    writing.put_trajectory(document(1))
    await writing.write()
    outbox = writing._files._outbox
    outbox._file.remover.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = (files.folder / OUTBOX).read_bytes()
    (files.folder / OUTBOX).write_bytes(os.urandom(len(whole)))
    for number in (2, 3):
        writing.put_trajectory(document(number))
    await writing.write()
    assert ("outbox", BusError) in files.errors
    names = [document(number)["trajectory_id"] for number in (1, 2, 3)]
    assert [writing.are_recorded([name]) for name in names] == [True, False, False]
    assert files.journal() == ["s2", "s3"]
    (files.folder / OUTBOX).write_bytes(whole)
    outbox._file._disconnect()  # what SQLite remembers of the noise
    await writing.write()
    assert writing.are_recorded(names) and accepted(writing._files) == ["1", "2", "3"]
    assert files.journal() == []
    await writing.stop()


async def test_a_defect_in_the_writing_puts_everything_back_in_order(files, monkeypatch):
    writing = await behind(files)

    def broken(self, work: Work) -> Work:
        raise RuntimeError("defect")

    with monkeypatch.context() as patch:
        patch.setattr(Recording, "write", broken)
        for number in range(3):
            writing.put_trajectory(document(number))
        await writing.write()
        assert not writing.are_recorded([document(1)["trajectory_id"]])
    await writing.write()
    assert accepted(writing._files) == ["0", "1", "2"]
    await writing.stop()


async def test_what_is_being_written_is_not_called_recorded(files, monkeypatch):
    writing, loop = await behind(files), asyncio.get_running_loop()
    seen, name, real = asyncio.Event(), document()["trajectory_id"], Recording.write
    said = []

    def slow(self, work: Work) -> Work:
        said.append(writing.are_recorded([name]))
        loop.call_soon_threadsafe(seen.set)
        return real(self, work)

    monkeypatch.setattr(Recording, "write", slow)
    writing.put_trajectory(document())
    await writing.write()
    assert said == [False] and seen.is_set() and writing.are_recorded([name])
    await writing.stop()


async def test_a_task_recorded_long_ago_is_still_called_recorded(files, monkeypatch):
    """A client may send its close again after any number of others."""
    writing = await behind(files)
    monkeypatch.setattr(Recording, "write", lambda self, work: Work())
    for number in range(10_200):
        writing.put_trajectory(document(number))
    await writing.write()
    assert writing.are_recorded([document(0)["trajectory_id"]])
    await writing.stop()


async def test_delivery_goes_on_after_any_error(files, monkeypatch):
    writing, tries = await behind(files), []
    over = asyncio.Event()

    async def deliver(self, bus) -> None:
        tries.append(bus)
        if len(tries) == 1:
            raise sqlite3.OperationalError("database or disk is full")
        if len(tries) == 2:
            raise RuntimeError("defect")
        over.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Recording, "deliver", deliver)
    delivering = asyncio.create_task(writing.deliver("bus"))  # type: ignore[arg-type]
    while not over.is_set():
        await writing._clock.advance(1.0)  # type: ignore[attr-defined]
    assert len(tries) == 3 and not delivering.done()
    delivering.cancel()
    await asyncio.gather(delivering, return_exceptions=True)
    await writing.stop()


async def test_a_trajectory_that_cannot_be_held_for_an_unknown_reason_waits(files, monkeypatch):
    writing = await behind(files)

    def fault(*_: object, **__: object) -> None:
        raise RuntimeError("defect")

    name = document()["trajectory_id"]
    with monkeypatch.context() as patch:
        patch.setattr(writing._files._preparer, "prepare", fault)
        patch.setattr(files.quarantine, "hold_trajectory", fault)
        writing.put_trajectory(document())
        await writing.write()
        assert ("hold", RuntimeError) in files.errors
        assert not writing.are_recorded([name]) and files.journal() == ["s1"]
    await writing.write()
    assert writing.are_recorded([name]) and files.journal() == []
    assert accepted(writing._files) == ["1"]
    await writing.stop()


async def test_what_is_held_is_not_overwritten_by_what_the_journal_has_of_it(files, monkeypatch):
    secret = "ghp_" + "aB3dE5fG7hJ9" * 3
    raw = document(text=f"use {secret}")

    def fault(*_: object) -> None:
        raise RuntimeError("no contract for this")

    async def record(*ended: dict[str, Any]) -> None:
        writing = await behind(files)
        monkeypatch.setattr(writing._files._preparer, "encode", fault)
        for item in ended:
            writing.put_trajectory(item)
        await writing.write()
        assert files.journal() == []
        await writing.stop()

    first = files.open()
    first.write(Work(open=[raw]))
    assert secret not in json.dumps(first.left_open()) and files.journal() == ["s1"]
    # killed after it was held, before the journal knew
    monkeypatch.setattr(first._preparer, "encode", fault)
    monkeypatch.setattr(first._journal, "write", fault)
    await asyncio.to_thread(first.write, Work(trajectories=[raw]))
    first.close()
    assert files.journal() == ["s1"]
    await record()
    (held,) = await files.quarantine.list_held()
    _, message = await files.quarantine.open(held.held_id)
    assert json.loads(message.data) == raw


def test_what_the_journal_cannot_take_it_gets_when_it_can(files, monkeypatch):
    recording = files.open()

    def full(*_: object) -> None:
        raise BusError("full")

    recording.write(Work(open=[document(1), document(2)]))
    with monkeypatch.context() as patch:
        patch.setattr(recording._journal, "write", full)
        recording.write(Work(open=[document(2, "changed"), document(3)], trajectories=[document(1)]))
        assert recording.has_unwritten and files.errors == [("journal", BusError)]
    assert files.journal() == ["s1", "s2"]
    recording.write(Work(trajectories=[document(3)]))
    assert not recording.has_unwritten
    (left,) = recording.left_open()
    assert left["turns"][0]["observation"]["content"] == "changed"
    recording.close()


def left_by_a_dead_gateway(files: Files) -> None:
    """One trajectory and one vote wait to be published, one task is open, and one trajectory was published
    but its task is still in the journal."""
    dead = files.open("gateway-2")
    dead.write(Work(trajectories=[document(1), document(4)], open=[document(2)]))
    dead._outbox.put("agent.rl.feedback.v1", b"{}", "vote")
    (first,) = [one for one in dead._outbox.next_batch() if one.msg_id == document(4)["trajectory_id"]]
    dead._outbox.remove([first.seq])
    dead._journal.write({document(4)["trajectory_id"]: document(4)}, [])
    dead.close()


def test_what_a_dead_gateway_left_is_taken_over_once(files):
    left_by_a_dead_gateway(files)
    living = files.open()
    assert sum(living.adopt("gateway-2")) == 4
    names = [receipt.msg_id for receipt in living._outbox.receipts()]
    assert sorted(names) == sorted([document(1)["trajectory_id"], "vote", document(2)["trajectory_id"]])
    assert sum(living.adopt("gateway-2")) == 0
    living.close()
    dead = files.open("gateway-2")
    assert dead.left_open() == [] and dead._outbox.pending() == 0
    dead.close()


def test_what_does_not_fit_stays_with_the_dead_gateway_and_is_taken_later(files, monkeypatch):
    left_by_a_dead_gateway(files)
    living = files.open()
    monkeypatch.setattr(living._outbox, "max_bytes", 0)
    with pytest.raises(OutboxFullError):
        list(living.adopt("gateway-2"))
    monkeypatch.undo()
    assert sum(living.adopt("gateway-2")) == 4
    living.close()


async def test_the_living_gateway_writes_its_own_between_two_batches_of_a_dead_one(files, monkeypatch):
    dead = files.open("gateway-2")
    for number in range(130):  # three batches of an outbox
        dead._outbox.put("agent.rl.feedback.v1", b"{}", f"vote-{number:03d}")
    dead.close()
    living = await behind(files)
    taken: list[int] = []
    put_all = living._files._put_all

    def put_batch(messages: list[Any]) -> None:
        put_all(messages)
        taken.append(len(messages))

    monkeypatch.setattr(living._files, "_put_all", put_batch)
    adopting = asyncio.create_task(living.adopt("gateway-2"))
    while not taken:
        await asyncio.sleep(0)
    living.put_trajectory(document(1))
    await asyncio.create_task(living.write())
    assert sum(taken) < 130
    await adopting
    assert sum(taken) == 130
    names = [receipt.msg_id for receipt in living._files._outbox.receipts()]
    assert names.index(document(1)["trajectory_id"]) < 130 and len(names) == 131
    await living.stop()


async def test_a_gateway_that_stops_leaves_the_rest_of_a_dead_one_for_the_next(files, monkeypatch):
    left_by_a_dead_gateway(files)
    living = await behind(files)
    adopting = asyncio.create_task(living.adopt("gateway-2"))
    await asyncio.sleep(0)
    adopting.cancel()
    await asyncio.wait({adopting})
    assert adopting.cancelled()
    await living.stop()
    later = await behind(files)
    await later.adopt("gateway-2")
    names = {receipt.msg_id for receipt in later._files._outbox.receipts()}
    assert {document(1)["trajectory_id"], "vote", document(2)["trajectory_id"]} <= names
    await later.stop()


CLOSED = {"outcome": {"status": "failed"}, "capture": {"source": "gateway", "closed": "close"}}


def test_a_task_from_the_journal_never_replaces_the_one_that_ended(files):
    ended = document(1)
    ended["metadata"] |= {
        "outcome": {"status": "failed"},
        "capture": {"source": "gateway", "closed": "close"},
    }
    older = document(1)
    older["metadata"]["capture"] = {"source": "gateway", "closed": RESTART}
    recording = files.open()
    assert not recording.write(Work(trajectories=[ended])) and not recording.write(Work(trajectories=[older]))
    assert accepted(recording) == ["1"]
    recording.close()


def test_an_ended_task_whose_id_has_another_content_in_the_outbox_is_published_too(files):
    older, ended = document(1), document(1)
    older["metadata"]["capture"] = {"source": "gateway", "closed": RESTART}
    ended["metadata"] |= {
        "outcome": {"status": "failed"},
        "capture": {"source": "gateway", "closed": "close"},
    }
    recording = files.open()
    for item in (older, ended, ended):
        assert not recording.write(Work(trajectories=[item]))
    bodies = [json.loads(waiting.body) for waiting in recording._outbox.next_batch()]
    assert [body["metadata"].get("outcome") for body in bodies] == [None, {"status": "failed"}]
    recording.close()


def test_what_the_journal_holds_is_not_redacted_again_and_is_published_as_it_ended(files, monkeypatch):
    secret = "ghp_" + "aB3dE5fG7hJ9" * 3
    open_task, longer = document(1, f"use {secret}"), document(2, f"use {secret}")
    recording = files.open()
    recording.write(Work(open=[open_task, longer]))
    redacted, real = [], recording._redactor.trajectory
    monkeypatch.setattr(
        Redactor, "trajectory", lambda _, one: redacted.append(one["trajectory_id"]) or real(one)
    )
    ended = {**open_task, "metadata": open_task["metadata"] | CLOSED}
    longer["turns"][0]["result"] = {"success": True, "output": f"and {secret}"}
    assert not recording.write(Work(trajectories=[ended, longer]))
    assert redacted == [longer["trajectory_id"]], "only what changed since"
    one, two = (waiting.body.decode() for waiting in recording._outbox.next_batch())
    assert secret not in one + two and two.count("<GITHUB_TOKEN:1>") == 2
    assert json.loads(one)["metadata"] == {"model": "m", **CLOSED}
    recording.close()


def test_of_many_trajectories_one_that_cannot_be_written_holds_up_no_other(files):
    recording = files.open()
    recording._outbox.put("agent.rl.trajectory.v1", b"x" * 900, "full")
    recording._outbox.max_bytes = 5000
    big = document(2, "x" * 5000)
    later = recording.write(Work(trajectories=[document(1), big, document(3)]))
    assert [one["session_id"] for one in later.trajectories] == ["s2"] and files.journal() == ["s2"]
    assert accepted(recording) == ["l", "1", "3"]
    recording.close()
