"""Code quality: the average of linter, tests and security, over the parts that have evidence.

The parts are the linter from 0 to 1 (pylint's rating / 10), the share of tests that passed, and
``1 − 0.5·critical security issues``, each cut to [0, 1]. ``onward.reward.code`` collects the facts before
scoring. The component does not apply to a trajectory without code, or with code that cannot be rated.
"""

from __future__ import annotations

import math
from typing import Any

from onward.contracts import Trajectory
from onward.errors import install_command
from onward.reward.code.report import CodeReport
from onward.reward.components.base import NotApplicable, Score, Scored, ScoringContext, Source, Unscored

NOT_INSTALLED = (
    "Code was written and no results came with it, and the linter is not installed: "
    f"run {install_command('[code]')}."
)


class CodeQuality:
    name = "code_quality"

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Score:
        report = context.code
        if report is None:
            return NotApplicable("no code was written")
        if isinstance(report, Unscored):
            return report
        parts = quality_parts(report)
        if not parts:
            return NotApplicable(_why_nothing(report))
        score = math.fsum(parts.values()) / len(parts)
        values = ", ".join(f"{name} {value:.2f}" for name, value in parts.items())
        return Scored(
            score=score,
            source=_source(report),
            reasoning=f"Average of {values}, from {', '.join(report.tools) or 'results in the trajectory'}.",
            raw_data={
                "parts": parts,
                "security_criticals": report.security_criticals,
                "complexity": report.complexity,
                "snippets": report.snippets,
                "tools": list(report.tools),
                **report.detail,
            },
            evidence=1.0,
        )


def quality_parts(report: CodeReport) -> dict[str, float]:
    """Returns scores in [0, 1] of linter, tests and security; a part without evidence is absent."""
    parts: dict[str, float] = {}
    if report.linter is not None:
        parts["linter"] = _unit(report.linter)
    if report.tests is not None:
        parts["tests"] = _unit(report.tests)
    if report.security_criticals is not None:
        parts["security"] = _unit(1.0 - 0.5 * report.security_criticals)
    return parts


def _source(report: CodeReport) -> Source:
    """Returns ``linter`` with a linter result, else ``test_results`` with tests, else ``automated``."""
    if report.linter is not None:
        return "linter"
    return "test_results" if report.tests is not None else "automated"


def _why_nothing(report: CodeReport) -> str:
    detail: dict[str, Any] = dict(report.detail)
    if detail.get("not_installed"):
        return NOT_INSTALLED
    languages = ", ".join(detail.get("languages", ())) or "an unknown language"
    return f"no results came with the code, and only Python can be rated: found {languages}"


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))
