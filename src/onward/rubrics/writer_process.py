"""The process of a rubric writer that is a model, as its user sees it. No torch here.

The process starts at the first request, and again whenever it dies or hangs. It keeps nothing that a new one
has not: the writer is loaded again at the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

from onward import children
from onward.clock import SystemClock
from onward.errors import EngineError
from onward.memory import KillWatch
from onward.processes import CALLING, COMPUTING
from onward.rubrics.language import InvalidRubric, Rubric, parse
from onward.rubrics.tasks import RubricTask

CHILD = "onward.rubrics.writer_child"
WRITE_SECONDS = 60.0
"""Time limit for one rubric, below that of a trajectory (``reward.role.analysis.RUBRIC_SECONDS``)."""
LOAD_SECONDS = 600.0
"""Time limit for a rubric that a writer writes first, after it is loaded."""
ONE_THREAD = "1"
"""CPU threads of the child, if OMP_NUM_THREADS is not set. A small writer gains nothing by more, and loses
much where other processes need the cores."""
START_SECONDS = 10.0
"""Time limit for another child to run after one has died; a longer pause leaves trajectories unscored."""
_END_SECONDS = 5.0


class _LostError(EngineError):
    """The process ended while it had a request."""


class WriterProcess:
    """One child, which loads the writer that a request names, and writes one rubric at a time."""

    def __init__(
        self,
        name: str,
        log: Path,
        *,
        write_seconds: float = WRITE_SECONDS,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        self.name, self._log = name, log
        self._write_seconds, self._load_seconds = write_seconds, load_seconds
        self.keeper = children.Keeper(
            name,
            self._spawn,
            clock=SystemClock(),
            longest_pause=30.0,
            on_death=lambda: self._lose(self._child),
            probe=self._ask,
        )
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._turn, self._runs = asyncio.Lock(), asyncio.Event()
        self._kept = False
        self._child: Process | None = None
        self._kills: KillWatch | None = None
        self._loaded = ""
        """Writer that the present child has loaded."""
        self._working: set[asyncio.Task[Any]] = set()

    async def write(self, writer: str, task: RubricTask) -> Rubric:
        """Returns the rubric of ``writer``, a name of ``writers.FORMS``, for the brief and the checks of
        ``task``. Raises InvalidRubric if its text is none, and EngineError if it cannot be had.

        A request that has begun goes on if its caller gives up, so its time limit always counts from its
        beginning.
        """
        await self._turn.acquire()
        request = self._begin(self._request(writer, task))
        request.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(request)

    async def stop(self) -> None:
        """Ends the child. A later request starts another one."""
        for one in list(self._working):
            one.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        if self._kept:
            await self.keeper.stop(_END_SECONDS)
        self._kept = False
        self._lose(self._child)

    async def _request(self, writer: str, task: RubricTask) -> Rubric:
        try:
            answer = await self._answer(writer, task)
        except _LostError:  # another child may live longer
            answer = await self._answer(writer, task)
        if "rubric" in answer:
            self._loaded = writer
            return parse(answer["rubric"], task.active)
        raise (InvalidRubric if answer.get("invalid") else EngineError)(answer["error"])

    async def _answer(self, writer: str, task: RubricTask) -> dict[str, Any]:
        await self._wait_for_child()
        seconds = self._write_seconds if self._loaded == writer else self._load_seconds
        checks = [(check.name, check.arg) for check in task.active]
        try:
            async with asyncio.timeout(seconds):
                return await self._ask(writer=writer, brief=task.brief, checks=checks)
        except TimeoutError:
            child = self._child
            await self.keeper.restart(f"it wrote no rubric within {seconds:g} s", 0.0)
            self._lose(child)
            raise EngineError(
                f"The rubric writer {writer} wrote no rubric within {seconds:g} s, so its process is started "
                f"again."
            ) from None

    async def _ask(self, **request: Any) -> dict[str, Any]:
        """Returns the answer of the child to a request; without any facts the request is a probe."""
        child, number = self._child, next(self._numbers)
        if child is None or child.stdin is None:
            raise EngineError("The process of the rubric writer does not run.")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            child.stdin.write(json.dumps({"id": number, **request}).encode() + b"\n")
            with contextlib.suppress(ConnectionError):  # it has ended: the keeper says so
                await child.stdin.drain()
            return await answer
        finally:
            del self._answers[number]

    async def _wait_for_child(self) -> None:
        if not self._kept:
            try:
                await self.keeper.start()
            except OSError as error:
                raise EngineError(
                    f"The process of the rubric writer cannot be started ({error.strerror})."
                ) from None
            self._kept = True
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._runs.wait()
        except TimeoutError:
            raise EngineError(
                f"The process of the rubric writer is being started again, since {self._cause()}."
            ) from None

    async def _spawn(self) -> Process:
        child = await children.start(
            CHILD,
            log=self._log,
            environment={
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ONE_THREAD),
                "TOKENIZERS_PARALLELISM": "false",
            },
            passed=(*COMPUTING, *CALLING),
            group=True,
            stdin=PIPE,
        )
        self._child, self._kills = child, KillWatch(child.pid)
        self._runs.set()
        self._begin(self._read(child))
        return child

    async def _read(self, child: Process) -> None:
        async for event in children.events(child):
            answer = self._answers.get(event["id"])
            if answer is not None and not answer.done():
                answer.set_result(event)

    def _lose(self, child: Process | None) -> None:
        """Fails the requests of a child that has ended, unless another one has taken its place."""
        if child is not self._child:
            return
        self._runs.clear()
        self._loaded = ""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(
                    _LostError(f"The process of the rubric writer is gone: {self._cause()}.")
                )

    def _cause(self) -> str:
        """Returns the reason for which the last child ended, as a clause."""
        killed = self._child is not None and self._child.returncode == -signal.SIGKILL
        if killed and self._kills is not None and self._kills.has_seen_one:
            return "the kernel killed it for lack of memory"
        return self.keeper.cause

    def _begin(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=self.name)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task
