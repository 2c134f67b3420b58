"""Reads shell text without running it: the files it writes, its input to Python, the commands it runs.

Only plain forms are understood: here-documents, quotes, ``;``, ``&&``, ``||`` and ``|``. Any other form is no
evidence. One pass over the text; expressions are RE2's.
"""

from __future__ import annotations

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
