"""Names that commands take: a base model, and the entries for ``retry`` and ``drop``, confirmed before."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from onward.errors import ConfigError

Name = TypeVar("Name")
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def expanded(model: str) -> str:
    """Returns the folder for a model that is an alias in ``./onward.toml`` or the environment, else the model
    as it is. Settings are read only where the name may be one. Raises ConfigError for wrong settings."""
    if model in ("tiny", "smollm2") or Path(model).is_dir():
        return model
    from onward import config

    return config.load().models.expand(model)


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
