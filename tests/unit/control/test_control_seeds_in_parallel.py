"""Several runs at a time: what becomes of a process that ends, with and without a word, and of Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from control_scripted import run_of

from onward.control.core.config import CONFIGS
from onward.control.running import seeds_in_parallel
from onward.control.running.runs import Folder, RunConfig
from onward.control.running.seeds_in_parallel import Task, _receive, train_all


class Process:
    """Of a run that ended."""

    exitcode = -9

    def join(self) -> None: ...


class Child(seeds_in_parallel._Child):
    """One without a process; ``there`` is the run's side of its pipe."""

    def __init__(self, task: Task) -> None:
        self.task, self.process, self._told = task, Process(), False
        here: Connection
        here, self.there = get_context("spawn").Pipe()
        self.pipe = here


def received(tmp_path: Path, *said: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the events that are shown of a run that says ``said`` and ends."""
    child, watched = Child(Task(run_of(seed=3), Folder(tmp_path / "r"))), list[dict[str, Any]]()
    running: dict[int, Any] = {0: child}
    for event in said:
        child.there.send(event)
    child.there.close()
    while running:
        _receive(running, {}, watched.append)
    return watched


def test_the_last_event_of_a_process_that_ended_meanwhile_counts(tmp_path: Path) -> None:
    done = {"event": "done", "seed": 3, "step": 400, "summary": {}}
    row = {"event": "row", "seed": 3, "step": 400}
    assert received(tmp_path, row, done) == [row, done]


def test_a_killed_process_is_told_with_its_seed_and_what_to_do(tmp_path: Path) -> None:
    (event,) = received(tmp_path)
    assert (event["event"], event["seed"], event["defect"]) == ("failed", 3, False)
    assert "The process of seed 3 ended with -9" in event["message"]
    assert f"train again into {tmp_path / 'r'}" in event["message"]


def test_a_killed_process_that_had_saved_is_gone_on_with(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "r")
    folder.state.parent.mkdir(parents=True)
    folder.state.write_bytes(b"")
    (event,) = received(tmp_path)
    assert f"go on with onward control resume {tmp_path / 'r'}" in event["message"]


def test_a_run_that_ended_meanwhile_can_be_told_to_stop(tmp_path: Path) -> None:
    child = Child(Task(run_of(seed=3), Folder(tmp_path / "r")))
    child.there.close()
    child.stop()
    assert child.receive()["event"] == "failed"


LOOP = """
import os, random, signal, threading, time
from multiprocessing import get_context
from onward.control.running.seeds_in_parallel import _Held

stop = get_context("spawn").Event()  # its lock is not re-entrant
for trial in range(40):
    stop.clear()
    def later():
        time.sleep(random.uniform(0.0005, 0.003))
        os.kill(os.getpid(), signal.SIGINT)
    with _Held(stop.set):
        thread = threading.Thread(target=later)
        thread.start()
        while not stop.is_set():
            pass
        thread.join()
print("all ended")
"""


@pytest.mark.slow
def test_ctrl_c_never_waits_for_a_lock_that_the_interrupted_code_holds() -> None:
    """With ``then`` called in the handler, the first few interruptions locked the process for ever."""
    ended = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, text=True, timeout=120)
    assert ended.stdout.strip() == "all ended", ended.stderr


def cart_pole(seed: int) -> RunConfig:
    settings = CONFIGS["ppo"](num_envs=2, n_steps=16, batch_size=32, epochs=1, hidden=(8,))
    return RunConfig(
        env="CartPole-v1", algorithm="ppo", settings=settings, seed=seed, timesteps=10_000_000,
        eval_every=10_000_000, stop_when_solved=False,
    )  # fmt: skip


@pytest.mark.slow
def test_ctrl_c_saves_every_seed_and_ends(tmp_path: Path) -> None:
    """The signal arrives while both train; SIGTERM is handled the same."""
    import signal

    tasks = [Task(cart_pole(seed), Folder(tmp_path / str(seed))) for seed in range(2)]
    started: set[int] = set()

    def watch(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            started.add(event["seed"])
            if len(started) == 2:
                os.kill(os.getpid(), signal.SIGINT)

    trained = train_all(tasks, watch, processes=2)
    assert trained.failure is None
    assert [summary["end"] for summary in trained.summaries] == ["interrupted"] * 2
    assert all(task.folder.state.exists() for task in tasks)
