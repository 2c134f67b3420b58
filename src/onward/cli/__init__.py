"""The command line: thin, it calls the packages and decides nothing.

An OnwardError becomes one sentence on stderr and exit code 2. Any traceback is a defect.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from onward import __version__, config
from onward.cli.help import Command, Commands, Group
from onward.config import Settings
from onward.errors import MissingExtraError, OnwardError

PANELS: dict[str, tuple[str, ...]] = {
    "First steps": ("demo", "up", "status", "run"),
    "Agents and data": ("redact", "feedback", "rewards", "rescore", "quarantine", "dlq"),
    "Training and control": ("train", "env", "models", "control"),
    "Operating": ("pause", "resume", "release", "pin", "unpin", "streams", "contracts"),
}
"""The commands as ``onward --help`` shows them: title → names, in this order."""


class _Root(Group):
    """``onward`` itself: its commands in panels."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in PANELS.values() for name in names if name in self.commands]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for title, names in PANELS.items():
            for command in (self.commands[name] for name in names if name in self.commands):
                if isinstance(command, (Command, Group)):
                    command.rich_help_panel = title
        super().format_help(ctx, formatter)


app = Commands(
    name="onward",
    cls=_Root,
    help="""Onward makes agents better from their own work, and takes a change back when it makes them worse.

    See the whole loop on this machine; then run it as a service, with your agents beside it:

      onward demo
      onward up

    More of each, with examples: onward COMMAND --help
    """,
)

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings file. Default: ./onward.toml where it exists."),
]
DataDir = Annotated[
    Path | None, typer.Option("--dir", help="Data folder. Default: data_dir of the settings.")
]

_EXTRA_OF_MODULE = {
    "torch": "lm",
    "transformers": "lm",
    "peft": "lm",
    "safetensors": "lm",
    "tokenizers": "lm",
    "gguf": "lm",
    "matplotlib": "demo",
    "gymnasium": "control",
    "tensorboard": "control",
}

COMMANDS: dict[str, tuple[str, ...]] = {
    "demo": ("demo",),
    "service": ("up", "run"),
    "status": ("status",),
    "redact": ("redact",),
    "train": ("train",),
    "env": ("env",),
    "rewards": ("rewards",),
    "rescore": ("rescore",),
    "streams": ("streams",),
    "models": ("models",),
    "contracts": ("contracts",),
    "dlq": ("dlq",),
    "quarantine": ("quarantine",),
    "feedback": ("feedback",),
    "control": ("control",),
    "control_evaluate": ("control",),
    "operator": ("pause", "resume", "pin", "unpin", "release"),
}
"""Module → its commands. A command loads its own module only: it starts quickly."""


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
    """Holds the options of ``onward`` itself; its help is the text given to ``app``."""


def load_settings(file: Path | None, data_dir: Path | None) -> Settings:
    """The settings of a command: file and environment, with ``--dir`` above both."""
    return config.load(file, overrides={"data_dir": data_dir} if data_dir else {})


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a command's coroutine; Ctrl-C cancels it cleanly."""
    return asyncio.run(work)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``onward`` command."""
    given = sys.argv[1:] if arguments is None else arguments
    for name in _modules(given[0] if given else ""):
        importlib.import_module(f"onward.cli.{name}")
    try:
        app(args=arguments)
    except OnwardError as error:
        _leave(str(error))
    except BaseExceptionGroup as group:
        known, others = group.split(OnwardError)
        if known is None or others is not None:
            raise
        _leave(str(_first(known)))
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF_MODULE.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        _leave(str(MissingExtraError(extra, "This command")))


def _modules(command: str) -> list[str]:
    """Modules to import: those of ``command``, or all where the first word is none (help, a wrong word)."""
    named = [module for module, commands in COMMANDS.items() if command in commands]
    return named or list(COMMANDS)


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def _leave(sentence: str) -> None:
    print(sentence, file=sys.stderr)
    sys.exit(2)
