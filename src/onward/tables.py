"""One style for every table that a person reads in the terminal.

A title at the left, no frame, numbers at the right. Nothing is cut: sentences wrap between words, ids and
numbers stay whole. If the terminal is too narrow for that, each row becomes a block of names and values; an
id that does not fit beside its name, such as a digest, gets a line of its own there.
Stored text is shown as it is: it is not read as markup, and its control characters are escaped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from onward.errors import runnable

GAP = 2
"""Columns of the terminal between two columns of a table."""
READABLE = 20
"""Least width of a sentence in columns of the terminal."""
_LINES = box.Box("\n".join(("    ", "    ", " ── ", "    ", " ── ", "    ", "    ", "    ")) + "\n")
"""A line below the titles and one before a section."""
_LONGEST_WORD = 40
"""Length above which a word, such as a path, is broken rather than kept whole."""


@dataclass(frozen=True)
class Column:
    """Title and kind of a column; ``text`` may wrap, ``id`` and ``number`` may not."""

    title: str
    kind: Literal["text", "id", "number"] = "text"


def ident(title: str) -> Column:
    """Returns a column of ids. They are never cut, because other commands take them."""
    return Column(title, "id")


def number(title: str) -> Column:
    """Returns a column of numbers: at the right, never cut."""
    return Column(title, "number")


class Table:
    """Rows under titled columns, for ``Console.print``."""

    def __init__(self, *columns: Column | str, title: str = "", empty: str = "none yet") -> None:
        given = [Column(column) if isinstance(column, str) else column for column in columns]
        self.columns = [Column(plain(column.title), column.kind) for column in given]
        self.title = runnable(title)
        self.empty = runnable(empty)
        self._rows: list[tuple[list[Text], str]] = []
        self._sections: set[int] = set()
        self._upright = False

    def add_row(self, *cells: Any, style: str = "") -> None:
        """Adds a row; a cell may be any plain value, or a ``Text`` with its own style."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self._rows.append(([_text(value) for value in cells], style))

    def section(self) -> None:
        """Draws a line between the rows so far and the next one."""
        self._sections.add(len(self._rows))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows:
            yield Text(
                f"{plain(self.title)}: {self.empty}."
                if self.title
                else f"{self.empty[:1].upper()}{self.empty[1:]}."
            )
            return
        if self.title:
            yield Text(plain(self.title), style="bold")
        widths = None if self._upright else self._widths(options.max_width)
        if widths is None:
            yield from self._blocks(options.max_width)
        else:
            yield self._grid(widths)

    def _widths(self, room: int) -> list[int] | None:
        """Width of each column, or None if ``room`` is too small for a readable table."""
        needs = [self._need(index) for index in range(len(self.columns))]
        room -= GAP * (len(needs) - 1)
        if sum(least for least, _ in needs) > room:
            return None
        level = max(most for _, most in needs)
        while sum(max(least, min(most, level)) for least, most in needs) > room:
            level -= 1
        return [max(least, min(most, level)) for least, most in needs]

    def _need(self, index: int) -> tuple[int, int]:
        """Least and greatest useful width of a column."""
        column = self.columns[index]
        cells = [row[index].plain for row, _ in self._rows]
        title = max(map(cell_len, column.title.split()), default=0)
        if column.kind != "text":
            whole = max(title, *map(cell_len, cells))
            return whole, whole
        widest = max(map(cell_len, [column.title, *cells]))
        word = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
        return min(widest, max(READABLE, title, min(word, _LONGEST_WORD))), widest

    def _grid(self, widths: Sequence[int]) -> RichTable:
        grid = RichTable(box=_LINES, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        for column, width in zip(self.columns, widths, strict=True):
            right = column.kind == "number"
            grid.add_column(
                Text(column.title), justify="right" if right else "left", width=width, overflow="fold"
            )
        for index, (cells, style) in enumerate(self._rows):
            if index in self._sections:
                grid.add_section()
            grid.add_row(*cells, style=style)
        return grid

    def _blocks(self, room: int) -> Iterator[RichTable | Text]:
        widest = max(cell_len(column.title) for column in self.columns)
        for index, (cells, style) in enumerate(self._rows):
            if index:
                yield Text()
            block = None
            for column, cell in zip(self.columns, cells, strict=True):
                if room - GAP - widest < cell_len(cell.plain) <= room - GAP and " " not in cell.plain:
                    if block is not None:
                        yield block
                    block = None
                    yield Text(column.title, style="bold")
                    yield Text(" " * GAP, style=style).append_text(cell)
                    continue
                if block is None:
                    block = RichTable.grid(padding=(0, GAP, 0, 0))
                    block.add_column(width=widest, style="bold")
                    block.add_column(overflow="fold")
                block.add_row(Text(column.title), cell, style=style)
            if block is not None:
                yield block


def facts(values: Mapping[str, Any], title: str = "") -> Table:
    """Returns one record as a block of names and values, at any width."""
    table = Table(*values, title=title)
    table._upright = True
    table.add_row(*values.values())
    return table


def plain(text: str) -> str:
    """Escapes everything in ``text`` that a terminal would obey or hide, such as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def plain_lines(text: str) -> str:
    """Works like ``plain`` on each line of ``text``."""
    return "\n".join(map(plain, text.split("\n")))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")


def cell(value: Any) -> str:
    """Formats a plain value: a dash for nothing, yes and no, times to the second."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(str(key))} {cell(entry)}" for key, entry in value.items()) or "-"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(cell, value)) or "-"
    return plain(str(value))


def _text(value: Any) -> Text:
    return value if isinstance(value, Text) else Text(cell(value))
