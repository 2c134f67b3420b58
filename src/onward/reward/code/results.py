"""Results that a trajectory carries: ``result.checks``, else the output of a tool that was really run.

An agent may not grade itself. A text counts only as the output of a call that ran the tool by name. The call
has no option that chooses what counts, and no other command that could print by itself. No argument so far
may contain the same text. Of several verdicts in one output the worst counts. Every expression is RE2's.

Formulas: pylint rating / 10; flake8, ruff ``1 − 0.05 · findings``; tests passed / (passed + failed + errors).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import re2

from onward.contracts import Trajectory, Turn
from onward.reward.code.find import shell_texts, strings
from onward.reward.code.shell import Run, runs_in, runs_of_tool

FINDING_COST = 0.05
_OUTPUT_LIMIT = 1_000_000
"""Characters read of one output, from its end, since verdicts come last."""
_COLOUR: Any = re2.compile(r"\x1b\[[0-9;]*m")
_RATING: Any = re2.compile(r"Your code has been rated at (-?[0-9]{1,6}(?:\.[0-9]{1,4})?)/10")
_PYTEST: Any = re2.compile(
    r"(?m)^(?:=+ )?((?:[0-9]+ (?:passed|failed|skipped|errors?|warnings?|deselected|xfailed|xpassed|rerun)"
    r"(?:, )?)+)"
    r" in [0-9.]+s(?: \([0-9:]+\))?(?: =+)?\r?$"
)
_COUNT: Any = re2.compile(r"([0-9]+) (passed|failed|error)")
_UNITTEST: Any = re2.compile(
    r"(?m)^Ran ([0-9]+) tests? in [0-9.]+s\r?\n\s*\n?(?:OK|FAILED)(?: \(([a-z0-9=, ]*)\))?"
)
_LOST: Any = re2.compile(r"(?:failures|errors|unexpected successes)=([0-9]+)")
_SKIPPED: Any = re2.compile(r"skipped=([0-9]+)")
_FLAKE8: Any = re2.compile(r"(?m)^[^\s:][^:\n]*:[0-9]+:[0-9]+: [A-Z]{1,4}[0-9]{3,4} ")
_RUFF: Any = re2.compile(r"(?m)^Found ([0-9]+) errors?(?: \([0-9]+ fixed, ([0-9]+) remaining\))?\.")
_RUFF_CLEAN = "All checks passed!"
_BANDIT: Any = re2.compile(r"(?s)Total issues \(by severity\):.{0,200}?High: ([0-9]+)")
_BANDIT_JSON: Any = re2.compile(r'"_totals":\s*\{[^}]*"SEVERITY\.HIGH": ([0-9]+)')
_MOST_RUNS = 64
"""Runs examined, the last ones: each is compared with everything that the agent wrote before it."""
_Tests = tuple[int, int]
"""Number passed, and number that passed, failed or broke."""


@dataclass
class Results:
    linter: float | None = None
    tests: float | None = None
    criticals: int | None = None
    tools: set[str] = field(default_factory=set)
    sources: dict[str, Any] = field(default_factory=dict)
    """Part → its counts, for ``raw_data``."""
    refused: int = 0
    """Outputs with a verdict that did not count, since the agent could have written it itself."""


@dataclass
class _Seen:
    ratings: dict[Run, float] = field(default_factory=dict)
    highs: dict[Run, int] = field(default_factory=dict)
    tests: _Tests | None = None
    tester: str = ""

    def record(self, run: Run, value: Any) -> None:
        self.ratings.pop(run, None)
        if run.tool in ("pytest", "unittest"):
            if self.tests is None or value[1] >= self.tests[1]:
                self.tests, self.tester = value, run.tool
        elif run.tool == "bandit":
            self.highs[run] = value
        else:
            self.ratings[run] = value


def results_of(trajectory: Trajectory) -> Results:
    """Returns results known without running anything. ``checks`` override outputs, part by part.

    The last verdict on each target counts, averaged (linter) or summed (scanner) over targets. Of test runs
    the largest counts, and the last among equals: a final run of only the passing tests hides nothing.
    """
    found, seen = Results(), _Seen()
    written: list[str] = []
    calls: list[tuple[int, Turn, str, list[Run]]] = []
    for turn, output in _with_outputs(trajectory):
        written.extend(strings(turn.action.tool_args))
        if turn.action.type != "tool_call":
            continue
        runs = _runs(turn)
        if runs or _has_verdict(output):
            calls.append((len(written), turn, _COLOUR.sub("", output), runs))
    for known, turn, output, runs in calls[-_MOST_RUNS:]:
        counted = False
        for run in runs:
            worst = _worst(run.tool, output, clean=len(runs) == 1 and turn.result.success)
            if worst is not None and not any(worst[0] in text for text in written[:known] if worst[0]):
                seen.record(run, worst[1])
                counted = True
        found.refused += not counted and _has_verdict(output)
    _settle(found, seen)
    for turn in trajectory.turns:
        if isinstance(turn.result.checks, Mapping):
            _add_checks(turn.result.checks, found)
    return found


def _settle(found: Results, seen: _Seen) -> None:
    pylint = {run: value for run, value in seen.ratings.items() if run.tool == "pylint"}
    ratings = pylint or seen.ratings
    if ratings:
        found.linter = math.fsum(ratings.values()) / len(ratings)
        found.tools |= {run.tool for run in ratings}
        found.sources["linter"] = {" ".join((run.tool, *run.target)): value for run, value in ratings.items()}
    if seen.highs:
        found.criticals = sum(seen.highs.values())
        found.tools.add("bandit")
        found.sources["security"] = {" ".join(("bandit", *run.target)): n for run, n in seen.highs.items()}
    if seen.tests is not None:
        found.tests = seen.tests[0] / seen.tests[1]
        found.tools.add(seen.tester)
        found.sources["tests"] = {"passed": seen.tests[0], "run": seen.tests[1]}


def _with_outputs(trajectory: Trajectory) -> Iterator[tuple[Turn, str]]:
    """Yields each turn with the output of its action: its result, else the next turn's observation."""
    turns = trajectory.turns
    for position, turn in enumerate(turns):
        texts = [*strings(turn.result.output), *strings(turn.result.error)]
        if not texts and position + 1 < len(turns) and turns[position + 1].observation.type == "tool_result":
            texts = list(strings(turns[position + 1].observation.content))
        yield turn, "\n".join(texts)[-_OUTPUT_LIMIT:]


def _runs(turn: Turn) -> list[Run]:
    texts = shell_texts(turn.action)
    if texts:
        return runs_in("\n".join(texts))
    return runs_of_tool(turn.action.tool_name or "", list(strings(turn.action.tool_args)))


def _has_verdict(text: str) -> bool:
    if not any(word in text for word in ("rated at", " in ", "Ran ", "Total issues")):
        return False
    return any(form.search(text) is not None for form in (_RATING, _PYTEST, _UNITTEST, _BANDIT))


def _worst(tool: str, text: str, *, clean: bool) -> tuple[str, Any] | None:
    """Returns the worst verdict of ``tool`` in an output, with the matched words; None when there is none.
    ``clean``: the tool ran alone and succeeded, so that an empty output of flake8 means no finding."""
    if tool in ("pytest", "unittest"):
        runs = list(_pytest(text) if tool == "pytest" else _unittest(text))
        return min(runs, key=lambda run: run[1][0] / run[1][1], default=None)
    if tool == "pylint":
        ratings = [(m.group(0), max(0.0, min(1.0, float(m.group(1)) / 10.0))) for m in _RATING.finditer(text)]
        return min(ratings, key=lambda rating: rating[1], default=None)
    if tool == "flake8":
        findings = sum(1 for _ in _FLAKE8.finditer(text))
        return ("", finding_score(findings)) if findings or (clean and not text.strip()) else None
    if tool == "ruff":
        counts = [int(m.group(2) or m.group(1)) for m in _RUFF.finditer(text)]
        if counts:
            return "", finding_score(max(counts))
        return (_RUFF_CLEAN, 1.0) if _RUFF_CLEAN in text else None
    highs = [(m.group(0), int(m.group(1))) for form in (_BANDIT, _BANDIT_JSON) for m in form.finditer(text)]
    return max(highs, key=lambda high: high[1], default=None)


def finding_score(findings: int) -> float:
    """Returns the score of a linter that only counts: each finding costs 0.05, so 20 findings score 0."""
    return max(0.0, 1.0 - FINDING_COST * findings)


def _pytest(text: str) -> Iterator[tuple[str, _Tests]]:
    for summary in _PYTEST.finditer(text):
        counts = {"passed": 0, "failed": 0, "error": 0}
        for number, word in ((m.group(1), m.group(2)) for m in _COUNT.finditer(summary.group(1))):
            counts[word] += int(number)
        if any(counts.values()):
            yield summary.group(1), (counts["passed"], sum(counts.values()))


def _unittest(text: str) -> Iterator[tuple[str, _Tests]]:
    for summary in _UNITTEST.finditer(text):
        details = summary.group(2) or ""
        run = int(summary.group(1)) - sum(int(m.group(1)) for m in _SKIPPED.finditer(details))
        lost = sum(int(m.group(1)) for m in _LOST.finditer(details))
        if run > 0:
            yield summary.group(0), (max(0, run - lost), run)


def _add_checks(checks: Mapping[str, Any], found: Results) -> None:
    """Reads ``{"linter": …, "tests": …, "security": …}`` of a result; a later turn replaces an earlier one.

    linter: a rating from 0 to 10, or an object with ``score`` (0 to 10) or ``issues`` (a count); ``tool``.
    tests: a share, or an object with ``passed`` and ``failed``/``errors`` or ``total``, or ``pass_rate``.
    security: a count, or an object with ``critical`` or ``high``. Another shape is ignored.
    """
    for part, read in (("linter", _linter), ("tests", _tests), ("security", _security)):
        value = checks.get(part)
        score = read(value if isinstance(value, Mapping) else {"": value})
        if score is None:
            continue
        tool = value.get("tool") if isinstance(value, Mapping) else None
        found.tools.add(tool[:40] if isinstance(tool, str) and tool else f"{part} of result.checks")
        found.sources[part] = "result.checks"
        setattr(found, "criticals" if part == "security" else part, score)


def _number(value: Any) -> float | None:
    fine = (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )
    return float(value) if fine else None


def _linter(value: Mapping[str, Any]) -> float | None:
    issues = _number(value.get("issues"))
    if issues is not None and "score" not in value:
        return finding_score(math.ceil(issues))
    score = _number(value.get("score", value.get("")))
    return None if score is None else min(1.0, score / 10.0)


def _tests(value: Mapping[str, Any]) -> float | None:
    passed = _number(value.get("passed"))
    if passed is not None:
        lost = (_number(value.get("failed")) or 0.0) + (_number(value.get("errors")) or 0.0)
        total = max(passed + lost, _number(value.get("total")) or 0.0)
        return passed / total if total else None
    share = _number(value.get("pass_rate", value.get("")))
    return None if share is None else min(1.0, share)


def _security(value: Mapping[str, Any]) -> int | None:
    count = _number(value.get("critical", value.get("high", value.get(""))))
    return None if count is None else min(1_000_000, math.ceil(count))
