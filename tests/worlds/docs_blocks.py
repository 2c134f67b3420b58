"""Reads the fenced blocks of a page and runs them, so that what the docs show is what happens.

The first word after the fence is the language, the second says where a block may run: nothing (anywhere)
or ``service`` (with ``onward up`` on ./onward-data). In console blocks each line that is not a command must
appear in the output; ``…`` stands for anything.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.cli import main

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
_FENCE = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """Of the first line of its text, from 1."""
    language: str
    where: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


LANGUAGES = ("python", "pycon", "console")


def blocks(page: Path, where: str = "", languages: tuple[str, ...] = LANGUAGES) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text[: found.start()].count("\n") + 2, found[1], found[2] or "", found[3])
        for found in _FENCE.finditer(text)
        if found[1] in languages and (found[2] or "") == where
    ]


def run_blocks(found: list[Block], names: dict[str, Any] | None = None, patience: float = 0.0) -> None:
    """One after the other, in one namespace. Raises AssertionError that names the block.

    A command whose output is not as shown yet is given again for ``patience`` seconds.
    """
    names = {"__name__": "docs"} if names is None else names
    for block in found:
        if block.language == "pycon":
            _run_session(block, names)
        elif block.language == "console":
            _run_console(block, patience)
        else:
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, str(block.page), "exec"), names)


def run_command(line: str) -> tuple[int, str]:
    """``onward …`` in this process: exit code, and stdout and stderr together."""
    words = shlex.split(line)
    assert words[0] == "onward", f"only onward commands can be run, not {words[0]}"
    out = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main(words[1:])
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue()


def matches(expected: str, output: str) -> bool:
    """Whether a line of ``output`` contains ``expected``; spaces count once, ``…`` is anything."""
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in expected.split("…"))
    pattern = pattern.replace(r"\ ", " ")
    return any(re.search(pattern, " ".join(line.split())) for line in output.splitlines())


def _run_session(block: Block, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, names, block.name, str(block.page), block.line - 1)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said = io.StringIO()
    runner.run(test, out=said.write, clear_globs=False)
    names.update(test.globs)
    assert not runner.failures, said.getvalue()


def _run_console(block: Block, patience: float) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, *shown = part.splitlines()
        expected = [line.strip() for line in shown if line.strip(" …")]
        until = time.monotonic() + patience
        while True:
            _, output = run_command(command.partition("  #")[0].strip())
            missing = [line for line in expected if not matches(line, output)]
            if not missing:
                break
            assert time.monotonic() < until, f"{block.name}: {missing} not in the output:\n{output}"
            time.sleep(0.2)
