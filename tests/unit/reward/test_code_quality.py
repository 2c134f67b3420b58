"""The component: an average over what there is, by hand; and the rating over several pieces."""

from __future__ import annotations

from typing import Any

import pytest
from code_documents import made_of, run

from onward.reward import NotApplicable, Scored, Unscored
from onward.reward.code import CodeReport
from onward.reward.code.analyser import rating_of
from onward.reward.components import ScoringContext
from onward.reward.components.code_quality import NOT_INSTALLED, CodeQuality
from onward.reward.measures.baselines import Baselines
from onward.reward.measures.judgement import judge

TRAJECTORY = made_of(run(1, "true", ""))


def scored(code: CodeReport | Unscored | None) -> Any:
    context = ScoringContext(judgement=judge(TRAJECTORY), baselines=Baselines(), code=code)
    return CodeQuality().score(TRAJECTORY, context)


@pytest.mark.parametrize(
    ("linter", "tests", "criticals", "score"),
    [
        (0.9, None, None, 0.9),
        (None, 0.75, None, 0.75),
        (None, None, 0, 1.0),
        (None, None, 1, 0.5),
        (None, None, 2, 0.0),
        (None, None, 7, 0.0),
        (0.9, 0.6, None, 0.75),
        (0.9, 0.6, 1, (0.9 + 0.6 + 0.5) / 3),
        (0.0, 0.0, 0, 1 / 3),
        (1.5, -1.0, None, 0.5),
    ],
)
def test_average_of_what_there_is(
    linter: float | None, tests: float | None, criticals: int | None, score: float
) -> None:
    found = scored(CodeReport(linter, tests, criticals, tools=("pylint 4.1.4",), snippets=1))
    assert isinstance(found, Scored)
    assert found.score == pytest.approx(score, abs=1e-12)
    assert found.evidence == 1.0


def test_the_seed_example_pylint_nine_of_ten_is_0_90() -> None:
    found = scored(CodeReport(linter=9.0 / 10, tools=("pylint",)))
    assert (found.score, found.source) == (0.9, "linter")
    assert found.reasoning == "Average of linter 0.90, from pylint."


def test_raw_data_names_parts_tools_and_complexity() -> None:
    report = CodeReport(0.9, 1.0, 1, ("bandit 1.9.4", "pylint 4.1.4"), 7.0, 2, {"languages": ["python"]})
    assert scored(report).raw_data == {
        "parts": {"linter": 0.9, "tests": 1.0, "security": 0.5},
        "security_criticals": 1,
        "complexity": 7.0,
        "snippets": 2,
        "tools": ["bandit 1.9.4", "pylint 4.1.4"],
        "languages": ["python"],
    }


def test_source() -> None:
    assert scored(CodeReport(linter=0.5, tests=1.0)).source == "linter"
    assert scored(CodeReport(tests=1.0)).source == "test_results"
    assert scored(CodeReport(security_criticals=0)).source == "automated"


def test_no_code_does_not_apply() -> None:
    assert scored(None) == NotApplicable("no code was written")


def test_a_tool_that_could_not_finish_is_unscored_and_no_zero() -> None:
    assert scored(Unscored("code_analysis", "cpu_time: a file")) == Unscored(
        "code_analysis", "cpu_time: a file"
    )


def test_without_the_tools_the_extra_is_named() -> None:
    found = scored(CodeReport(snippets=1, detail={"not_installed": True, "languages": ["python"]}))
    assert found == NotApplicable(NOT_INSTALLED)
    assert "[code]" in NOT_INSTALLED


def test_another_language_does_not_apply_and_is_named() -> None:
    found = scored(CodeReport(detail={"languages": ["go", "rust"]}))
    assert "go, rust" in found.reason


def facts(statements: int, lines: int = 0, **counts: int) -> dict[str, Any]:
    zero = {"error": 0, "warning": 0, "refactor": 0, "convention": 0}
    return {
        "statements": statements,
        "lines_unparsed": lines,
        "counts": zero | counts,
        "parsed": statements > 0,
    }


@pytest.mark.parametrize(
    ("read", "rating"),
    [
        ([facts(10)], 1.0),
        ([facts(10, error=1)], 0.5),
        ([facts(10, warning=1, refactor=1, convention=1)], 0.7),
        ([facts(10, error=9)], 0.0),
        ([facts(30), facts(10, error=1)], (30 + 5) / 40),
        ([facts(10, error=9), facts(10)], 0.5),
        ([facts(8, lines=2)], 0.8),
        ([facts(0, lines=5)], 0.0),
        ([facts(0)], None),
        ([], None),
    ],
)
def test_rating_is_pylints_own_weighted_by_statements(
    read: list[dict[str, Any]], rating: float | None
) -> None:
    assert rating_of(read) == (None if rating is None else pytest.approx(rating, abs=1e-12))
