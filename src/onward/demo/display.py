"""Progress display of the demonstration: one line per stage, with its time and the time left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from onward.progress import Bar, Bars

TITLE_WIDTH = 24
"""Width of a title such as "Cycle 1: agents at work" on a terminal of 80 columns."""


class Stages:
    """Times every stage and draws the current one. ``seconds``: stage name → time spent."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}
        self._bars = Bars(console, title_width=TITLE_WIDTH, fitted=True)

    def __enter__(self) -> Stages:
        self._bars.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bars.__exit__(*exc)

    @contextmanager
    def stage(self, name: str, title: str, total: float | None = None) -> Iterator[Bar]:
        """Counts the time of its block as stage ``name``."""
        bar = self._bars.add(title, total)
        self._bars.plain(f"{title} …")
        started = time.monotonic()
        try:
            yield bar
            bar.finish()
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
