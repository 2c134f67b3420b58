"""What a person sees while the demonstration runs: the stage, its progress, the time left.

One live line per stage. Without a terminal the same facts come as plain lines, at most one every
ten seconds, so that a log stays readable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Stages:
    """Times every stage and draws the current one. ``seconds`` maps stage name to time spent."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=False,
        )
        self._last_line = 0.0

    def __enter__(self) -> Stages:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    @contextmanager
    def stage(self, name: str, title: str, total: float | None = None) -> Iterator[Stage]:
        """Everything inside counts as stage ``name``."""
        task = self._progress.add_task(title, total=total, note="")
        if not self.console.is_terminal:
            self.console.print(f"{title} …", highlight=False)
        started = time.monotonic()
        try:
            yield Stage(self, task, title)
        finally:
            spent = time.monotonic() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            known = self._progress.tasks[task].total
            self._progress.update(task, total=known or 1.0, completed=known or 1.0)
            self._progress.stop_task(task)

    def _update(self, task: TaskID, title: str, done: float | None, total: float | None, note: str) -> None:
        self._progress.update(task, completed=done, total=total, note=note)
        if not self.console.is_terminal and time.monotonic() - self._last_line > 10.0:
            self._last_line = time.monotonic()
            share = f" {done:g}/{total:g}" if done is not None and total else ""
            self.console.print(f"  {title}{share} {note}", highlight=False)


class Stage:
    """Handle of a running stage."""

    def __init__(self, stages: Stages, task: TaskID, title: str) -> None:
        self._stages = stages
        self._task = task
        self._title = title

    def update(self, done: float | None = None, *, total: float | None = None, note: str = "") -> None:
        self._stages._update(self._task, self._title, done, total, note)
