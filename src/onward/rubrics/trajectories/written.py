"""Rubrics that a writer writes for each task: a fixed writer, or the released one.

The released writer is looked up for each trajectory. So a running scorer takes a new release, and a rollback,
with the next trajectory; what was scored before stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from onward.contracts.buckets import ReleasedWriter
from onward.errors import EngineError
from onward.lru import Lru
from onward.rubrics.check import Check
from onward.rubrics.language import InvalidRubric, Rubric
from onward.rubrics.tasks import Task

if TYPE_CHECKING:
    from onward.rubrics.policy.evaluation import Plays

RELEASED = "released"
"""Name of the released writer in the settings and in commands."""
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

    async def rubric(self, task: Task) -> Written:
        """Raises InvalidRubric if the writer's text is none, and OnwardError if it cannot be had."""
        ...


def unanswered(task: Task) -> Callable[[str], str]:
    """Returns the stakeholder of a task that is scored: no one answers."""
    return lambda topic: ""


class RubricWriter:
    """Writes a rubric for each task, once. It reads the brief and the checks, and cannot ask a stakeholder
    outside of known tasks."""

    def __init__(self, player: Plays, name: WriterName | None = None) -> None:
        self._player, self.name = player, name
        self._known: Lru[tuple[str, tuple[Check, ...]], Rubric] = Lru(_REMEMBERED)
        self._one_at_a_time = asyncio.Lock()

    async def rubric(self, task: Task) -> Written:
        key = (task.brief, task.active)
        async with self._one_at_a_time:
            known = self._known.get(key)
            if known is None:
                (attempt,) = await asyncio.to_thread(
                    self._player.play, [task], temperature=0.0, stakeholder=unanswered
                )
                if attempt.rubric is None:
                    raise InvalidRubric(f"The writer's text is no rubric: {attempt.problem}")
                known = self._known[key] = attempt.rubric
        return Written(known, self.name)


class ReleasedRubricWriter:
    """The released writer, whichever it is when a task is given."""

    def __init__(self, source: WriterSource) -> None:
        self._source = source
        self._present: RubricWriter | None = None
        self._loading = asyncio.Lock()

    async def rubric(self, task: Task) -> Written:
        return await (await self._writer()).rubric(task)

    async def _writer(self) -> RubricWriter:
        async with self._loading:
            pointer = await self._source.released()
            if pointer is None:
                raise EngineError(
                    "No rubric writer is released: train one with a rubrics job, or name another writer."
                )
            name = WriterName(pointer.version, pointer.digest)
            if self._present is None or self._present.name != name:
                folder = await self._source.folder(pointer)
                self._present = RubricWriter(await asyncio.to_thread(_load, folder), name)
            return self._present


def _load(folder: Path) -> Plays:
    from onward.rubrics.policy.writer import load_player  # loads torch

    return load_player(folder)
