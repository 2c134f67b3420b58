"""Several runs in parallel, each in its own process; seeds are independent of each other.

Invariants: the processes are spawned and share nothing, not even a lock: each has a pipe of its own. So one
that is killed at any moment blocks no other. Each exits when this process is gone. A run that fails does not
stop the others.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from typing import Any

from onward.control.running.runs import Folder, RunConfig
from onward.control.running.trainer import Event, Trainer, Watch
from onward.control.running.world import World
from onward.errors import ControlError, OnwardError
from onward.processes import start_deaf, stay_deaf

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Task:
    """One run to train or, with ``resume``, to continue from the state in its folder."""

    run: RunConfig
    folder: Folder
    resume: bool = False
    of: World | None = None
    """Sources of its environments and algorithm; None: those that ``run`` names."""


@dataclass(frozen=True)
class Trained:
    """Results of several runs."""

    summaries: list[dict[str, Any]]
    """Summaries of the runs that did not fail, in order."""
    failure: Exception | None
    """Error to raise after the other results are reported; None where no run failed."""


def train_all(tasks: Sequence[Task], watch: Watch, processes: int | None = None) -> Trained:
    """Trains each task; a run that fails does not stop the others.

    ``processes``: number at a time; None: one per core. After Ctrl-C or SIGTERM each run saves its state and
    ends.
    """
    if len(tasks) == 1:
        try:
            return Trained([train_one(tasks[0], watch)], None)
        except OnwardError as error:
            return Trained([], error)
    stop = threading.Event()
    waiting = list(enumerate(tasks))
    running: dict[int, _Child] = {}
    ended: dict[int, Event] = {}
    limit = processes or os.cpu_count() or 1
    with _Held(stop.set):
        while waiting or running:
            if stop.is_set():
                waiting.clear()
                for child in running.values():
                    child.stop()
            while waiting and len(running) < limit:
                index, task = waiting.pop(0)
                running[index] = _Child(task)
            _receive(running, ended, watch)
    failures = [event for event in ended.values() if event["event"] == "failed"]
    done = [ended[index]["summary"] for index in sorted(ended) if ended[index]["event"] == "done"]
    return Trained(done, _failure(failures) if failures else None)


def train_one(task: Task, watch: Watch) -> dict[str, Any]:
    """Trains in this process. Ctrl-C or SIGTERM saves and ends the run.

    A second signal raises KeyboardInterrupt. Raises ConfigError where another process trains in the folder.
    """
    with _ready(task, watch) as trainer, _Held(trainer.stop):
        return trainer.train()


@contextmanager
def _ready(task: Task, watch: Watch) -> Iterator[Trainer]:
    """Yields a trainer that is ready to train and has locked its folder."""
    with task.folder.lock(new=not task.resume):
        trainer = Trainer(task.run, task.folder, watch, task.of)
        if task.resume:
            trainer.resume()
        else:
            trainer.start()
        yield trainer


class _Child:
    """The process of one run, and this side of its pipe."""

    def __init__(self, task: Task) -> None:
        """Starts the process."""
        context = get_context("spawn")
        self.task = task
        self.pipe, there = context.Pipe()
        self.process: Any = context.Process(target=_child, args=(task, there))
        start_deaf(self.process)
        there.close()
        self._told = False

    def stop(self) -> None:
        """Asks the run, once, to save its state and end."""
        if not self._told:
            self._told = True
            with suppress(OSError):  # it ended meanwhile
                self.pipe.send(None)

    def receive(self) -> Event:
        """Reads one event; a failure where the process ended before its last event."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            task = self.task
            again = "go on with onward control resume" if task.folder.state.exists() else "train again into"
            message = (
                f"The process of seed {task.run.seed} ended with {self.process.exitcode} before it was done "
                f"(killed, or out of memory): {again} {task.folder.path}."
            )
            return _failed(task, message, defect=False)


def _receive(running: dict[int, _Child], ended: dict[int, Event], watch: Watch) -> None:
    """Handles one event of each run that has one, after a short wait. Runs that ended leave ``running``."""
    ready = connection.wait([child.pipe for child in running.values()], POLL_SECONDS)
    for index, child in list(running.items()):
        if child.pipe not in ready:
            continue
        event = child.receive()
        if event["event"] in ("done", "failed"):
            ended[index] = event
            del running[index]
            child.process.join()
            child.pipe.close()
        watch(event)


def _failure(failures: list[Event]) -> Exception:
    defects = [event["message"] for event in failures if event["defect"]]
    if defects:
        return RuntimeError("a run failed by a defect of Onward:\n" + "\n".join(defects))
    return ControlError(" ".join(dict.fromkeys(event["message"] for event in failures)))


def _child(task: Task, pipe: connection.Connection) -> None:
    stay_deaf()  # signals to the process group are ignored: the parent sends one message instead
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with _ready(task, pipe.send) as trainer:
            threading.Thread(target=_stop_when_told, args=(pipe, trainer), daemon=True).start()
            trainer.train()
    except OnwardError as error:
        pipe.send(_failed(task, str(error), defect=False))
    except Exception:
        pipe.send(_failed(task, traceback.format_exc(), defect=True))


def _stop_when_told(pipe: connection.Connection, trainer: Trainer) -> None:
    with suppress(EOFError, OSError):
        pipe.recv()
    trainer.stop()


def _failed(task: Task, message: str, defect: bool) -> Event:
    return {"event": "failed", "seed": task.run.seed, "step": 0, "message": message, "defect": defect}


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


class _Held:
    """Handler of Ctrl-C and SIGTERM: the first one calls ``then``, the second one raises KeyboardInterrupt.

    The handler itself only writes to a pipe, and a thread calls ``then``. A handler runs within the main
    thread at any point of its work, so it would wait forever for a lock that the main thread holds there.
    Only the main thread can handle signals; in other threads this does nothing.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._then, self._count = then, 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._read, self._write = os.pipe()
        self._caller = threading.Thread(target=self._call, daemon=True)
        self._caller.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._taken)

    def __exit__(self, *exc: object) -> None:
        if not self._before:
            return
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self._write)
        self._caller.join()

    def _taken(self, number: int, frame: Any) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
        os.write(self._write, b"1")

    def _call(self) -> None:
        """Waits for the handler's byte, or for the end of the block."""
        told = os.read(self._read, 1)
        os.close(self._read)
        if told:
            self._then()
