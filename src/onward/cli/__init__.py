"""The command line: a thin layer that calls the packages and holds no logic of its own.

An OnwardError becomes one sentence on stderr and exit code 2. Any traceback is a defect.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward import __version__
from onward.cli.help import Command, Commands, Group
from onward.cli.summaries import PANELS, SUMMARIES
from onward.errors import OnwardError, runnable
from onward.files import OWNER_ALONE

if TYPE_CHECKING:
    from onward.config import Settings


class _Root(Group):
    """The group ``onward`` itself, with its commands in panels. A command's module is loaded when the command
    is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, summary in SUMMARIES.items():
            self.commands.setdefault(name, Command(name, help=summary))

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in PANELS.values() for name in names if name in self.commands]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        load(args[0])
        self.commands.update(typer.main.get_group(_app_of(args[0])).commands)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for title, names in PANELS.items():
            for command in (self.commands[name] for name in names if name in self.commands):
                if isinstance(command, (Command, Group)):
                    command.rich_help_panel = title
        super().format_help(ctx, formatter)


app = Commands(
    name="onward",
    cls=_Root,
    completion=True,
    help="""Onward makes agents better from their own work, and takes a change back when it makes them worse.

    See the whole loop on this machine; then run it as a service, with your agents beside it:

      onward demo
      onward up

    More of each, with examples: onward COMMAND --help
    """,
)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings file. Default: ./onward.toml where it exists.")
]
DataDir = Annotated[
    Path | None, typer.Option("--dir", help="Data folder. Default: data_dir of the settings.")
]


def _app_of(*names: str) -> Commands:
    """Returns ``app`` with the commands ``names`` alone. Building a command takes a millisecond for each of
    its options, and one process may have loaded many commands."""
    part = copy.copy(app)
    part.registered_groups = [one for one in app.registered_groups if one.name in names]
    part.registered_commands = [
        one
        for one in app.registered_commands
        if (one.name or (one.callback and one.callback.__name__)) in names
    ]
    return part


COMMANDS: dict[str, tuple[str, ...]] = {
    "service": ("up", "run"),
    "switches": ("pause", "resume", "pin", "unpin"),
    "releases": ("releases", "release"),
    "agent_zero": ("agent-zero",),
}
COMMANDS |= {name: (name,) for name in SUMMARIES if not any(name in names for names in COMMANDS.values())}
COMMANDS |= {
    "control_evaluate": ("control",),
    "control_check": ("control",),
    "control_curriculum": ("control",),
    "models_check": ("models",),
    "trajectories_import": ("trajectories",),
    "rubrics_judge": ("rubrics",),
    "rubrics_releases": ("rubrics",),
    "rubrics_add": ("rubrics",),
    "releases_explain": ("releases", "release"),
    "releases_audit": ("releases", "release"),
    "models_versions": ("models",),
    "jobs_watch": ("jobs",),
}
"""Module → its commands. A command loads only its own module, so that it starts quickly."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onward {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Holds the options of ``onward`` itself. The help text is that of ``app``."""


def load_settings(file: Path | None, data_dir: Path | None, **model: str | None) -> Settings:
    """Returns the settings of a command: file and environment, overridden by ``--dir`` and by the fields of
    ``model`` that are not None. What the command writes from here on is for its owner alone."""
    from onward import config  # not needed for --help

    os.umask(OWNER_ALONE)
    overrides: dict[str, Any] = {"data_dir": data_dir} if data_dir else {}
    given = {name: value for name, value in model.items() if value is not None}
    return config.load(file, overrides=overrides | ({"model": given} if given else {}))


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a command's coroutine. Ctrl-C cancels it cleanly."""
    import asyncio  # not needed for --help

    return asyncio.run(work)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``onward`` command."""
    try:
        _app_of()(args=arguments)
    except OnwardError as error:
        _leave(str(error))
    except BaseExceptionGroup as group:
        known, others = group.split(OnwardError)
        if known is None or others is not None:
            raise
        _leave(str(_first(known)))


def load(command: str) -> None:
    """Imports the modules of ``command``; imports none if there is no such command."""
    for module, commands in COMMANDS.items():
        if command in commands:
            importlib.import_module(f"onward.cli.{module}")


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def _leave(sentence: str) -> None:
    from onward.tables import plain_lines  # not needed for a command that succeeds

    print(plain_lines(runnable(sentence)), file=sys.stderr)
    sys.exit(2)
