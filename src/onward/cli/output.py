"""Output of commands: tables, or one JSON document with ``--json``.

The tables are those of ``onward.tables``, which the demonstration uses too.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.errors import runnable
from onward.tables import Column, Table, cell, facts, ident, number, plain, plain_lines

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "AsJson",
    "Column",
    "Table",
    "cell",
    "console",
    "facts",
    "ident",
    "number",
    "plain",
    "plain_lines",
    "print_json",
    "print_text",
    "say",
]

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]


def print_json(document: Any) -> None:
    """Prints one JSON document that every JSON parser reads: ASCII only, null for NaN and infinity."""
    typer.echo(json.dumps(_readable(document), indent=1, default=_other, allow_nan=False))


def say(text: str, *, err: bool = False) -> None:
    """Prints lines as they are, wherever their words are from: nothing in them is obeyed by a terminal."""
    typer.echo(plain_lines(text), err=err)


def console() -> Console:
    """Returns standard output; without a terminal it has 80 columns, unless COLUMNS gives another number."""
    from rich.console import Console

    fixed = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 80
    return Console(width=fixed)


def print_text(*what: Any, style: str | None = None) -> None:
    """Prints tables and sentences on standard output.

    Sentences have no markup and wrap in a terminal. Their quoted commands are ready to paste.
    """
    from rich.text import Text

    out = console()
    for one in what:
        if isinstance(one, str):
            text = Text(plain_lines(runnable(one)))
            out.print(text, style=style, highlight=False, soft_wrap=not out.is_terminal)
        else:
            out.print(one, style=style, highlight=False)


def _readable(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _readable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_readable(entry) for entry in value]
    return value


def _other(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
