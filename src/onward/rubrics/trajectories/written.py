"""Rubrics that a writer writes for each task: a fixed writer, or the released one. No torch here: a writer
that is a model has a process of its own.

The released writer is looked up for each trajectory. So a running scorer takes a new release, and a rollback,
with the next trajectory; what was scored before stays as it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from onward import extras
from onward.contracts.buckets import ReleasedWriter
from onward.errors import ConfigError, EngineError
from onward.lru import Lru
from onward.rubrics.check import Check
from onward.rubrics.language import Rubric
from onward.rubrics.policy.evaluation import Plays
from onward.rubrics.tasks import RubricTask
from onward.rubrics.writer_process import WriterProcess
from onward.rubrics.writers import RELEASED, loads_model, open_writer, rubric_by

_REMEMBERED = 4096
"""Tasks whose written rubric is remembered."""


class WriterSource(Protocol):
    """Finds the released writer and its files."""

    async def released(self) -> ReleasedWriter | None: ...

    async def folder(self, writer: ReleasedWriter) -> Path: ...


@dataclass(frozen=True)
class WriterName:
    """Writer of a rubric, as a score records it."""

    version: str
    digest: str


@dataclass(frozen=True)
class Written:
    rubric: Rubric
    writer: WriterName | None = None
    """Version of a released writer; None for a writer that the settings name."""


class Writes(Protocol):
    """Writes the rubric of a task."""

    async def rubric(self, task: RubricTask) -> Written:
        """Raises InvalidRubric if the writer's text is none, and OnwardError if it cannot be had."""
        ...


Write = Callable[[RubricTask], Awaitable[Rubric]]
"""Writes a rubric. Raises InvalidRubric and EngineError."""


def in_this_process(player: Plays) -> Write:
    """Returns how a player that needs no model of its own writes: on a thread of this process."""

    async def write(task: RubricTask) -> Rubric:
        return await asyncio.to_thread(rubric_by, player, task)

    return write


class RubricWriter:
    """Writes a rubric for each task, once. It reads the brief and the checks, and cannot ask a stakeholder
    outside of known tasks."""

    def __init__(self, write: Write, name: WriterName | None = None) -> None:
        self._write, self.name = write, name
        self._known: Lru[tuple[str, tuple[Check, ...]], Rubric] = Lru(_REMEMBERED)
        self._one_at_a_time = asyncio.Lock()

    async def rubric(self, task: RubricTask) -> Written:
        key = (task.brief, task.active)
        async with self._one_at_a_time:
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = await self._write(task)
        return Written(known, self.name)


class ReleasedRubricWriter:
    """The released writer, whichever it is when a task is given."""

    def __init__(self, source: WriterSource, process: WriterProcess) -> None:
        self._source, self._process = source, process
        self._present: RubricWriter | None = None
        self._fetching = asyncio.Lock()

    async def rubric(self, task: RubricTask) -> Written:
        return await (await self._writer()).rubric(task)

    async def _writer(self) -> RubricWriter:
        async with self._fetching:
            pointer = await self._source.released()
            if pointer is None:
                raise EngineError(
                    "No rubric writer is released: train one with a rubrics job, or name another writer."
                )
            name = WriterName(pointer.version, pointer.digest)
            if self._present is None or self._present.name != name:
                folder = await self._source.folder(pointer)
                self._present = RubricWriter(partial(self._process.write, str(folder.absolute())), name)
            return self._present


class Writers:
    """The writers of the settings, each opened once; those that are models have a process each."""

    def __init__(self, released: WriterSource | None, logs: Path | None) -> None:
        """``logs``: folder of the processes' logs; None: they write none."""
        self._released, self._logs = released, logs
        self._opened: dict[str, Writes] = {}
        self.processes: list[WriterProcess] = []

    def open(self, name: str) -> Writes:
        """Returns the writer of ``name``. Loads nothing. Raises ConfigError for a name of none, and
        MissingExtraError if a model cannot be loaded here."""
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def _open(self, name: str) -> Writes:
        if name == RELEASED:
            if self._released is None:
                raise ConfigError(
                    "the released writer is known to a service alone: name another writer here."
                )
            return ReleasedRubricWriter(self._released, self._process())
        if loads_model(name):
            return RubricWriter(partial(self._process().write, name))
        return RubricWriter(in_this_process(open_writer(name).player))

    def _process(self) -> WriterProcess:
        extras.require("lm", "torch", "A rubric writer that is a model")
        number = len(self.processes) + 1
        name = "rubric-writer" if number == 1 else f"rubric-writer-{number}"
        log = Path(os.devnull) if self._logs is None else self._logs / f"{name}.log"
        self.processes.append(WriterProcess(name, log))
        return self.processes[-1]
