"""The parent's handle on the agents process: sends commands and counts finished tasks."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward import children
from onward.errors import OnwardError

ENOUGH = 20
"""Tasks from which a rate of success is shown."""


@dataclass
class Tally:
    """Tasks that the agents finished, counted since the last ``reset``."""

    tasks: int = 0
    successes: int = 0

    @property
    def note(self) -> str:
        """Success so far, or the number of tasks while they are too few for a rate."""
        if self.tasks < ENOUGH:
            return f"{self.tasks} tasks"
        return f"success {self.successes / self.tasks:.2f}"


class AgentsProcess:
    """32 agents in a child process. They alone write to ``outbox``."""

    def __init__(self, *, gateway: str, api_key: str, nats_url: str, outbox: Path) -> None:
        """``nats_url`` has the agents' login; it is passed in the environment, which no one else can read."""
        self.outbox = outbox
        self.tally = Tally()
        self._where = ("--gateway", gateway, "--outbox", str(outbox))
        self._environment = {"ONWARD_API_KEY": api_key, "NATS_URL": nats_url, "OMP_NUM_THREADS": "1"}
        self._child: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._ready = asyncio.Event()

    async def start(self, *, seed: int, max_tokens: int, run: str, log: Path) -> None:
        self.outbox.parent.mkdir(parents=True, exist_ok=True)
        self._child = await children.start(
            "onward.demo.agents",
            *self._where, "--seed", str(seed), "--max-tokens", str(max_tokens), "--run", run,
            log=log, stdin=asyncio.subprocess.PIPE, environment=self._environment,
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read())
        await self._wait(self._ready, "start")

    async def run_freely(self) -> None:
        """Starts tasks without a limit until ``pause`` or ``run_tasks``."""
        self._idle.clear()
        await self._send("flow")

    async def run_tasks(self, count: int) -> None:
        """Starts ``count`` more tasks and no others; ``idle`` is true when all have ended."""
        self._idle.clear()
        await self._send(f"run {count}")

    @property
    def idle(self) -> bool:
        """True when the tasks of the last ``run_tasks`` have ended and their records are flushed."""
        return self._idle.is_set()

    async def pause(self) -> None:
        """Waits until running tasks have ended and their records are flushed."""
        self._idle.clear()
        await self._send("pause")
        await self._wait(self._idle, "pause")

    async def stop(self) -> None:
        if self._child is None:
            return
        if self._child.returncode is None:
            await self._send("stop")
            try:
                await asyncio.wait_for(self._child.wait(), 90)
            except TimeoutError:
                await children.end(self._child)
        if self._reader is not None:
            await self._reader

    def reset(self) -> None:
        self.tally = Tally()

    def refuse_if_ended(self) -> None:
        """Raises OnwardError if the process has ended."""
        if self._child is None or self._child.returncode is not None:
            raise OnwardError("The demo's agents have ended: see logs/agents.log in the data folder.")

    async def _send(self, command: str) -> None:
        self.refuse_if_ended()
        assert self._child is not None and self._child.stdin is not None
        self._child.stdin.write(command.encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # it is ending: the next call says so
            await self._child.stdin.drain()

    async def _wait(self, event: asyncio.Event, what: str) -> None:
        assert self._child is not None
        ended = asyncio.create_task(self._child.wait())
        happened = asyncio.create_task(event.wait())
        try:
            await asyncio.wait({ended, happened}, timeout=300, return_when=asyncio.FIRST_COMPLETED)
            if not event.is_set():
                raise OnwardError(
                    f"The demo's agents did not {what}: see logs/agents.log in the data folder."
                )
        finally:
            ended.cancel()
            happened.cancel()

    async def _read(self) -> None:
        assert self._child is not None
        async for event in children.events(self._child):
            self._count(event)

    def _count(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "ready":
                self._ready.set()
            case "idle":
                self._idle.set()
            case "task":
                self.tally.tasks += 1
                self.tally.successes += bool(event["success"])
