"""Every ``--help``: examples stay whole in narrow terminals, every option says what it does."""

import contextlib
import functools
import importlib
import io
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from onward import cli
from onward.cli.help import fitted, joined

pytestmark = pytest.mark.slow

Found = tuple[tuple[str, ...], Any]


@functools.cache
def _commands() -> list[Found]:
    for module in cli.COMMANDS:
        importlib.import_module(f"onward.cli.{module}")

    def below(path: tuple[str, ...], command: Any) -> Iterator[Found]:
        yield path, command
        for name, one in getattr(command, "commands", {}).items():
            if not one.hidden:  # a former name
                yield from below((*path, name), one)

    return list(below((), typer.main.get_command(cli.app)))


@functools.cache
def _printed(path: tuple[str, ...], columns: int) -> list[str]:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setenv("COLUMNS", str(columns))
        _commands()[0][1].main([*path, "--help"], prog_name="onward", standalone_mode=False)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def _examples(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("  ")]


@pytest.mark.parametrize("columns", [80, pytest.param(100, marks=pytest.mark.long)])
def test_no_example_is_broken_inside_an_option(columns: int) -> None:
    for path, command in _commands():
        lines = _printed(path, columns)
        assert max(map(len, lines)) <= columns
        copied = re.sub(r" \\\n +(?=-|\|)", " ", "\n".join(lines)).splitlines()  # as a shell reads it
        for example in _examples(command.help):
            assert f"   {example}" in copied, (path, example)


@pytest.mark.parametrize("columns", [80, pytest.param(100, marks=pytest.mark.long)])
def test_no_paragraph_keeps_the_line_breaks_of_its_source(columns: int) -> None:
    for path, _ in _commands():
        text = "\n".join(_printed(path, columns)).split("╭", 1)[0]
        for paragraph in re.split(r"\n\s*\n", text):
            lines = [line.strip() for line in paragraph.strip("\n").splitlines()]
            if paragraph.strip("\n").startswith("   "):
                continue  # an example
            for line, after in itertools.pairwise(lines):
                assert len(f" {line} {after.split()[0]} ") > columns, (path, line)


def test_every_option_and_argument_says_what_it_does_in_words_not_in_types() -> None:
    for path, command in _commands():
        for param in command.params:
            assert isinstance(param, (TyperOption, TyperArgument)) and param.help, (path, param.name)
        page = "\n".join(_printed(path, 100))
        assert not re.search(r"<(str|int|float|path|bool|file|list|dir)\b", page), path
        usage = next(line for line in page.splitlines() if "Usage:" in line)
        assert not re.search(r"[{}…a-z]", usage.split("[OPTIONS]")[1].replace("rules", "")), usage


def test_every_command_has_an_example_of_itself() -> None:
    for path, command in _commands():
        beginning = " ".join(("onward", *path))
        assert any(line.startswith(beginning) for line in _examples(command.help)), beginning
        assert isinstance(command, (TyperCommand, TyperGroup))


def test_every_command_is_in_one_panel_of_the_help() -> None:
    listed = [name for names in cli.PANELS.values() for name in names]
    assert sorted(listed) == sorted(path[0] for path, _ in _commands() if len(path) == 1)
    titles = [line for line in _printed((), 80) if line.startswith("╭")]
    assert [title.strip("╭─╮ ") for title in titles] == ["Options", *cli.PANELS]


def test_every_example_names_commands_and_options_that_exist() -> None:
    known = dict(_commands())
    for _, command in _commands():
        for example in _examples(command.help):
            words = example.split(" | ")[0].split()[1:]
            depth = next(n for n in (2, 1) if tuple(words[:n]) in known and len(words) >= n)
            options = {name for param in known[tuple(words[:depth])].params for name in param.opts}
            options |= {name for param in known[tuple(words[:depth])].params for name in param.secondary_opts}
            assert {word for word in words if word.startswith("--")} <= options, example


def test_a_long_example_goes_on_after_a_backslash_between_two_options() -> None:
    text = joined("One\nsentence.\n\n  onward go --first one --second two\n")
    assert text == "One sentence.\n\n  onward go --first one --second two"
    whole = "  onward go --first one --second two"
    assert fitted(text, 36) == f"One sentence.\n\n[not dim]{whole}[/]"
    assert fitted(text, 35) == (
        "One sentence.\n\n[not dim]  onward go --first one \\\\[/]\n[not dim]    --second two[/]"
    )
