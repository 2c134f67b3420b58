"""The plugin's worker: what it does while it cannot store, how it ends, and runs that come twice."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import sleep
from time import time as real_time
from typing import Any

import pytest
from agent_zero_world import recorded

from onward.capture.opt_out import OptOut
from onward.capture.recorder import Recorder
from onward.clock import SystemClock
from onward.errors import BusError
from onward.feedback.intake import FeedbackIntake
from onward.integrations.agent_zero.worker import sampled, service, waiting
from onward.integrations.agent_zero.worker.answers import Answers
from onward.integrations.agent_zero.worker.service import Worker
from onward.integrations.agent_zero.worker.watch import Watch
from onward.redaction import Redactor

OPENED = {
    "op": "open",
    "t": "task-1",
    "root": "chat",
    "chat": "chat",
    "agent": 0,
    "at": 1.0,
    "content": {"user_message": "Count."},
}
CLOSED = {"op": "close", "t": "task-1", "at": 2.0, "status": "success", "result": "Three."}


def test_a_worker_that_cannot_store_ends_with_agent_zero_and_confirms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []
    tries: list[str] = []

    def full(recorder: Recorder, document: dict[str, Any]) -> None:
        tries.append(document["metadata"]["outcome"]["status"])
        if len(tries) > 9:
            pytest.fail("the worker tries forever")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Recorder, "accept", full)
    worker = Worker(tmp_path, tmp_path, heard.append)
    worker.take({"op": "settings"})
    worker.take(OPENED)
    worker.take(CLOSED)
    worker.take({**OPENED, "t": "task-2"})
    worker.end()
    assert tries == ["completed_successfully", "completed_successfully", "abandoned"]
    assert not [one for one in heard if one["op"] == "done"]


class FakeTime:
    """Stands for ``time`` in the worker: seconds pass when a test says so."""

    def __init__(self) -> None:
        self.now = float(round(real_time()))

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def test_on_a_full_disk_one_task_is_tried_at_a_time_and_less_often_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try costs a redaction: two hundred waiting tasks must not be redacted each second."""
    tries: list[float] = []
    stored: list[str] = []
    time, is_full = FakeTime(), True

    def accept(recorder: Recorder, document: dict[str, Any]) -> None:
        tries.append(time.now)
        if is_full:
            raise OSError(28, "No space left on device")
        stored.append(document["trajectory_id"])

    for module in (service, waiting):
        monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(Recorder, "accept", accept)
    worker = Worker(tmp_path, tmp_path, lambda told: None)
    worker.take({"op": "settings"})
    for number in range(200):
        worker.take({**OPENED, "t": f"task-{number}"})
        worker.take({**CLOSED, "t": f"task-{number}"})
    assert len(tries) == 200
    for _ in range(120):
        time.now += 0.5
        worker.tick()
    assert 5 <= len(tries) - 200 <= 12
    is_full = False
    for _ in range(40):
        time.now += 0.5
        worker.tick()
    assert sorted(stored) == sorted(f"task-{number}" for number in range(200))
    worker.end()


def test_a_vote_that_comes_before_its_file_can_be_opened_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []
    is_broken = True
    opened = FeedbackIntake.__init__

    def init(self: FeedbackIntake, *args: Any, **kwargs: Any) -> None:
        if is_broken:
            raise BusError("The file cannot be opened.")
        opened(self, *args, **kwargs)

    time = FakeTime()
    for module in (service, waiting):
        monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(FeedbackIntake, "__init__", init)
    worker = Worker(tmp_path, tmp_path, heard.append)
    worker.take({"op": "settings"})
    worker.take(OPENED)
    worker.take(CLOSED)
    said = {"signal": "thumbs_up", "kind": "explicit", "source": "webui"}
    worker.take({"op": "feedback", "id": "vote-1", "chat": "chat", "message": "", "at": 3.0, "said": said})
    assert [one["as"] for one in heard if one["op"] == "done"] == ["recorded"]
    is_broken = False
    for _ in range(4):
        time.now += 10
        worker.tick()
    assert [one["as"] for one in heard if one["op"] == "done"] == ["recorded", "feedback"]
    worker.end()


def test_votes_wait_while_a_change_of_settings_cannot_open_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch of before has ended; a vote that was given to it would never be answered."""

    def init(self: FeedbackIntake, *args: Any, **kwargs: Any) -> None:
        raise BusError("The file cannot be opened.")

    heard: list[dict[str, Any]] = []
    worker = Worker(tmp_path, tmp_path, heard.append)
    for event in ({"op": "settings"}, OPENED, CLOSED):
        worker.take(event)
    monkeypatch.setattr(FeedbackIntake, "__init__", init)
    worker.take({"op": "settings"})
    said = {"signal": "thumbs_up", "kind": "explicit", "source": "webui"}
    worker.take({"op": "feedback", "id": "vote-1", "chat": "chat", "message": "", "at": 3.0, "said": said})
    assert [one["as"] for one in heard if one["op"] == "done"] == ["recorded"]
    assert len(worker._waiting.take_all()) == 2
    worker.end()


def test_a_run_that_answers_the_same_message_after_a_restart_is_a_trajectory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agent Zero was killed before the first answer, and the user nudged it after the restart."""
    time = FakeTime()
    for module in (service, waiting):
        monkeypatch.setattr(module, "time", time)
    heard: list[dict[str, Any]] = []
    opened = {**OPENED, "t": "6d2f0a0e-0000-5000-8000-000000000001", "at": time.now - 100}
    opened["root"] = opened["t"]
    closed = {**CLOSED, "t": opened["t"]}
    first = Worker(tmp_path, tmp_path, heard.append)
    first.take({"op": "settings"})
    first.take(opened)
    first.end()
    for at in [time.now + 100] * 2:  # the second comes twice: its worker was killed before it confirmed
        worker = Worker(tmp_path, tmp_path, heard.append)
        worker.take({"op": "settings"})
        worker.take({**opened, "at": at})
        worker.take({**closed, "at": at + 50})
        worker.end()
    assert [one["as"] for one in heard if one["op"] == "done"] == ["recorded"] * 3
    stored = recorded(tmp_path)
    assert [one["metadata"]["outcome"]["status"] for one in stored] == ["abandoned", "completed_successfully"]
    assert stored[0]["trajectory_id"] == opened["t"] != stored[1]["trajectory_id"]
    assert stored[1]["session_id"] == f"a0-{stored[1]['trajectory_id']}"


async def test_a_failure_of_the_delivery_is_not_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    async def fail(watch: Watch) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("the connection was closed")

    monkeypatch.setattr(Watch, "_with_bus", fail)
    watch = Watch(
        tmp_path, nats_url="nats://127.0.0.1:9", nats_token=None, gateway_url="", api_key=None,
        redactor=Redactor(), opt_out=OptOut.parse(""), clock=SystemClock(),
    )  # fmt: skip
    try:
        async with asyncio.timeout(30):
            while len(tries) < 3:
                await asyncio.sleep(0.02)
    finally:
        watch.close()


def test_a_task_whose_begin_meets_a_failing_disk_is_recorded_with_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []
    time, failures, ended = FakeTime(), iter(range(2)), Answers.ended

    def fails_twice(self: Answers, chat: str, task: str) -> float | None:
        if next(failures, None) is not None:
            raise sqlite3.OperationalError("database is locked")
        return ended(self, chat, task)

    for module in (service, waiting):
        monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(Answers, "ended", fails_twice)
    worker = Worker(tmp_path, tmp_path, heard.append)
    turn = {"op": "turn", "t": "task-1", "n": 1, "at": 1.5, "new": [], "calls": [], "response": "Three."}
    for event in ({"op": "settings"}, OPENED, turn, CLOSED):
        worker.take(event)
    for _ in range(4):
        time.now += 10
        worker.tick()
    worker.end()
    assert [one["as"] for one in heard if one["op"] == "done"] == ["recorded"]
    (stored,) = recorded(tmp_path)
    assert stored["metadata"]["outcome"] == {"status": "completed_successfully"} and len(stored["turns"]) == 1


@pytest.mark.parametrize("password", ["pa[ss", "pa\u2100ss"], ids=["bracket", "letter"])
def test_with_an_address_of_nats_that_cannot_be_read_work_is_recorded_and_the_reason_shows_no_password(
    password: str, tmp_path: Path
) -> None:
    heard: list[dict[str, Any]] = []
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "secrets.env").write_text(f"ONWARD_NATS_URL=nats://agent:{password}@127.0.0.1:4222\n")
    worker = Worker(tmp_path, tmp_path, heard.append)
    for event in ({"op": "settings"}, OPENED, CLOSED):
        worker.take(event)
    worker.tick()
    worker.end()
    assert [one["as"] for one in heard if one["op"] == "done"] == ["recorded"]
    assert heard[-1]["reason"].startswith("the address of NATS cannot be read: ")
    assert heard[-1]["queued"] == 1 and password not in str(heard) and "ss@" not in str(heard)


def test_an_outbox_that_cannot_be_read_is_reported_and_does_not_end_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []

    def fails(recorder: Recorder) -> None:
        raise BusError("disk I/O error")

    worker = Worker(tmp_path, tmp_path, heard.append)
    worker.take({"op": "settings"})
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "stats", fails)
        worker.tick()
    assert heard[-1] == {"op": "figures", "reason": "the outbox cannot be read: BusError"}
    worker.tick()
    assert heard[-1]["reason"] == ""
    worker.end()


class Dripping(BaseHTTPRequestHandler):
    """A gateway whose answer comes in spaces, so that no read takes long, and has its content at the end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(100):
                self.wfile.write(b" ")
                sleep(0.01)
            self.wfile.write(b'{"records": [{"text": "late"}], "model_id": "late"}')
        except OSError:
            pass

    def log_message(self, format: str, *_: object) -> None:
        pass


@pytest.fixture
def dripping() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_records_of_the_gateway_that_come_too_late_or_are_too_many_are_left_out(
    dripping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sampled.fetch(dripping, None, "task-1") == [{"text": "late"}]
    with monkeypatch.context() as patch:
        patch.setattr(sampled, "TOTAL_SECONDS", 0.1)
        assert sampled.fetch(dripping, None, "task-1") == []
    monkeypatch.setattr(sampled, "MOST_BYTES", 20)
    assert sampled.fetch(dripping, None, "task-1") == []


async def test_a_gateway_whose_answer_comes_too_late_does_not_name_the_model(
    dripping: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("onward.integrations.agent_zero.worker.watch.GATEWAY_SECONDS", 0.2)
    watch = Watch(
        tmp_path, nats_url=None, nats_token=None, gateway_url=dripping, api_key=None,
        redactor=Redactor(), opt_out=OptOut.parse(""), clock=SystemClock(),
    )  # fmt: skip
    try:
        async with asyncio.timeout(30):
            while "the gateway did not tell its model" not in caplog.text and watch.model["id"] is None:
                await asyncio.sleep(0.02)
        assert watch.model["id"] is None
    finally:
        watch.close()
