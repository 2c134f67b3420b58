"""Tasks that end the worker each time: which one is blamed, what is sealed. The worker's log is bounded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from agent_zero_feed import CLOSED, OPENED, TURN, FakeChild, feed_with_fakes, until
from agent_zero_world import recorded

from onward.bus.outbox import Outbox
from onward.contracts import Trajectory, validate
from onward.errors import RedactionError
from onward.integrations.agent_zero.plugin.helpers import log
from onward.integrations.agent_zero.plugin.helpers.aside import ATTEMPTS, Aside, Working
from onward.integrations.agent_zero.plugin.helpers.feed import Feed
from onward.integrations.agent_zero.plugin.helpers.lines import line
from onward.integrations.agent_zero.worker.service import Worker

NOW = datetime(2026, 3, 28, tzinfo=UTC)


def test_only_the_task_that_the_worker_worked_on_is_blamed_for_its_end(tmp_path: Path) -> None:
    working, aside = Working(tmp_path), Aside(tmp_path)
    assert aside.blame(-9) == ""  # it was idle
    for _ in range(ATTEMPTS - 1):
        working.note("task-1")
        assert aside.blame(-9) == ""
    working.note("task-2")
    assert aside.blame(1) == ""
    working.note("task-1")
    assert aside.blame(0) == "" and aside.blame(None) == ""  # it left in order
    assert aside.blame(-11) == "task-1"
    assert aside.reason("task-1") == "the worker ended with signal 11 on it 3 times"
    assert aside.reason("task-2") == ""


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    with feed_with_fakes(tmp_path, monkeypatch) as made:
        yield made


def die_on(task: str, folder: Path, times: int) -> None:
    """Ends the worker in the middle of ``task``, again and again."""
    for _ in range(times):
        child = FakeChild.made[-1]
        until(lambda child=child: any(one.get("t") == task for one in child.lines))
        (folder / "working").write_text(task)
        child.die(-9)
        until(lambda child=child: FakeChild.made[-1] is not child)


def test_a_task_in_progress_is_sealed_as_far_as_it_is_and_again_with_its_end(
    feed: Any, tmp_path: Path
) -> None:
    feed.put(dict(OPENED))
    feed.put({**OPENED, "t": "task-2"})
    feed.put(dict(TURN))
    die_on("task-1", tmp_path, ATTEMPTS)
    child = FakeChild.made[-1]
    until(lambda: len(child.lines) >= 3)
    assert child.lines[0]["unfinished"] == ["task-1"]
    sealed = [one for one in child.lines if one["op"] == "aside"]
    assert [(one["id"], one["whole"], len(one["lines"])) for one in sealed] == [("task-1", False, 2)]
    assert {one["t"] for one in child.lines if one["op"] == "open"} == {"task-2"}  # the other one goes on
    feed.put({**CLOSED, "t": "task-2"})
    feed.put(dict(CLOSED))
    until(lambda: child.lines[-1]["op"] == "aside" and child.lines[-1]["whole"])
    assert [json.loads(line)["op"] for line in child.lines[-1]["lines"]] == ["open", "turn", "close"]
    assert feed.waiting == 2
    child.say(op="done", id="task-1", **{"as": "set_aside"})
    child.say(op="done", id="task-2", **{"as": "recorded"})
    until(lambda: feed.waiting == 0)
    assert (feed.counts["set_aside"], feed.counts["recorded"]) == (1, 1)


def test_a_task_that_even_ends_the_worker_unread_stays_in_memory_and_holds_up_nothing(
    feed: Any, tmp_path: Path
) -> None:
    feed.put(dict(OPENED))
    feed.put(dict(CLOSED))
    die_on("task-1", tmp_path, ATTEMPTS)
    for _ in range(ATTEMPTS):
        child = FakeChild.made[-1]
        until(lambda child=child: any(one["op"] == "aside" for one in child.lines))
        (tmp_path / "working").write_text("task-1")
        child.die(-9)
        until(lambda child=child: FakeChild.made[-1] is not child)
    last = FakeChild.made[-1]
    feed.put({**OPENED, "t": "task-2"})
    until(lambda: any(one.get("t") == "task-2" for one in last.lines))
    assert not [one for one in last.lines if one["op"] == "aside"]
    assert feed.waiting == 2


def test_a_task_that_the_worker_cannot_handle_is_sealed_and_not_lost(feed: Any) -> None:
    feed.put(dict(OPENED))
    until(lambda: FakeChild.made and any(one.get("t") == "task-1" for one in FakeChild.made[-1].lines))
    child = FakeChild.made[-1]
    child.say(op="broken", id="task-1", reason="the worker could not handle it (KeyError)")
    child.say(op="broken", id="task-0", reason="one that was tried again")
    until(lambda: child.lines[-1]["op"] == "aside")
    assert (child.lines[-1]["whole"], feed.waiting) == (False, 1)
    feed.put(dict(TURN))
    feed.put(dict(CLOSED))
    until(lambda: child.lines[-1].get("whole"))
    assert [json.loads(line)["op"] for line in child.lines[-1]["lines"]] == ["open", "turn", "close"]
    assert child.lines[-1]["reason"] == "the worker could not handle it (KeyError)"
    assert not [one for one in child.lines if one["op"] in ("turn", "close")]
    child.say(op="done", id="task-1", **{"as": "failed"})  # an end that was in the pipe before
    child.say(op="done", id="task-1", **{"as": "set_aside"})
    until(lambda: feed.waiting == 0)
    assert feed.counts["failed"] == 0 and feed.counts["set_aside"] == 1


@pytest.mark.parametrize("error", [KeyError("n"), RedactionError("poppies")], ids=["defect", "redaction"])
def test_an_error_on_a_task_is_reported_to_the_host_which_has_its_lines(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []
    worker = Worker(tmp_path, tmp_path, heard.append)
    worker.take({"op": "settings"})

    def fails(*_: Any) -> None:
        raise error

    for event in (OPENED, TURN):
        worker.take(event)
    with monkeypatch.context() as patch:
        patch.setattr(worker._recorder, "accept", fails)
        worker.take(CLOSED)
        reason = f"the worker could not handle it ({type(error).__name__})"
        assert heard[-1] == {"op": "broken", "id": "task-1", "reason": reason}
        told = {"op": "aside", "id": "task-1", "reason": reason, "whole": True}
        worker.take({**told, "lines": lines_of(OPENED, TURN, CLOSED)})
        worker._failed.ask_again()
        worker.tick()  # it fails once more, and stays sealed
    assert worker._failed.count() == 1 and recorded(tmp_path) == []
    worker._failed.ask_again()
    worker.tick()
    assert worker._failed.count() == 0
    worker.end()
    assert len(recorded(tmp_path)) == 1
    assert not any(one.get("as") == "failed" for one in heard)


def lines_of(*events: dict[str, Any]) -> list[str]:
    return [json.dumps(event) for event in events]


def test_what_is_put_aside_is_unread_and_encrypted_until_it_is_tried_again(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    worker = Worker(tmp_path, tmp_path, heard.append)
    worker.take({"op": "settings"})
    told = {"op": "aside", "id": "task-1", "reason": "it ended the worker", "whole": True}
    worker.take({**told, "lines": lines_of(OPENED, TURN, CLOSED)})
    assert [one for one in heard if one["op"] == "done"] == [
        {"op": "done", "id": "task-1", "as": "set_aside"}
    ]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"poppies" in path.read_bytes()]
    (held,) = worker._failed.all()
    assert (held.held_id, held.error) == ("task-1", "it ended the worker")
    worker.tick()
    assert heard[-1]["set_aside"] == 1 and recorded(tmp_path) == []  # not without a request
    assert worker._failed.ask_again() == 1
    worker.tick()
    worker.tick()
    assert heard[-1]["set_aside"] == 0
    worker.end()
    (document,) = recorded(tmp_path)
    assert validate(document, Trajectory).task_context.instructions == "Count the poppies."
    assert document["metadata"]["outcome"] == {"status": "completed_successfully"}


def test_a_task_that_was_put_aside_before_agent_zero_ended_is_recorded_as_abandoned(tmp_path: Path) -> None:
    before = Worker(tmp_path, tmp_path, lambda told: None)
    before.take({"op": "settings"})
    before.take(
        {"op": "aside", "id": "task-1", "reason": "r", "lines": lines_of(OPENED, TURN), "whole": False}
    )
    before.end()
    worker = Worker(tmp_path, tmp_path, lambda told: None)
    worker.take({"op": "settings"})
    worker._failed.ask_again()
    worker.tick()
    worker.end()
    (document,) = recorded(tmp_path)
    assert document["metadata"]["outcome"] == {"status": "abandoned"} and len(document["turns"]) == 1


def test_a_task_that_its_user_excludes_is_removed_from_those_put_aside(tmp_path: Path) -> None:
    worker = Worker(tmp_path, tmp_path, lambda told: None)
    worker.take({"op": "settings"})
    worker.take({"op": "aside", "id": "task-1", "reason": "r", "lines": lines_of(OPENED), "whole": False})
    assert worker._failed.count() == 1
    worker.take({"op": "drop", "t": "task-1"})
    assert worker._failed.count() == 0
    worker.end()


def test_a_task_in_progress_that_was_put_aside_is_not_tried_again_before_its_end(tmp_path: Path) -> None:
    """Else its beginning would be recorded as abandoned, and its end could not be stored beside it."""
    worker = Worker(tmp_path, tmp_path, lambda told: None)
    worker.take({"op": "settings", "unfinished": ["task-2"]})
    aside = {"op": "aside", "id": "task-1", "reason": "r"}
    worker.take({**aside, "lines": lines_of(OPENED), "whole": False})
    worker._failed.put("task-2", lines_of({**OPENED, "t": "task-2"}), "of the worker before", NOW)
    assert worker._failed.ask_again() == 2
    worker.tick()
    worker.tick()
    assert worker._failed.count() == 2 and recorded(tmp_path) == []
    worker.take({**aside, "lines": lines_of(OPENED, TURN, CLOSED), "whole": True})
    worker.tick()
    assert worker._failed.all()[0].held_id == "task-2" and worker._failed.count() == 1
    worker.end()
    (document,) = recorded(tmp_path)
    assert document["metadata"]["outcome"] == {"status": "completed_successfully"}


def test_the_beginning_of_a_task_does_not_replace_the_whole_that_was_sealed_before_it(tmp_path: Path) -> None:
    """On a full disk both wait, and come in any order."""
    worker = Worker(tmp_path, tmp_path, lambda told: None)
    worker.take({"op": "settings"})
    aside = {"op": "aside", "id": "task-1", "reason": "r"}
    worker.take({**aside, "lines": lines_of(OPENED, TURN, CLOSED), "whole": True})
    worker.take({**aside, "lines": lines_of(OPENED), "whole": False})
    worker._failed.ask_again()
    worker.tick()
    worker.end()
    (document,) = recorded(tmp_path)
    assert document["metadata"]["outcome"] == {"status": "completed_successfully"}


def test_a_vote_on_a_task_that_was_put_aside_is_put_aside_too_and_tried_after_it(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    worker = Worker(tmp_path, tmp_path, heard.append)
    worker.take({"op": "settings"})
    aside = {"op": "aside", "reason": "r", "whole": True}
    worker.take({**aside, "id": "task-1", "lines": lines_of(OPENED, {**TURN, "messages": ["m1"]}, CLOSED)})
    vote = {
        "op": "feedback", "id": "a-vote", "chat": "chat", "message": "m1", "at": 3.0,
        "said": {"signal": "thumbs_up", "kind": "explicit", "source": "webui"},
        "link": {"trajectory_id": "task-1", "turn_id": 1, "session_id": "a0-chat"},
    }  # fmt: skip
    worker.take(vote)
    reason = "it is about a task that was put aside"
    assert heard[-1] == {"op": "broken", "id": "a-vote", "reason": reason}
    worker.take({**aside, "id": "a-vote", "lines": [line(vote).decode()]})
    assert worker._failed.ask_again() == 2
    for _ in range(3):
        worker.tick()
    assert worker._failed.count() == 0
    worker.end()
    box = Outbox(tmp_path / "feedback.db")
    (message,) = box.next_batch()
    box.close()
    stored = json.loads(message.body)
    assert (stored["signal"], stored["trajectory_id"], stored["turn_id"]) == ("thumbs_up", "task-1", 1)


def test_the_log_is_rotated_while_it_is_written_and_bounded_in_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "LIMIT", 10_000)
    output = os.open(log.path_of(tmp_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for number in range(400):
            os.write(output, f"line {number} {'x' * 500}\n".encode())
            log.follow(tmp_path, (output,))
            sizes = [path.stat().st_size for path in tmp_path.glob("worker.log*")]
            assert sum(sizes) <= 2 * 10_000 + 600
    finally:
        os.close(output)
    assert {path.name for path in tmp_path.iterdir()} == {"worker.log", "worker.log.1"}
    written = (tmp_path / "worker.log.1").read_text() + log.path_of(tmp_path).read_text()
    numbers = [int(line.split()[1]) for line in written.splitlines()]
    assert numbers == list(range(numbers[0], 400))  # the newest lines, in order, none lost


def test_an_output_that_is_not_the_log_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LIMIT", 10)
    log.path_of(tmp_path).write_text("of another process\n")
    output = os.open(tmp_path / "elsewhere", os.O_WRONLY | os.O_CREAT)
    try:
        log.follow(tmp_path, (output,))
        os.write(output, b"mine")
    finally:
        os.close(output)
    assert log.path_of(tmp_path).read_text() == "of another process\n"
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
