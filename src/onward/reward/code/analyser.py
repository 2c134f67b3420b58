"""Collects facts about the code of a trajectory: results it carries first, then Onward's own tools.

A rating or a scan that the trajectory does not carry is made here, on its Python code. Tests are never run,
since that would execute code. The tools' answers are cached by the hash of the code, so that a replay gives
the same result. ``report`` is for event loops, ``report_now`` for all other callers.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from onward.contracts import Trajectory
from onward.lru import Lru
from onward.reward.code.find import MAX_CHARACTERS, CodePiece, Found, find_code
from onward.reward.code.report import CodeReport
from onward.reward.code.results import Results, results_of
from onward.reward.code.sandbox import Limits, Sandbox, installed
from onward.reward.unscored import Unscored

UNSCORED = "code_analysis"
_PENALTY = 5.0
"""Weight of an error in pylint's formula; every other message weighs 1."""
_LANGUAGES_NAMED = 12
_OFTEN = ("child_died", "wall_time", "crashed")
"""Failures that may be the machine's fault: retried once, and not cached."""


class CodeAnalyser:
    """Used with ``async with``, ``with``, or ``start`` and ``stop``. The child starts at the first code."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        parallel: int = 2,
        cache_size: int = 4096,
        isolation_required: bool = False,
    ) -> None:
        """``parallel``: pieces of code at a time; ``cache_size``: cached answers, about 1 KB each;
        ``isolation_required``: code stays unrated where the kernel cannot close files to the tools."""
        self._sandbox = Sandbox(limits, isolation_required=isolation_required)
        self._installed = installed()
        self._parallel = parallel
        self._turns = threading.BoundedSemaphore(parallel)
        self._threads: ThreadPoolExecutor | None = None
        self._cache: Lru[str, dict[str, Any]] = Lru(cache_size)
        self._lock = threading.Lock()

    async def start(self) -> None:
        """Allows reports. The child is started only when needed: a loop without code has none."""
        self._sandbox.open()
        self._threads = ThreadPoolExecutor(self._parallel, thread_name_prefix="code")

    async def stop(self) -> None:
        """Ends the child; reports in progress become Unscored."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        self._sandbox.close()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    async def __aenter__(self) -> CodeAnalyser:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __enter__(self) -> CodeAnalyser:
        self._sandbox.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the running child."""
        return self._sandbox.pid

    @property
    def network(self) -> str:
        """Network isolation of the tools: ``namespace`` or ``audit hook``; ``unknown`` at first."""
        return self._sandbox.network

    @property
    def files(self) -> str:
        """Files that the tools can read: ``landlock`` (their own alone) or ``open``; ``unknown`` at first."""
        return self._sandbox.files

    async def report(self, trajectory: Trajectory) -> CodeReport | Unscored | None:
        """Runs ``report_now`` outside the event loop. A tool's work delays no trajectory without code."""
        if self._threads is None:
            raise RuntimeError("an analyser makes no report before start()")
        results, found = await asyncio.to_thread(_results_and_code, trajectory)
        if not self._wanted(results, found):
            return self._rate(results, found)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._rate, results, found)

    def report_now(self, trajectory: Trajectory) -> CodeReport | Unscored | None:
        """Returns facts about the code of ``trajectory``; None without code and without results.

        Returns Unscored when a tool could not finish (``detail`` names the reason): bad code would otherwise
        gain by breaking the tool that rates it.
        """
        return self._rate(*_results_and_code(trajectory))

    def _wanted(self, results: Results, found: Found) -> tuple[CodePiece, ...]:
        """Returns the pieces that Onward's own tools must examine."""
        complete = results.linter is not None and results.criticals is not None
        return () if complete or not self._installed else found.pieces

    def _rate(self, results: Results, found: Found) -> CodeReport | Unscored | None:
        wanted = self._wanted(results, found)
        too_long = [piece for piece in wanted if piece.characters > MAX_CHARACTERS]
        if too_long:
            return Unscored(UNSCORED, f"too_large: {_name(too_long[0])}")
        answers = []
        for piece in wanted:
            facts = self._facts(piece)
            if "failed" in facts:
                return Unscored(UNSCORED, f"{facts['failed']}: {_name(piece)}")
            answers.append(facts)
        return _report(results, found, answers, dict(self._sandbox.tools), bool(self._installed))

    def _facts(self, piece: CodePiece) -> dict[str, Any]:
        key = _key(piece)
        with self._lock:
            if key in self._cache:
                return self._cache[key]
        facts: dict[str, Any] = {}
        for _ in range(2):
            with self._turns:
                facts = self._sandbox.examine(piece.how, piece.cells)
            if facts.get("failed") not in _OFTEN:
                break
        else:
            return facts
        with self._lock:
            self._cache[key] = facts
        return facts


def _results_and_code(trajectory: Trajectory) -> tuple[Results, Found]:
    return results_of(trajectory), find_code(trajectory)


def _report(
    results: Results,
    found: Found,
    answers: Sequence[dict[str, Any]],
    versions: dict[str, str],
    installed: bool,
) -> CodeReport | None:
    read = [facts for facts in answers if facts["parsed"] or facts["lines_unparsed"]]
    linter, criticals, tools = results.linter, results.criticals, set(results.tools)
    detail: dict[str, Any] = {"sources": dict(results.sources)}
    rating = rating_of(read) if linter is None and "pylint" in versions else None
    if rating is not None:
        linter = rating
        tools.add(f"pylint {versions['pylint']}")
        detail["sources"]["linter"] = "onward"
        detail["linter"] = _counted(read)
    scanned = [facts for facts in read if "high" in facts]
    if criticals is None and scanned:
        criticals = sum(facts["high"] for facts in scanned)
        tools.add(f"bandit {versions['bandit']}")
        detail["sources"]["security"] = "onward"
        detail["security"] = sorted({test for facts in scanned for test in facts["high_tests"]})
    complexity = max((facts["complexity"] for facts in read if facts.get("complexity")), default=None)
    if found.left_out:
        detail["files_left_out"] = found.left_out
    if results.refused:
        detail["verdicts_refused"] = results.refused
    if found.languages:
        detail["languages"] = sorted(found.languages)[:_LANGUAGES_NAMED]
    if found.pieces and not installed:
        detail["not_installed"] = True
    if (linter, criticals, results.tests) == (None, None, None) and not read and not found.languages:
        return None
    return CodeReport(
        linter=linter,
        tests=results.tests,
        security_criticals=criticals,
        tools=tuple(sorted(tools)),
        complexity=None if complexity is None else float(complexity),
        snippets=len(read) if answers else len(found.pieces),
        detail=detail,
    )


def rating_of(read: Sequence[dict[str, Any]]) -> float | None:
    """Returns the mean of pylint's ratings / 10, weighted by statements; text that is not Python counts its
    lines at 0.

    pylint's rating is ``10 − 10 · (5·errors + warnings + refactorings + conventions) / statements``, never
    below 0. Returns None when there is no statement and no such line.
    """
    sums: list[float] = []
    weight = 0
    for facts in read:
        weight += facts["lines_unparsed"] + facts["statements"]
        if facts["statements"]:
            counts = facts["counts"]
            cost = _PENALTY * counts["error"] + counts["warning"] + counts["refactor"] + counts["convention"]
            sums.append(facts["statements"] * max(0.0, 1.0 - cost / facts["statements"]))
    return math.fsum(sums) / weight if weight else None


def _counted(read: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns sums over all pieces, and the most frequent findings."""
    counts: Counter[str] = Counter()
    symbols: Counter[str] = Counter()
    for facts in read:
        counts.update(facts.get("counts", {}))
        symbols.update(facts.get("symbols", {}))
    return {
        "statements": sum(facts["statements"] for facts in read),
        "lines_unparsed": sum(facts["lines_unparsed"] for facts in read),
        **dict(sorted(counts.items())),
        "findings": dict(sorted(symbols.items(), key=lambda item: (-item[1], item[0]))[:20]),
    }


def _key(piece: CodePiece) -> str:
    digest = hashlib.sha256(piece.how.encode())
    for cell in piece.cells:
        data = cell.encode("utf-8", "replace")
        digest.update(b"%d\n" % len(data) + data)
    return digest.hexdigest()


def _name(piece: CodePiece) -> str:
    return {"file": "a file", "session": "a Python session", "quoted": "quoted code"}[piece.how]
