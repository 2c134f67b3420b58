"""Each command is found in the one module that is loaded for it."""

import importlib

from onward import cli


def _registered() -> set[str]:
    names = {str(c.name or getattr(c.callback, "__name__", "")) for c in cli.app.registered_commands}
    return names | {str(group.name) for group in cli.app.registered_groups}


def test_every_command_is_listed_under_its_module() -> None:
    for module in cli.COMMANDS:
        importlib.import_module(f"onward.cli.{module}")
    assert _registered() == {command for commands in cli.COMMANDS.values() for command in commands}


def test_the_help_and_a_wrong_word_load_all() -> None:
    assert cli._modules("--help") == cli._modules("statsu") == cli._modules("") == list(cli.COMMANDS)
    assert cli._modules("up") == ["service"]
