"""Each command is found in the one module that is loaded for it, and the help of all loads none."""

import importlib
import subprocess
import sys

import pytest
import typer

from onward import cli
from onward.cli.summaries import SUMMARIES


def _registered() -> set[str]:
    names = {str(c.name or getattr(c.callback, "__name__", "")) for c in cli.app.registered_commands}
    return names | {str(group.name) for group in cli.app.registered_groups}


def _loaded(*arguments: str) -> set[str]:
    """The modules of ``onward`` that ``onward ARGUMENTS`` loads, and third-party packages beside them."""
    code = (
        "import sys, atexit; from onward.cli import main; "
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return set(done.stderr.splitlines()[-1].split())


def test_every_command_is_listed_under_its_module() -> None:
    for module in cli.COMMANDS:
        importlib.import_module(f"onward.cli.{module}")
    assert _registered() == {command for commands in cli.COMMANDS.values() for command in commands}


def test_every_command_is_in_a_panel_and_its_summary_is_what_its_own_help_begins_with() -> None:
    for command in SUMMARIES:
        cli.load(command)
    shown = typer.main.get_group(cli.app).commands.items()
    commands = {name: command for name, command in shown if not command.hidden}  # but for old names
    assert {name: (command.help or "").split("\n\n")[0] for name, command in commands.items()} == SUMMARIES
    assert {name for names in cli.PANELS.values() for name in names} == set(SUMMARIES)


@pytest.mark.parametrize("arguments", [("--help",), (), ("--version",), ("statsu",)])
def test_help_version_and_a_wrong_word_load_no_command_and_no_settings(arguments: tuple[str, ...]) -> None:
    loaded = _loaded(*arguments)
    assert "onward.cli" in loaded
    assert not {f"onward.cli.{module}" for module in cli.COMMANDS} & loaded
    assert not {"onward.config", "onward.contracts", "httpx", "asyncio"} & loaded


def test_a_command_loads_its_own_module_and_no_other() -> None:
    loaded = _loaded("contracts", "--help")
    assert {f"onward.cli.{module}" for module in cli.COMMANDS} & loaded == {"onward.cli.contracts"}
