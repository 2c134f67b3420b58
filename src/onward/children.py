"""The parent's side of a child process: start, events as JSON lines, keeping alive, end.

Every child is a fresh interpreter that ends with its parent (``onward.processes``). Its standard output is a
pipe of JSON lines, its standard error is appended to a log file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.clock import Clock
from onward.files import OWNER_ALONE
from onward.processes import child_environment
from onward.retry import Backoff
from onward.telemetry import logs

_log = logs.get("children")
_LONGEST_LINE = 1 << 22
"""Bytes of one JSON line."""
PROBE_SECONDS = 5.0
"""Pause between two probes of a child, and time limit for its answer."""


async def start(
    module: str,
    *arguments: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    passed: Sequence[str] = (),
    group: bool = False,
    stdin: int = DEVNULL,
    python: str = sys.executable,
) -> Process:
    """Starts ``python -m module arguments``. Its environment is ``environment``, and of this process's own
    the variables that ``child_environment`` passes to every child and those that ``passed`` names.

    ``group``: the child leads a process group of its own, so that Ctrl-C does not reach it and ``end`` ends
    its children as well. ``python``: the interpreter, where the child needs another environment's packages.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        return await asyncio.create_subprocess_exec(
            *(python, "-m", module, *arguments),
            stdin=stdin,
            stdout=PIPE,
            stderr=errors,
            start_new_session=group,
            limit=_LONGEST_LINE,
            env=child_environment(*passed, **(environment or {})),
            umask=OWNER_ALONE,
        )


async def events(child: Process) -> AsyncIterator[dict[str, Any]]:
    """Yields each JSON object that the child prints on a line; skips other lines (output of libraries)."""
    assert child.stdout is not None
    async for line in child.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def send(child: Process, number: signal.Signals) -> None:
    """Sends a signal to the child, and to its group if it leads one; does nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(child.pid) == child.pid:
            os.killpg(child.pid, number)
        else:
            child.send_signal(number)


def kill_group(leader: int) -> None:
    """Kills what is left of the process group of a leader, which may have ended itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


async def end(child: Process | None, seconds: float = 0.0) -> bool:
    """Ends the child: SIGTERM, ``seconds`` to finish, SIGKILL. Returns False if it had to be killed."""
    if child is None or child.returncode is not None:
        return True
    if seconds > 0:
        send(child, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), seconds)
            return True
    send(child, signal.SIGKILL)
    await child.wait()
    return False


class Keeper:
    """Keeps one child alive: starts another when it dies or hangs, more slowly each time it dies young."""

    def __init__(
        self,
        name: str,
        spawn: Callable[[], Awaitable[Process]],
        *,
        clock: Clock,
        longest_pause: float = 10.0,
        on_death: Callable[[], object] = lambda: None,
        probe: Callable[[], Awaitable[object]] | None = None,
        misses: int = 4,
    ) -> None:
        """``spawn`` returns a child that is ready. ``on_death`` is called each time that one has died.

        ``probe`` returns when the child answers, however busy it is. A child whose last ``misses`` probes
        failed or were not answered in time is killed. Probes are counted, not seconds, so a pause of this
        process or of the whole machine kills no child.
        """
        self._name, self._spawn, self._clock, self._on_death = name, spawn, clock, on_death
        self._longest_pause = longest_pause
        self._probe, self._misses = probe, misses
        self._task: asyncio.Task[None] | None = None
        self._asked: str | None = None
        self.child: Process | None = None
        """The present child; None before ``start``."""
        self.restarts = 0
        self.ends = 0
        """Number of children that ended or were ended before ``stop``."""
        self.cause = ""
        """Reason for which the last one ended, as a clause: ``it ended with code -9``."""

    @property
    def pid(self) -> int | None:
        """Process id of the child, or None while none runs."""
        return self.child.pid if self.child is not None and self.child.returncode is None else None

    async def start(self) -> None:
        """Starts the first child. Raises what ``spawn`` raises."""
        self.child = await self._spawn()
        self._task = asyncio.create_task(self._keep(), name=f"{self._name}-keeper")

    async def restart(self, cause: str, seconds: float) -> None:
        """Ends the child, which has ``seconds`` to finish; another one is then started as after a death.

        ``cause`` is a clause such as ``its store refuses to write``.
        """
        if self.pid is not None:
            self._asked = cause
            await end(self.child, seconds)

    async def stop(self, seconds: float) -> None:
        """Ends the child, which has ``seconds`` to finish."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if not await end(self.child, seconds):
            _log.error("child did not stop, killed it", child=self._name)

    async def _keep(self) -> None:
        backoff = Backoff(0.1, self._longest_pause)
        while True:
            born = self._clock.monotonic()
            self.cause = await self._until_end()
            self.ends += 1
            _log.error("child is started again", child=self._name, cause=self.cause)
            self._on_death()
            if self._clock.monotonic() - born > 3 * self._longest_pause:
                backoff.reset()
            while True:
                await self._clock.sleep(backoff.next())
                try:
                    self.child = await self._spawn()
                    break
                except Exception as error:
                    _log.error("child does not start", child=self._name, cause=str(error))
            self.restarts += 1

    async def _until_end(self) -> str:
        """Waits until the child has ended, and kills it if it hangs. Returns why it ended."""
        child = self.child
        assert child is not None
        ending = asyncio.ensure_future(child.wait())
        watching = asyncio.ensure_future(self._until_hung(self._probe)) if self._probe else None
        try:
            await asyncio.wait(
                {ending} if watching is None else {ending, watching}, return_when=asyncio.FIRST_COMPLETED
            )
            if watching is not None and not ending.done():
                await end(child)
                return watching.result()
            return self._asked or f"it ended with code {ending.result()}"
        finally:
            self._asked = None
            ending.cancel()
            if watching is not None:
                watching.cancel()

    async def _until_hung(self, probe: Callable[[], Awaitable[object]]) -> str:
        """Probes the child until it does not answer any more; returns that as a clause."""
        missed = 0
        while missed < self._misses:
            await self._clock.sleep(PROBE_SECONDS)
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await probe()
                missed = 0
            except Exception as error:
                missed += 1
                _log.warning("child does not answer", child=self._name, missed=missed, why=repr(error))
        return f"it did not answer {missed} times in a row"
