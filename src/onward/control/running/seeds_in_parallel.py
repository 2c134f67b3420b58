"""Several runs in parallel, each in its own process; seeds are independent of each other.

Invariants: the processes are spawned, so they share nothing. Each exits when this process is gone. A run that
fails does not stop the others.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from queue import Empty
from typing import Any

from onward.control.running.runs import Folder, RunConfig
from onward.control.running.trainer import Event, Trainer
from onward.errors import ControlError, OnwardError
from onward.processes import start_deaf, stay_deaf

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Task:
    """One run to train or, with ``resume``, to continue from the state in its folder."""

    run: RunConfig
    folder: Folder
    resume: bool = False


@dataclass(frozen=True)
class Trained:
    """Results of several runs."""

    summaries: list[dict[str, Any]]
    """Summaries of the runs that did not fail, in order."""
    failure: Exception | None
    """Error to raise after the other results are reported; None where no run failed."""


def train_all(tasks: Sequence[Task], watch: Callable[[Event], None], processes: int | None = None) -> Trained:
    """Trains each task; a run that fails does not stop the others.

    ``processes``: number at a time; None: one per core. After Ctrl-C or SIGTERM each run saves its state and
    ends.
    """
    if len(tasks) == 1:
        try:
            return Trained([train_one(tasks[0], watch)], None)
        except OnwardError as error:
            return Trained([], error)
    context = get_context("spawn")
    events, stop = context.Queue(), context.Event()
    waiting = list(enumerate(tasks))
    running: dict[int, Any] = {}
    ended: dict[int, Event] = {}
    limit = processes or os.cpu_count() or 1
    with _Held(stop.set):
        while waiting or running:
            while waiting and len(running) < limit and not stop.is_set():
                index, task = waiting.pop(0)
                running[index] = context.Process(target=_child, args=(index, task, events, stop))
                start_deaf(running[index])
            if stop.is_set():
                waiting.clear()
            _receive(events, tasks, running, ended, watch)
    failures = [event for event in ended.values() if event["event"] == "failed"]
    done = [ended[index]["summary"] for index in sorted(ended) if ended[index]["event"] == "done"]
    return Trained(done, _failure(failures) if failures else None)


def train_one(task: Task, watch: Callable[[Event], None]) -> dict[str, Any]:
    """Trains in this process. Ctrl-C or SIGTERM saves and ends the run.

    A second signal raises KeyboardInterrupt. Raises ConfigError where another process trains in the folder.
    """
    with _ready(task, watch) as trainer, _Held(trainer.stop):
        return trainer.train()


@contextmanager
def _ready(task: Task, watch: Callable[[Event], None]) -> Iterator[Trainer]:
    """Yields a trainer that is ready to train and has locked its folder."""
    with task.folder.lock(new=not task.resume):
        trainer = Trainer(task.run, task.folder, watch)
        if task.resume:
            trainer.resume()
        else:
            trainer.start()
        yield trainer


def _receive(
    events: Any,
    tasks: Sequence[Task],
    running: dict[int, Any],
    ended: dict[int, Event],
    watch: Callable[[Event], None],
) -> None:
    """Handles one event, or the processes that ended without a last event.

    Ended processes are listed first: the last event of one that ends during the wait is still to come.
    """
    gone = [index for index, process in running.items() if process.exitcode is not None]
    try:
        index, event = events.get(timeout=POLL_SECONDS)
    except Empty:
        for index in gone:
            task, code = tasks[index], running.pop(index).exitcode
            again = "go on with onward control resume" if task.folder.state.exists() else "train again into"
            message = (
                f"The process of seed {task.run.seed} ended with {code} before it was done (killed, or out "
                f"of memory): {again} {task.folder.path}."
            )
            ended[index] = _failed(task, message, defect=False)
            watch(ended[index])
        return
    if event["event"] in ("done", "failed"):
        ended[index] = event
        running.pop(index).join()
    watch(event)


def _failure(failures: list[Event]) -> Exception:
    defects = [event["message"] for event in failures if event["defect"]]
    if defects:
        return RuntimeError("a run failed by a defect of Onward:\n" + "\n".join(defects))
    return ControlError(" ".join(dict.fromkeys(event["message"] for event in failures)))


def _child(index: int, task: Task, events: Any, stop: Any) -> None:
    stay_deaf()  # signals to the process group are ignored: ``stop`` arrives once instead
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with _ready(task, lambda event: events.put((index, event))) as trainer:
            threading.Thread(target=_stop_when_told, args=(stop, trainer), daemon=True).start()
            trainer.train()
    except OnwardError as error:
        events.put((index, _failed(task, str(error), defect=False)))
    except Exception:
        events.put((index, _failed(task, traceback.format_exc(), defect=True)))


def _stop_when_told(stop: Any, trainer: Trainer) -> None:
    stop.wait()
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

    Only the main thread can handle signals; in other threads this does nothing.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._then, self._count = then, 0

    def __enter__(self) -> None:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._taken)

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _taken(self, number: int, frame: Any) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
        self._then()
