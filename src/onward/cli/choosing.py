"""Selection for ``retry`` and ``drop``: named entries or all of them, with a confirmation before a drop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, TypeVar

import typer

from onward.errors import ConfigError

Name = TypeVar("Name")
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def check_choice(names: Sequence[Name] | None, every: bool, list_command: str) -> None:
    """Raises ConfigError unless exactly one of names and --all is given."""
    if every == bool(names):
        raise ConfigError(f"Give one id or more ('{list_command}' shows them), or --all.")


def confirm_drop(count: int, one: str) -> None:
    """Asks the user to confirm. ``one`` is the word for a dropped entry, in the singular. Raises ConfigError
    when standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(f"No terminal to ask in: give --yes to drop {one}s for good.")
    typer.confirm(f"Drop {count} {one}{'s' if count != 1 else ''} for good?", abort=True)
