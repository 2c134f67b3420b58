"""Runs pylint and bandit on one piece of Python and returns facts. Runs in a process that may be killed.

The text is parsed, never executed. An agent cannot raise its rating with comments that switch the tools off
(``# pylint:``, ``# nosec``), configuration files, plugins or the name of its file. Only the standard library
is ever resolved: a rating does not depend on other installed packages.

Measured on two cores under a load of 6, with the fork: a new 40-line file takes 36 ms of processor time (fork
4, pylint 25, bandit 5, complexity 2; 16 of them in the kernel, copying pages), and 90 without ``warm_up``.
Start: 0.5 s to import, then 2 s to warm up while idle.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from onward.reward.code.samples import SAMPLES

try:
    from mccabe import PathGraphingAstVisitor  # comes with pylint
except ImportError:
    PathGraphingAstVisitor = None  # type: ignore[assignment, misc]

How = Literal["file", "session", "quoted"]
"""``file``: written as a Python file; ``session``: cells executed in one interpreter; ``quoted``: shown."""

OFF = (
    *("import-error", "no-name-in-module", "relative-beyond-top-level", "cyclic-import"),
    *("missing-module-docstring", "missing-class-docstring", "missing-function-docstring"),
    *("missing-final-newline", "trailing-newlines", "trailing-whitespace"),
    *("mixed-line-endings", "unexpected-line-ending-format"),
    *("redefined-outer-name", "duplicate-code"),
)
"""Messages never counted: findings that need the rest of the project, changes that a transport makes to line
ends, fixtures of pytest, and docstrings (if their number paid, agents would pad them)."""
OFF_IN_FRAGMENTS = (
    *("undefined-variable", "await-outside-async", "pointless-statement", "expression-not-assigned"),
    *("function-redefined", "reimported", "wrong-import-position", "wrong-import-order", "ungrouped-imports"),
    *("invalid-name", "return-outside-function", "yield-outside-function", "unused-import"),
    "unnecessary-pass",
)
"""Messages also not counted in cells and quotations: the rest of their code is elsewhere, and a cell shows
its last value."""
FILE_NAME = "onward_snippet.py"
"""File name of every piece, not the agent's own: its ``random.py`` must not be found by ``import random``."""
_COUNTED = ("error", "warning", "refactor", "convention")
_WARM = """
sys os re json typing collections pathlib dataclasses datetime time math random logging argparse functools
itertools subprocess csv abc enum io shutil tempfile threading traceback string copy hashlib uuid contextlib
unittest statistics sqlite3 asyncio urllib.request unittest.mock http.server decimal
"""


class Unusable(Exception):
    """Raised when a tool could not finish; the argument is the reason, one fixed word."""


class Lint:
    """The installed tools, imported once. ``examine`` is called in forks of this process."""

    def __init__(self) -> None:
        warnings.simplefilter("ignore")
        self.tools: dict[str, str] = {}
        self._linter: Any = None
        self._scanner: Any = None
        self._crash: BaseException | None = None
        if find_spec("pylint") is not None:
            self._linter = self._make_linter()
            self.tools["pylint"] = version("pylint")
        if find_spec("bandit") is not None:
            from bandit.core.config import BanditConfig
            from bandit.core.manager import BanditManager

            self._scanner = BanditManager(BanditConfig(), "file", ignore_nosec=True)
            self.tools["bandit"] = version("bandit")

    def warm_up(self, folder: Path) -> Iterator[None]:
        """Reads the modules that most code uses, one step at a time: a fork inherits all earlier steps. All
        of it is fixed text, so it cannot make two answers to one question differ."""
        from astroid import MANAGER
        from astroid.exceptions import AstroidError

        for number, sample in enumerate(SAMPLES):
            if self._linter is not None:
                path = folder / f"onward_sample_{number}.py"
                path.write_text(sample, encoding="ascii")
                self._linter.check([str(path)])
                yield
        if self._linter is not None:
            for name in _WARM.split():
                try:
                    MANAGER.ast_from_module_name(name)
                except AstroidError:
                    continue
                yield

    def examine(self, how: How, cells: Sequence[str], folder: Path) -> dict[str, Any]:
        """Returns facts about ``cells``, which are one file, or the cells of a session in order.

        Keys: parsed (any of it), lines_unparsed, statements, counts, symbols, high, complexity. A text that
        is not Python counts in lines_unparsed. The exception is a quotation, which then does not count as
        Python. Raises Unusable.
        """
        try:
            return self._examine(how, cells, folder)
        except RecursionError:
            raise Unusable("nesting") from None
        except MemoryError:
            raise Unusable("memory") from None

    def _examine(self, how: How, cells: Sequence[str], folder: Path) -> dict[str, Any]:
        readable = [(cell, _readable(cell.removeprefix("\ufeff"), how)) for cell in cells]
        lost = 0 if how == "quoted" else sum(_lines(cell) for cell, text in readable if text is None)
        source = "\n".join(text for _, text in readable if text is not None)
        facts: dict[str, Any] = {"parsed": False, "lines_unparsed": lost, "statements": 0}
        if not source.strip():
            return facts
        path = folder / FILE_NAME
        path.write_bytes(_without_cookie(source).encode("utf-8", "replace"))
        facts |= {"parsed": True, "complexity": _complexity(source)}
        if self._linter is not None:
            facts |= self._pylint(path, how)
        if self._scanner is not None:
            facts |= self._bandit(path)
        return facts

    def _pylint(self, path: Path, how: How) -> dict[str, Any]:
        if how != "file":
            for name in OFF_IN_FRAGMENTS:
                self._linter.disable(name)
        self._linter.reporter.messages.clear()
        self._linter.check([str(path)])
        found = self._linter.reporter.messages
        if self._crash is not None:
            raise self._crash
        if any(message.category == "fatal" for message in found):
            raise Unusable("linter_error")
        stats = self._linter.stats
        symbols = Counter(message.symbol for message in found if message.category in _COUNTED)
        return {
            "statements": stats.statement,
            "counts": {kind: getattr(stats, kind) for kind in _COUNTED},
            "symbols": dict(sorted(symbols.items(), key=lambda item: (-item[1], item[0]))[:20]),
        }

    def _bandit(self, path: Path) -> dict[str, Any]:
        self._scanner.discover_files([str(path)])
        self._scanner.run_tests()
        if self._scanner.get_skipped():
            raise Unusable("scanner_error")
        issues = self._scanner.get_issue_list()
        high = [issue for issue in issues if issue.severity == "HIGH" and issue.confidence != "LOW"]
        return {"high": len(high), "high_tests": sorted({issue.test_id for issue in high})[:20]}

    def _make_linter(self) -> Any:
        from pylint.lint import PyLinter, pylinter
        from pylint.reporters import CollectingReporter

        _only_standard_library()

        def record_crash(error: BaseException, *_: object, **__: object) -> str:
            self._crash = (
                error if isinstance(error, RecursionError | MemoryError) else Unusable("linter_error")
            )
            return ""

        pylinter.prepare_crash_report = record_crash  # type: ignore[assignment]  # it would write into the home
        linter = PyLinter()
        linter.set_reporter(CollectingReporter())
        linter.load_default_plugins()
        linter.config.persistent = False
        linter.config.unsafe_load_any_extension = False
        linter.config.additional_builtins = ("display", "get_ipython")
        linter.process_tokens = lambda tokens: None  # type: ignore[method-assign]  # no "# pylint: disable"
        for name in OFF:
            linter.disable(name)
        checkers = linter.prepare_checkers()
        linter.prepare_checkers = lambda: checkers  # type: ignore[method-assign]  # 5 ms a time
        return linter


def _only_standard_library() -> None:
    """Makes astroid resolve no other import: it would read installed packages, and load compiled ones."""
    from astroid.exceptions import AstroidImportError
    from astroid.manager import AstroidManager

    resolve = AstroidManager.ast_from_module_name

    def guarded(self: Any, modname: str | None, *args: Any, **options: Any) -> Any:
        if (modname or "").partition(".")[0] not in sys.stdlib_module_names:
            raise AstroidImportError("Not in the standard library: {modname!r}", modname=modname)
        return resolve(self, modname, *args, **options)

    AstroidManager.ast_from_module_name = guarded  # type: ignore[method-assign]


def _readable(text: str, how: How) -> str | None:
    """Returns the text as Python, without the notebook commands of a session; None when it is not Python."""
    if _parses(text):
        return text
    if how != "session":
        return None
    plain = "\n".join(
        line[: len(line) - len(line.lstrip())] + "pass" if line.lstrip()[:1] in ("!", "%") else line
        for line in text.splitlines()
    )
    return plain if plain != text and _parses(plain) else None


def _without_cookie(source: str) -> str:
    """Removes a ``# coding:`` line: the text is decoded already, and the tools would decode it again."""
    head, rest = source.split("\n", 2)[:2], source.split("\n", 2)[2:]
    clean = ["#" if line.lstrip().startswith("#") and "coding" in line else line for line in head]
    return "\n".join(clean + rest)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _lines(text: str) -> int:
    return sum(1 for line in text.splitlines() if line.strip())


def _complexity(source: str) -> int | None:
    """Returns the highest cyclomatic complexity of a function or of top-level code (McCabe, 1976)."""
    if PathGraphingAstVisitor is None:
        return None
    visitor = PathGraphingAstVisitor()
    visitor.preorder(ast.parse(source), visitor)
    return max((graph.complexity() for graph in visitor.graphs.values()), default=1)
