"""Progress bars of every command: title, bar, note, elapsed time, remaining time, on one line at any width.

Widths are computed from the width of the terminal at each draw. A note that is too long loses whole parts at
its end (parts are separated by `` · ``) and gets an ellipsis; no column disappears and no line wraps. Without
a terminal the same facts are printed as plain lines, at most one per bar every ten seconds, so that a log
stays readable. Nothing of onward is imported here: the demonstration and the command line both use it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

PART = " · "
"""Separator between the parts of a note."""
LINE_SECONDS = 10.0
MOVES = 3
"""Updates that move a bar before its time left is shown. The first begins the measurement: what passed before
it is start-up, which is no measure of the pace."""
NARROW = 60
"""Width in columns below which the bar itself is left out."""


def clock(seconds: float) -> str:
    """Formats seconds as ``0:07``, ``12:30`` or ``1:02:03``."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def shortened(note: str, width: int) -> str:
    """Shortens ``note`` to at most ``width`` columns: an ellipsis replaces the last parts, then letters."""
    if cell_len(note) <= width:
        return note
    parts = note.split(PART)
    while len(parts) > 1:
        parts.pop()
        shorter = PART.join(parts) + " …"
        if cell_len(shorter) <= width:
            return shorter
    return set_cell_size(note, max(0, width - 1)).rstrip() + "…" if width > 0 else ""


class Bar:
    """One running activity. ``total`` is None if its end is not known."""

    def __init__(self, owner: Bars, title: str, total: float | None, completed: float, counted: bool) -> None:
        self.title, self.total, self.completed, self.note = title, total, completed, ""
        self._owner, self._counted = owner, counted
        self._moves = 0
        self._measured_from = (0.0, completed)  # when the first update moved it, and to where
        self._started = self._updated = owner.now()
        self._ended: float | None = None
        self._printed = self._started - LINE_SECONDS
        self._news = False
        self.full = False
        """True if it is drawn as done, even if its end was not known."""

    @property
    def elapsed(self) -> float:
        """Seconds since it began, or its duration if it has ended."""
        return (self._owner.now() if self._ended is None else self._ended) - self._started

    @property
    def left(self) -> float | None:
        """Seconds to its end at the mean speed since the first step; None while too few steps are done, and
        after the end."""
        since, begun_with = self._measured_from
        done = self.completed - begun_with
        if self.total is None or self._moves < MOVES or done <= 0 or self._ended is not None:
            return None
        at_update = (self._updated - since) / done * (self.total - self.completed)
        return max(0.0, at_update - (self._owner.now() - self._updated))

    @property
    def count(self) -> str:
        """``1,200/5,000`` in whole numbers; empty if its end is not known."""
        return f"{int(self.completed):,}/{math.ceil(self.total):,}" if self.total else ""

    @property
    def drawn_note(self) -> str:
        """The note on a terminal, after the count if that is wanted there."""
        return PART.join(filter(None, (self.count if self._counted else "", self.note)))

    def update(
        self,
        completed: float | None = None,
        *,
        total: float | None = None,
        note: str | None = None,
        title: str | None = None,
    ) -> None:
        """Reports progress. Values that are left out stay as they are."""
        if completed is not None:
            now = self._owner.now()
            if completed > self.completed:
                self._moves += 1
                if self._moves == 1:
                    self._measured_from = (now, completed)
            self.completed, self._updated = completed, now
        self.total = self.total if total is None else total
        self.note = self.note if note is None else note
        self.title = self.title if title is None else title
        self._news = True
        if self._owner.now() - self._printed >= LINE_SECONDS:
            self._line()

    def finish(self, *, full: bool = True) -> None:
        """Stops its clock; the line stays on the terminal. ``full``: it did all its work."""
        if self._ended is None:
            self._ended = self._owner.now()
            if full and self.total is not None:
                self._news = self._news or self.completed != self.total
                self.completed = self.total
            self.full = full
            if self._news:
                self._line()
            self._owner.ended(self)

    def _line(self) -> None:
        """Prints its state if no terminal draws it."""
        self._printed, self._news = self._owner.now(), False
        left = "" if self.left is None else f" ({clock(self.left)} left)"
        head = f"{self.title} {self.count}".rstrip()
        note = self.note
        if self._owner.fitted:
            note = shortened(note, self._owner.console.width - cell_len(head) - cell_len(left) - 1)
        self._owner.plain(f"{head} {note}".rstrip() + left)


class Bars:
    """The bars of one command. ``quiet``: nothing is drawn or printed. ``fitted``: without a terminal, lines
    are shortened to the width of the console too."""

    def __init__(
        self,
        console: Console,
        *,
        quiet: bool = False,
        fitted: bool = False,
        title_width: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.now, self.fitted = console, now, fitted
        self._active: list[Bar] = []
        self._title = title_width
        self._plain = not quiet and not console.is_terminal
        self._live: Live | None = None
        if not quiet and console.is_terminal:
            self._live = Live(
                console=console,
                refresh_per_second=8,
                transient=True,  # finished lines were printed above and stay there
                redirect_stdout=not console.stderr,  # a command's output stays on standard output
                get_renderable=self._lines,
            )

    def __enter__(self) -> Bars:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for bar in list(self._active):
            bar.finish(full=False)
        if self._live is not None:
            self._live.stop()

    def add_bar(
        self, title: str, total: float | None = None, completed: float = 0.0, *, counted: bool = False
    ) -> Bar:
        """Starts another line. ``counted``: a terminal shows the count too; plain lines always have it."""
        bar = Bar(self, title, total, completed, counted)
        self._active.append(bar)
        return bar

    def plain(self, line: str) -> None:
        """Prints ``line`` if there is no terminal; prints nothing on a terminal, or when quiet."""
        if self._plain:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def ended(self, bar: Bar) -> None:
        """Prints the last state of ``bar`` above the lines that still move, so that these stay visible."""
        if bar in self._active:
            if self._live is not None:
                self.console.print(self.drawn([bar]))
            self._active.remove(bar)

    def _lines(self) -> RenderableType:
        bars = list(self._active)
        return self.drawn(bars) if bars else Group()

    def drawn(self, bars: Sequence[Bar]) -> Table:
        """Returns one line for each of ``bars``, exactly as wide as the terminal."""
        width = self.console.width
        spent = [clock(bar.elapsed) for bar in bars]
        left = ["" if bar.left is None else f"{clock(bar.left)} left" for bar in bars]
        spent_width = max(4, *map(len, spent))
        left_width = max(9, *map(len, left))
        longest = max(self._title, *(cell_len(bar.title) for bar in bars))
        room = width - spent_width - left_width - 2  # for title, bar and note, with the gaps between them
        bar_width = min(28, max(8, (width - 48) // 4)) if width >= NARROW else 0
        title_width = min(longest, max(12, width * 3 // 10))
        self._title = max(self._title, title_width)  # finished lines and running ones stay aligned
        note_width = max(0, room - title_width - (bar_width + 1 if bar_width else 0) - 1)
        table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
        for size in (title_width, bar_width, note_width, spent_width, left_width):
            if size:
                table.add_column(width=size, no_wrap=True, overflow="ellipsis")
        for bar, time_spent, time_left in zip(bars, spent, left, strict=True):
            cells: list[RenderableType] = [Text(shortened(bar.title, title_width))]
            if bar_width:
                total, completed = (1.0, 1.0) if bar.full else (bar.total, bar.completed)
                cells.append(ProgressBar(total=total, completed=completed, width=bar_width))
            if note_width:
                cells.append(Text(shortened(bar.drawn_note, note_width), style="default"))
            cells.append(Text(time_spent, style="yellow", justify="right"))
            cells.append(Text(time_left, style="cyan", justify="right"))
            table.add_row(*cells)
        return table
