"""Finds the checking tools that a call really ran, unless another command in it could have printed a verdict.

It is narrow on purpose: a command that is not known to be silent makes the whole call no evidence, since
Onward can rate the code itself. ``pytest; echo "done"`` is accepted, ``python report.py; pytest`` is not.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

import re2

from onward.reward.code.shell import Command, commands, split_heredocs

_ASSIGNED: Any = re2.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON: Any = re2.compile(r"^python[0-9.]*$")
_CHOOSES = {
    "pylint": (
        "--disable",
        "--enable",
        "-d",
        "-e",
        "-E",
        "--errors-only",
        "--evaluation",
        "--rcfile",
        "--ignore",
    ),
    "flake8": (
        "--ignore",
        "--select",
        "--extend",
        "--config",
        "--per-file",
        "--max",
        "--exclude",
        "--format",
    ),
    "ruff": ("--ignore", "--select", "--extend", "--config", "--per-file", "--exclude"),
    "bandit": (
        "-s",
        "--skip",
        "-t",
        "--tests",
        "-c",
        "--configfile",
        "--ini",
        "-p",
        "--profile",
        "-x",
        "--exc",
    ),
    "pytest": ("--collect", "--version", "-h", "--help"),
    "unittest": (),
}
"""Options, or prefixes of them, that choose what counts. A verdict made with one of them is ignored."""
_COLLECTS_ONLY = "--co"
"""Short for ``--collect-only``; also a prefix of ``--cov`` and ``--color``, which choose nothing."""
_TOOLS = {
    **{name: name for name in ("pylint", "flake8", "ruff", "bandit", "pytest")},
    **{"py.test": "pytest", "run_tests": "pytest", "run_pytest": "pytest", "run_pylint": "pylint"},
}
_SILENT = {
    "cd",
    "export",
    "set",
    "mkdir",
    "touch",
    "true",
    "pip",
    "pip3",
    "chmod",
    "sleep",
    "pushd",
    "popd",
    "rm",
}
_RUNNERS = {"uv", "poetry", "pipenv", "hatch", "pdm"}
_WRAPPERS = {"sudo", "env", "nice", "time", "timeout", "nohup"}


@dataclass(frozen=True)
class Run:
    tool: str
    target: tuple[str, ...] = ()
    """Base names of its arguments; a later run on the same target replaces this one."""


def runs_in(text: str) -> list[Run]:
    """Returns the tools that shell text runs with visible output; none if another command may print."""
    if not any(name in text for name in (*_CHOOSES, "py.test")):
        return []
    found: list[Run] = []
    for command in commands(split_heredocs(text)[0]):
        words = _program(command.words)
        if not words or command.hidden:
            continue
        folder, name = posixpath.split(words[0])
        if folder and posixpath.basename(folder) != "bin":
            return []  # a program that the agent may have written
        if name in _CHOOSES:
            if (run := _run(name, words[1:])) is not None:
                found.append(run)
        elif not _is_silent(name, words[1:], command):
            return []
    return found


def runs_of_tool(name: str, arguments: list[str]) -> list[Run]:
    """Returns the run of an agent's tool that is named after a checking tool (``pytest``, ``run_tests``)."""
    tool = _TOOLS.get(name.lower())
    words = tuple(word for argument in arguments for word in argument.split())
    run = _run(tool, ("check", *words) if tool == "ruff" else words) if tool is not None else None
    return [] if run is None else [run]


def _program(words: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the words from the program on: no assignments, ``timeout 60``, ``uv run``, ``python -m``."""
    rest = list(words)
    while rest:
        name = posixpath.basename(rest[0])
        if _ASSIGNED.search(rest[0]) is not None:
            del rest[0]
        elif name in _WRAPPERS:
            del rest[0]
            while rest and (rest[0].startswith("-") or rest[0][:1].isdigit()):
                del rest[0]
        elif (name in _RUNNERS and rest[1:2] == ["run"]) or (
            _PYTHON.search(name) is not None and rest[1:2] == ["-m"] and len(rest) > 2
        ):
            del rest[:2]
        else:
            break
    if rest and posixpath.basename(rest[0]) == "py.test":
        rest[0] = "pytest"
    return tuple(rest)


def _run(tool: str, arguments: tuple[str, ...]) -> Run | None:
    if tool == "ruff":
        if arguments[:1] != ("check",):
            return None
        arguments = arguments[1:]
    options = [word for word in arguments if word.startswith("-")]
    if any(word.startswith(_CHOOSES[tool]) or word == _COLLECTS_ONLY for word in options):
        return None
    targets = {posixpath.basename(word.rstrip("/")) for word in arguments if not word.startswith("-")}
    return Run(tool, tuple(sorted(targets)))


def _is_silent(name: str, arguments: tuple[str, ...], command: Command) -> bool:
    plain = [word for word in arguments if not word.startswith("-")]
    if name in _SILENT:
        return True
    if name in ("source", "."):
        return len(plain) == 1 and posixpath.basename(plain[0]) == "activate"
    if name == "uv":
        return arguments[:1] in (("pip",), ("sync",), ("venv",))
    if name == "echo":  # its words are in the arguments, where verdicts are searched
        return len(plain) == len(arguments) and not any(c in command.text.replace("$?", "") for c in "$`\\*{")
    if not command.filtered:
        return False
    if name in ("tail", "head"):
        return all(word.lstrip("-+").isdigit() for word in plain)
    return (name == "tee" and len(plain) <= 1) or (name in ("cat", "sort", "less") and not plain)
