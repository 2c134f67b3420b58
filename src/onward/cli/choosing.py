"""What ``retry`` and ``drop`` are done to: named entries or all of them, asked about before they are lost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, TypeVar

import typer

from onward.errors import ConfigError

Name = TypeVar("Name")
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def check_choice(names: Sequence[Name] | None, every: bool, list_command: str) -> None:
    """Raise ConfigError unless either names are given or all are meant."""
    if every == bool(names):
        raise ConfigError(f"Give one id or more ('{list_command}' shows them), or --all.")


def confirm_drop(count: int, one: str) -> None:
    """Ask whoever sits there; ConfigError where nobody does. ``one``: what is dropped, in the singular."""
    if not sys.stdin.isatty():
        raise ConfigError(f"Nobody can be asked here: give --yes to drop {one}s for good.")
    typer.confirm(f"Drop {count} {one}{'s' if count != 1 else ''} for good?", abort=True)
