"""The thread between the hooks and the worker.

It looks up settings, serialises, writes to the worker's pipe, and stores what it has sent until the worker
has confirmed that the whole task is on disk. A worker that dies is started again and gets all of it once
more; a task that was stored twice has the same id. A worker that hangs is ended (``hang``). A task on which
it dies or hangs each time, or that it cannot handle, is put aside (``aside``).

Memory is bounded: above ``LIMIT`` bytes no new task and no vote is taken, and it is counted as dropped. This
is so, too, while the thread waits for a worker that does not read.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import hang
from .aside import Aside
from .child import Child
from .drafts import weight
from .lines import line
from .settings import Settings

LIMIT = 64 << 20
"""Bytes of events that wait for the worker's confirmation."""
PAUSES = (0.5, 30.0)
"""First and longest pause between two starts of the worker."""
STEADY_SECONDS = 60.0
"""Life of a worker after which the next start waits for the first pause only."""
_TICK = 1.0
QUIET_SECONDS = 30.0
"""Time without progress after which the status page says so."""
UNKILLED_SECONDS = 10.0
"""Time after which a worker that was ended, and is still there, is reported."""
LOOK_SECONDS = 30.0
"""Pause between two looks at the settings of the worker, which a change starts anew."""


class Feed:
    """``put`` may be called by any thread and never waits."""

    def __init__(
        self, settings: Settings, limit: int = LIMIT, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self.settings = settings
        self._prepare: Callable[[], None] | None = prepare
        self.on_settings: Callable[[dict[str, Any]], None] = lambda given: None
        """Called with the worker's settings at its start."""
        self.counts = {"recorded": 0, "dropped": 0, "opted_out": 0, "failed": 0, "feedback": 0}
        self.worker: dict[str, Any] = {}
        """The worker's own figures: ``queued``, ``held``, ``nats``, ``model`` …"""
        self.reports: deque[dict[str, Any]] = deque(maxlen=100)
        """Sentences of the trainer to its superior agent, with ``seq`` from 1."""
        self.report_count = 0
        self.reason = ""
        self.hangs: dict[str, Any] = {"count": 0, "at": None, "seconds": None}
        """Workers that were ended since they hung: their number, the last time, and the limit then."""
        self._limit = limit
        self._events: deque[tuple[dict[str, Any], Any, int]] = deque()
        """Event, agent, and the event's size."""
        self._backlog = 0
        """Characters of the events that the thread has not taken yet."""
        self._refused: set[str] = set()
        """Tasks that began while there was no room."""
        self._counting = threading.Lock()
        self._heard: deque[dict[str, Any] | None] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._child: Child | None = None
        self._silence = hang.Silence(hang.LIMIT, 0.0)
        self._killed: float | None = None
        """Time at which the present worker was ended since it hung."""
        self._given: dict[str, Any] = {}
        self._kept: dict[str, dict[str, bytes]] = {}
        """Task or vote → the lines that the worker has not confirmed, by the part that each is about."""
        self._size = 0
        self._aside = Aside(settings.host.data)
        self._skipped: dict[str, str] = {}
        """Task that is not recorded → the reason."""
        self._pause, self._next_start, self._started = PAUSES[0], 0.0, 0.0
        self._looked = 0.0
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @property
    def waiting(self) -> int:
        """Tasks and votes that are not durable yet."""
        return len(self._kept) + len(self._events)

    @property
    def is_up(self) -> bool:
        child = self._child
        return child is not None and child.is_running and bool(self.worker)

    @property
    def worker_pid(self) -> int | None:
        child = self._child
        return child.pid if child is not None and child.is_running else None

    def put(self, event: dict[str, Any], agent: Any = None) -> None:
        """Takes one event, in order. ``agent``: whose settings decide."""
        with self._counting:
            taken = self._with_room(event)
            if taken is None:
                return
            size = weight(taken)
            self._backlog += size
            self._events.append((taken, agent, size))
        self._wake.set()
        if self._thread is None or not self._thread.is_alive():
            self.ensure()

    def _with_room(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the event, or of a task or vote for which there is no room what is needed to count it."""
        operation, task = event["op"], event.get("t", "")
        if self._backlog > self._limit and operation in ("open", "feedback"):
            if operation == "open":
                self._refused.add(task)
            return {"op": operation, "t": task, "no_room": True}
        if task not in self._refused:
            return event
        if operation in ("close", "drop"):
            self._refused.discard(task)
            return {"op": operation, "t": task}
        return None

    def ensure(self) -> None:
        """Starts the thread, unless it runs."""
        with self._starting:
            if not self._stopping and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="onward-feed", daemon=True)
                self._thread.start()

    def save_switches(self) -> None:
        self.put({"op": "save"})

    def close(self, timeout: float) -> bool:
        """Writes what waits, ends the worker, and returns whether all was confirmed."""
        until = time.monotonic() + timeout
        while (
            self.waiting and time.monotonic() < until and self._thread is not None and self._thread.is_alive()
        ):
            time.sleep(0.01)
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(max(0.1, until - time.monotonic()))
        child = self._child
        if child is not None:
            child.end(max(0.1, until - time.monotonic()))
        return not self._kept and not self._events

    # The thread.

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(_TICK)
            self._wake.clear()
            try:
                if self._prepare is not None:
                    prepare, self._prepare = self._prepare, None
                    prepare()
                self._hear()
                self._supervise()
                self._keep_alive()
                while self._events:
                    event, agent, size = self._events.popleft()
                    with self._counting:
                        self._backlog -= size
                    self._take(event, agent)
                    self._hear()
                    self._supervise()
            except Exception as error:  # nothing may end this thread
                self.reason = f"the feeding thread met a {type(error).__name__}"
                time.sleep(0.2)

    def _take(self, event: dict[str, Any], agent: Any) -> None:
        operation, task = event["op"], event.get("t", "")
        if operation == "save":
            self.settings.switches.save()
            return
        if operation == "open" and not self._admits(event, agent):
            return
        if task in self._skipped:
            if operation in ("close", "drop"):
                self._count_skipped(self._skipped.pop(task))
            return
        if operation == "drop" or (operation == "close" and self._reason(agent, event, "")):
            self._forget(task)
            self._send(line({"op": "drop", "t": task}))
            self.counts["opted_out"] += 1
            return
        if operation == "feedback" and (event.get("no_room") or self._size > self._limit):
            self.counts["dropped"] += 1
            return
        part = f"{operation}{event.get('n', '')}"
        name, written = task or event.get("id", ""), line(event)
        self._keep(name, part, written)
        if not self._aside.reason(name):
            self._send(written)
        elif _is_whole(self._kept[name]):
            self._put_aside(name)

    def _admits(self, event: dict[str, Any], agent: Any) -> bool:
        """Decides whether a task is recorded, and adds what the settings know about it."""
        has_room = self._size <= self._limit and not event.get("no_room")
        reason = self._reason(agent, event, event["root"]) if has_room else "no room"
        if reason:
            self._skipped[event["t"]] = reason
            return False
        event["project"] = self.settings.host.project(agent)
        return True

    def _reason(self, agent: Any, event: dict[str, Any], root_id: str) -> str:
        """Returns why a task is not recorded. Unreadable settings are a reason: they may forbid it."""
        try:
            return self.settings.why_not(agent, root_id or event["t"]) if root_id else self._opted_out(agent)
        except Exception as error:
            self.reason = f"the settings could not be read: {type(error).__name__}"
            return "settings unknown"

    def _opted_out(self, agent: Any) -> str:
        project = self.settings.host.project(agent) if agent is not None else ""
        return "opted out" if self.settings.switches.is_opted_out(project) else ""

    def _count_skipped(self, reason: str) -> None:
        name = {"no room": "dropped", "settings unknown": "failed"}.get(reason, "opted_out")
        self.counts[name] += 1

    def _send(self, written: bytes) -> None:
        if self._child is not None:
            self._child.write(written, self._supervise)

    def _supervise(self) -> None:
        """Ends a worker that hangs. Its end is heard like any other one."""
        child, now = self._child, time.monotonic()
        if child is None or not child.is_running or self._stopping:
            return
        if self._killed is None and self._silence.is_hang(child.signs, now):
            self._killed = now
            child.kill()
        elif self._killed is None and self._silence.seconds >= QUIET_SECONDS:
            self.reason = f"the worker has made no progress for {QUIET_SECONDS:g} seconds"
        elif self._killed is not None and now - self._killed >= UNKILLED_SECONDS:
            self.reason = "the worker hangs, and the system cannot end it: it waits for a disk"

    def _put_aside(self, name: str) -> None:
        """Gives the worker a task to seal unread. One in progress is sealed again with its end."""
        if not self._aside.is_sealable(name):
            return
        parts = self._kept[name]
        lines = [part.decode() for part in parts.values()]
        told = {"op": "aside", "id": name, "lines": lines, "reason": self._aside.reason(name)}
        self._send(line({**told, "whole": _is_whole(parts)}))

    def _keep(self, name: str, part: str, written: bytes) -> None:
        """Stores a line in place of an earlier one about the same turn."""
        parts = self._kept.setdefault(name, {})
        self._size += len(written) - len(parts.get(part, b""))
        parts[part] = written

    def _forget(self, name: str) -> None:
        self._size -= sum(map(len, self._kept.pop(name, {}).values()))
        self._aside.forget(name)

    def _hear(self) -> None:
        while self._heard:
            told = self._heard.popleft()
            if told is None:
                is_steady = time.monotonic() - self._started >= STEADY_SECONDS
                self._pause = PAUSES[0] if is_steady else min(PAUSES[1], 2 * self._pause)
                self._next_start = time.monotonic() + self._pause
                self.worker = {}
                if self._child is not None and self._child.code:
                    self._blame(self._child.code)
                self._child = None  # only now: the next worker is started when the end of this one is known
            elif told.get("as") == "failed" and self._aside.reason(str(told.get("id"))):
                continue  # its end was on the way when it was put aside
            elif told.get("op") == "done":
                self._forget(str(told.get("id")))
                self.counts[str(told.get("as"))] = self.counts.get(str(told.get("as")), 0) + 1
            elif told.get("op") == "broken":
                self._condemn(str(told.get("id")), str(told.get("reason")))
            elif told.get("op") == "report":
                self.report_count += 1
                self.reports.append({**told, "seq": self.report_count})
            elif told.get("op") == "figures":
                self.worker = told
                self.reason = str(told.get("reason") or "")

    def _condemn(self, name: str, reason: str) -> None:
        """Has a task sealed that a worker could not handle. One tried again is in its folder already."""
        if name in self._kept and not self._aside.reason(name):
            self._aside.condemn(name, reason)
            self._put_aside(name)

    def _blame(self, code: int) -> None:
        """Finds out which task an end of the worker is due to."""
        at_once = True  # the cause is gone, or comes last
        if self._killed is not None:
            seconds, name = self._silence.limit, self._aside.blame_for_hang(self._silence.limit)
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.hangs = {"count": self.hangs["count"] + 1, "at": at, "seconds": seconds}
            on = " on a task" if name else ""
            self.reason = f"the worker made no progress{on} for {seconds:g} seconds and was ended"
            at_once = bool(name)
        elif code == -signal.SIGALRM:  # later than the limit here, so this process did not run either
            self.reason = "the worker is started again after a pause of this machine"
        else:
            self.reason = f"the worker ended with code {code}: see worker.log"
            at_once = not self._stopping and bool(self._aside.blame(code))
        if at_once:
            self._pause, self._next_start = PAUSES[0], time.monotonic() + PAUSES[0]

    def _on_heard(self, told: dict[str, Any] | None) -> None:
        self._heard.append(told)
        self._wake.set()

    def _keep_alive(self) -> None:
        now = time.monotonic()
        is_there = self._child is not None
        if self._stopping or now < (self._looked + LOOK_SECONDS if is_there else self._next_start):
            return
        self._looked, self._next_start = now, now + self._pause
        try:
            given = self.settings.of_worker()
        except Exception as error:
            self.reason = f"the settings could not be read: {type(error).__name__}"
            return
        if self._child is not None:
            if given != self._given:
                self._child.leave(5.0, self._supervise)
            return
        self._given = given
        self.on_settings(given)
        host = self.settings.host
        try:
            self._child = Child(given["python"], host.root, host.data, self._on_heard)
        except OSError as error:
            python = given["python"] or "this Python"
            self.reason = f"the worker cannot be started with {python}: {error.strerror}"
            self._pause = min(PAUSES[1], 2 * self._pause)
            return
        self._started, self._killed = now, None
        self._silence = hang.Silence(float(given.get("hang_seconds", hang.LIMIT)), now)
        told = {"op": "settings", "host": host.version(), **self._given}
        if self.hangs["count"]:
            told["hangs"] = self.hangs
        # Tasks in progress that are put aside: not to be tried again before their end.
        told["unfinished"] = [
            name for name, parts in self._kept.items() if self._aside.reason(name) and not _is_whole(parts)
        ]
        self._send(line(told))
        self._send_kept()

    def _send_kept(self) -> None:
        """Gives a new worker what is not confirmed. The ends of tasks on which a worker hung come after all
        others, and what is put aside last."""
        late: list[bytes] = []
        for name, parts in list(self._kept.items()):
            is_suspect = self._aside.is_suspect(name)
            for part, written in parts.items() if not self._aside.reason(name) else ():
                if is_suspect and part in ("close", "feedback"):
                    late.append(written)
                else:
                    self._send(written)
        for written in late:
            self._send(written)
        for name in [name for name in self._kept if self._aside.reason(name)]:
            self._put_aside(name)


def _is_whole(parts: dict[str, bytes]) -> bool:
    """Returns whether the lines of a task have its end. A vote is one line."""
    return "close" in parts or "feedback" in parts
