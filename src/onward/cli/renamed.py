"""Old names of commands: hidden, kept for one release. Each prints its new name on standard error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from onward.cli.help import Commands
from onward.errors import runnable

RENAMED = {
    "dlq replay": "dlq retry",
    "release abort": "releases abort",
    "release promote": "releases promote",
    "release hold": "releases hold",
    "release resume": "releases resume",
}
"""Old name → new name. Entries and calls of ``keep_old_name`` are removed with the release after 0.1.0."""


def keep_old_name(group: Commands, old: str, command: Callable[..., Any]) -> None:
    """Registers ``old``, a key of RENAMED, in ``group`` as a hidden name of ``command``."""
    new = RENAMED[old]

    @functools.wraps(command)
    def hinting(*args: Any, **kwargs: Any) -> Any:
        hint = f"'onward {old}' is now 'onward {new}': the old name goes with the next release."
        typer.echo(runnable(hint), err=True)
        return command(*args, **kwargs)

    hinting.__doc__ = f"The old name of 'onward {new}'.\n\nonward {old}"
    group.command(old.split()[-1], hidden=True)(hinting)
