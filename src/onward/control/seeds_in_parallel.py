"""Several runs at a time, each in a process of its own: seeds are independent, so this is a clean speed-up.

The one thing to know: the processes are spawned, so nothing is shared, and each ends itself when this one is
gone; a run that fails does not stop the others.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from queue import Empty
from typing import Any

from onward.control.runs import Folder, RunConfig
from onward.control.trainer import Event, Trainer
from onward.errors import ControlError, OnwardError

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Task:
    """One run to train or, where its folder holds a state, to go on with."""

    run: RunConfig
    folder: Folder
    resume: bool = False


def train_all(
    tasks: Sequence[Task], watch: Callable[[Event], None], processes: int | None = None
) -> list[dict[str, Any]]:
    """Train each task; the summaries, in order.

    ``processes``: at a time; None: one per core. After Ctrl-C each run saves its state and ends.
    Raises ControlError when a run failed, after the others are done.
    """
    if len(tasks) == 1:
        return [train_one(tasks[0], watch)]
    context = get_context("spawn")
    events, stop = context.Queue(), context.Event()
    waiting = list(enumerate(tasks))
    running: dict[int, Any] = {}
    ended: dict[int, Event] = {}
    limit = processes or os.cpu_count() or 1
    with _Held(signal.SIGINT, stop.set):
        while waiting or running:
            while waiting and len(running) < limit and not stop.is_set():
                index, task = waiting.pop(0)
                running[index] = context.Process(target=_child, args=(index, task, events, stop))
                running[index].start()
            if stop.is_set():
                waiting.clear()
            _receive(events, tasks, running, ended, watch)
    failures = [event for event in ended.values() if event["event"] == "failed"]
    if failures:
        raise _failure(failures)
    return [ended[index]["summary"] for index in sorted(ended)]


def train_one(task: Task, watch: Callable[[Event], None]) -> dict[str, Any]:
    """Train in this process; Ctrl-C saves and ends the run, a second one raises KeyboardInterrupt."""
    trainer = _ready(task, watch)
    with _Held(signal.SIGINT, trainer.stop):
        return trainer.train()


def _ready(task: Task, watch: Callable[[Event], None]) -> Trainer:
    trainer = Trainer(task.run, task.folder, watch)
    if task.resume:
        trainer.resume()
    else:
        trainer.start()
    return trainer


def _receive(
    events: Any,
    tasks: Sequence[Task],
    running: dict[int, Any],
    ended: dict[int, Event],
    watch: Callable[[Event], None],
) -> None:
    """One event, or what became of processes that ended without a word.

    Who is gone is looked up first: the last word of a process that goes while this waits is still to come.
    """
    gone = [index for index, process in running.items() if process.exitcode is not None]
    try:
        index, event = events.get(timeout=POLL_SECONDS)
    except Empty:
        for index in gone:
            task, code = tasks[index], running.pop(index).exitcode
            message = (
                f"The process of seed {task.run.seed} ended with {code} before it was done (killed, or out "
                f"of memory): go on with onward control resume {task.folder.path}."
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C comes by ``stop``, once
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        trainer = _ready(task, lambda event: events.put((index, event)))
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
    """Within: the first ``number`` calls ``then``, the second one raises KeyboardInterrupt.

    Only the main thread can hold signals; elsewhere this does nothing.
    """

    def __init__(self, number: signal.Signals, then: Callable[[], None]) -> None:
        self._number, self._then, self._count = number, then, 0

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(self._number, self._taken)

    def __exit__(self, *exc: object) -> None:
        if self._main:
            signal.signal(self._number, self._before)

    def _taken(self, number: int, frame: Any) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
        self._then()
