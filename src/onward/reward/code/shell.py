"""Reads shell text without running it: the files it writes, its commands, the checking tools it really ran.

Only plain forms are understood: here-documents, quotes, ``;``, ``&&``, ``||`` and ``|``. Any other form is no
evidence. One pass over the text; expressions are RE2's.

A command that is not known to be silent could have printed a verdict, so it makes the whole call no evidence;
Onward can rate the code itself. ``pytest; echo "done"`` is accepted, ``python report.py; pytest`` is not.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from itertools import islice
from typing import Any

import re2

_HEREDOC: Any = re2.compile(r"<<(-?)[ \t]*[\"'\\]?([A-Za-z_][A-Za-z0-9_]*)[\"']?")
_TARGET: Any = re2.compile(r"(>{1,2})[ \t]*[\"']?([^\s;|&<>\"']+)")
_TEE: Any = re2.compile(r"\btee[ \t]+(-a[ \t]+)?[\"']?([^\s;|&<>\"']+)")
_PYTHON: Any = re2.compile(r"(?:^|[\s;&|/])python[0-9.]*[ \t]+(?:-[ \t]*)?<<")
_TOKEN: Any = re2.compile(
    r"(?s)(?P<space>[ \t\r]+|\\\n)|(?P<into>[0-9]?>[>&]?|&>>?|<+)|(?P<end>&&|\|\||[;\n&])|(?P<pipe>\|)"
    r"|(?P<piece>'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|[^\s'\"\\;|&<>]+|.)"
)
_READ = 65_536
"""Characters of commands examined; the bodies of here-documents do not count."""
_MOST_IN_A_LINE = 16
"""Maximum here-documents that one line may begin: the line is read once for each."""


@dataclass(frozen=True)
class Heredoc:
    body: str
    file: str | None
    """File that the body is written to."""
    appended: bool
    python: bool
    """True if the body is the standard input of a Python interpreter."""


@dataclass(frozen=True)
class Command:
    words: tuple[str, ...]
    """Words without quotes and without file names of redirections."""
    text: str
    """Text as written, quotes included."""
    hidden: bool
    """True if its output goes to a file."""
    filtered: bool
    """True if it reads the output of the command before it."""


def split_heredocs(text: str) -> tuple[str, list[Heredoc]]:
    """Returns the commands without the bodies, and the here-documents in order."""
    if "<<" not in text:
        return text, []
    commands: list[str] = []
    found: list[Heredoc] = []
    lines = iter(text.split("\n"))
    for line in lines:
        commands.append(line)
        marks = islice(_HEREDOC.finditer(line), _MOST_IN_A_LINE) if "<<<" not in line else ()
        for mark in marks:
            body: list[str] = []
            for inner in lines:
                stripped = inner.lstrip("\t") if mark.group(1) else inner
                if stripped.rstrip("\r") == mark.group(2):
                    break
                body.append(stripped)
            found.append(_heredoc(line, "\n".join(body) + "\n"))
    return "\n".join(commands), found


def _heredoc(line: str, body: str) -> Heredoc:
    python = _PYTHON.search(line) is not None
    tee, target = _TEE.search(line), _TARGET.search(line)
    if tee is not None:
        return Heredoc(body, tee.group(2), tee.group(1) is not None, python)
    if target is not None and not python:
        return Heredoc(body, target.group(2), target.group(1) == ">>", python)
    return Heredoc(body, None, False, python)


def commands(text: str) -> list[Command]:
    """Returns the simple commands of shell text from which here-documents were removed."""
    found: list[Command] = []
    words: list[str] = []
    open_word = into = swallowed = hidden = filtered = False
    begin = 0

    def finish(end: int) -> None:
        if words:
            found.append(Command(tuple(words), text[begin:end].strip(), hidden, filtered))
        words.clear()

    for token in _TOKEN.finditer(text[:_READ]):
        kind, piece = token.lastgroup, token.group(0)
        if kind == "piece":
            value = piece[1:-1] if piece[0] in "'\"" and len(piece) > 1 else piece
            if into:
                swallowed = True
            elif open_word:
                words[-1] += value
            else:
                words.append(value)
            open_word = True
            continue
        open_word = False
        if swallowed:
            into = swallowed = False
        if kind == "into":
            into = True
            hidden = hidden or piece in (">", ">>", "1>", "&>", "&>>", ">&")
        elif kind in ("end", "pipe"):
            finish(token.start())
            begin, hidden, filtered = token.end(), False, kind == "pipe"
    finish(min(len(text), _READ))
    return found


_ASSIGNED: Any = re2.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_INTERPRETER: Any = re2.compile(r"^python[0-9.]*$")
_CHOOSES = {
    "pylint": ("--disable", "--enable", "-d", "-e", "-E", "--errors-only", "--evaluation", "--rcfile",
               "--ignore"),
    "flake8": ("--ignore", "--select", "--extend", "--config", "--per-file", "--max", "--exclude",
               "--format"),
    "ruff": ("--ignore", "--select", "--extend", "--config", "--per-file", "--exclude"),
    "bandit": ("-s", "--skip", "-t", "--tests", "-c", "--configfile", "--ini", "-p", "--profile", "-x",
               "--exc"),
    "pytest": ("--collect", "--version", "-h", "--help"),
    "unittest": (),
}  # fmt: skip
"""Options, or prefixes of them, that choose what counts. A verdict made with one of them is ignored."""
_COLLECTS_ONLY = "--co"
"""Short for ``--collect-only``; also a prefix of ``--cov`` and ``--color``, which choose nothing."""
_TOOLS = {
    **{name: name for name in ("pylint", "flake8", "ruff", "bandit", "pytest")},
    **{"py.test": "pytest", "run_tests": "pytest", "run_pytest": "pytest", "run_pylint": "pylint"},
}
_SILENT = {"cd", "export", "set", "mkdir", "touch", "true", "pip", "pip3", "chmod", "sleep", "pushd", "popd",
           "rm"}  # fmt: skip
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
            _INTERPRETER.search(name) is not None and rest[1:2] == ["-m"] and len(rest) > 2
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
