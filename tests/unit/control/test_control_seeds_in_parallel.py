"""Several runs at a time: what becomes of a process that ends, with and without a word."""

from __future__ import annotations

from pathlib import Path
from queue import Empty
from typing import Any

from control_scripted import run_of

from onward.control.running.runs import Folder
from onward.control.running.seeds_in_parallel import Task, _receive


class Process:
    """Of a run; ``exitcode`` None while it is there."""

    exitcode: int | None = None

    def join(self) -> None: ...


class Slow:
    """A queue that is empty once; meanwhile ``process`` leaves its last word and ends."""

    def __init__(self, process: Process, last: dict[str, Any] | None) -> None:
        self.process, self.last, self.waited = process, last, False

    def get(self, timeout: float) -> tuple[int, dict[str, Any]]:
        if not self.waited or self.last is None:
            self.process.exitcode, self.waited = -9 if self.last is None else 0, True
            raise Empty
        return 0, self.last


def received(tmp_path: Path, last: dict[str, Any] | None) -> list[dict[str, Any]]:
    process, watched = Process(), list[dict[str, Any]]()
    running, ended = {0: process}, dict[int, Any]()
    tasks, events = [Task(run_of(seed=3), Folder(tmp_path / "r"))], Slow(process, last)
    for _ in range(2):
        assert not ended
        _receive(events, tasks, running, ended, watched.append)
    assert not running
    return watched


def test_the_last_word_of_a_process_that_ends_while_it_is_waited_for_counts(tmp_path: Path) -> None:
    done = {"event": "done", "seed": 3, "step": 400, "summary": {}}
    assert received(tmp_path, done) == [done]


def test_a_killed_process_is_told_with_its_seed_and_what_to_do(tmp_path: Path) -> None:
    (event,) = received(tmp_path, None)
    assert (event["event"], event["seed"], event["defect"]) == ("failed", 3, False)
    assert "The process of seed 3 ended with -9" in event["message"]
    assert f"train again into {tmp_path / 'r'}" in event["message"]


def test_a_killed_process_that_had_saved_is_gone_on_with(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "r")
    folder.state.parent.mkdir(parents=True)
    folder.state.write_bytes(b"")
    (event,) = received(tmp_path, None)
    assert f"go on with onward control resume {tmp_path / 'r'}" in event["message"]
