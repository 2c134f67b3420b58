"""Layout of every ``--help``; the apps of the command line are built from ``Commands``.

In a help text, the lines of a paragraph are joined and wrapped to the terminal. A block whose lines are
indented, or begin with ``onward`` or ``$``, is an example with one command per line. A command that is too
long for the terminal continues after a backslash, between two options and never inside one, so that it can be
copied.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

_MARGIN = 2
"""Columns that typer leaves free beside a help text."""
_INDENT = "  "
_FOLDERS = frozenset({"data_dir", "folder", "out", "start"})
"""Options and arguments that name a folder. Every other path is a file."""


def joined(text: str) -> str:
    """Returns ``text`` with one line for each paragraph and for each command of an example."""
    blocks = [block for block in re.split(r"\n\s*\n", inspect.cleandoc(text)) if block.strip()]
    return "\n\n".join(_block(block.splitlines()) for block in blocks)


def _block(lines: Sequence[str]) -> str:
    if all(line.startswith((" ", "onward ", "$ ")) for line in lines):
        return "\n".join(_INDENT + line.strip() for line in lines)
    return " ".join(line.strip() for line in lines)


def fitted(text: str, width: int) -> str:
    """Returns a text of ``joined`` as markup; examples wider than ``width`` columns break between options."""
    shown = []
    for line in text.splitlines():
        if line.startswith(_INDENT):
            shown += map(_bright, _broken(line, width))
        else:
            shown.append(line)
    return "\n".join(shown)


def _bright(command: str) -> str:
    escaped = command.replace("[", r"\[") + ("\\" if command.endswith("\\") else "")
    return f"[not dim]{escaped}[/]"


def _broken(command: str, width: int) -> list[str]:
    if len(command) <= width:
        return [command]
    parts = re.split(r" (?=-|\| )", command.strip())
    lines, line = [], _INDENT + parts[0]
    for part in parts[1:]:
        if len(f"{line} {part} \\") > width:
            lines.append(f"{line} \\")
            line = 2 * _INDENT + part
        else:
            line += f" {part}"
    return [*lines, line]


def _value(param: TyperOption) -> str:
    """Returns the placeholder after an option: FILE, N>=1, json|text; empty for a switch."""
    if param.metavar is not None or param.is_flag:
        return param.metavar or ""
    if param.type_descriptor.choices:
        return "|".join(map(str, param.type_descriptor.choices))
    kind = param.type_descriptor.annotation
    kind = next(iter(get_args(kind)), kind)
    if isinstance(kind, type) and issubclass(kind, Path):
        return "FOLDER" if param.name in _FOLDERS else "FILE"
    if kind not in (int, float):
        return "TEXT"
    word = "N" if kind is int else "X"
    above = f"{param.min}<=" if param.min is not None and param.max is not None else ""
    least = f">={param.min}" if param.min is not None and param.max is None else ""
    return above + word + least + (f"<={param.max}" if param.max is not None else "")


@contextlib.contextmanager
def _readable(command: TyperCommand | TyperGroup, ctx: Any) -> Iterator[None]:
    """Fits the examples to the terminal and replaces Python's types by words, for this one print."""
    from rich.console import Console
    from typer.rich_utils import MAX_WIDTH

    whole = command.help or ""
    command.help = fitted(whole, (MAX_WIDTH or Console().width) - _MARGIN)
    for param in command.get_params(ctx):
        if isinstance(param, (TyperArgument, TyperOption)):
            shown = _value(param) if isinstance(param, TyperOption) else None
            param.display_type_rich = _always(shown)
            param._get_number_range_help_str = _always(None)  # ``shown`` already has the range
    try:
        yield
    finally:
        command.help = whole


def _always(value: str | None) -> Callable[..., str | None]:
    return lambda *_, **__: value


class Command(TyperCommand):
    """A command with readable help and placeholders in capitals."""

    def __init__(self, name: str | None, *, help: str | None = None, **settings: Any) -> None:
        super().__init__(name, help=joined(help or ""), **settings)
        for param in self.params:
            if isinstance(param, TyperArgument) and param.metavar is None:
                param.metavar = param.name.upper()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns a usage line such as ``[OPTIONS] FILE... [NAME]``; brackets mark optional parts."""
        pieces = [self.options_metavar or ""]
        for param in self.get_params(ctx):
            if isinstance(param, TyperArgument):
                name = f"{param.metavar}{'...' if param.nargs != 1 else ''}"
                pieces.append(name if param.required else f"[{name}]")
        return pieces

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help, fitted to the terminal."""
        with _readable(self, ctx):
            super().format_help(ctx, formatter)


class Group(TyperGroup):
    """A group of commands with readable help."""

    def __init__(self, *, help: str | None = None, **settings: Any) -> None:
        super().__init__(help=joined(help or ""), **settings)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help, fitted to the terminal."""
        with _readable(self, ctx):
            super().format_help(ctx, formatter)


class Commands(typer.Typer):
    """A ``typer.Typer`` with this module's help layout, for itself and for every command."""

    def __init__(
        self, *, help: str, name: str | None = None, cls: type[Group] = Group, completion: bool = False
    ) -> None:
        """Builds the app. ``completion`` (outermost app): adds --install-completion and --show-completion."""
        super().__init__(
            name=name,
            cls=cls,
            help=help,
            no_args_is_help=True,
            rich_markup_mode="rich",
            pretty_exceptions_enable=False,
            add_completion=completion,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Registers a command as typer does, with ``Command`` as its class."""
        return super().command(name, **{"cls": Command, **settings})
