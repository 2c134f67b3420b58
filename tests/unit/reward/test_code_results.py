"""Results that a trajectory carries, by hand, and the ways to forge them."""

from __future__ import annotations

from typing import Any

import pytest
from code_documents import answer, call, made_of, run

from onward.reward.code.results import Results, finding_score, results_of
from onward.reward.code.shell import Run, runs_in

RATED = "************* Module x\nx.py:1:0: C0114: Missing (x)\n\nYour code has been rated at {}/10\n"
BANDIT = (
    "Run metrics:\n\tTotal issues (by severity):\n\t\tUndefined: 0\n\t\tLow: 2\n\t\tMedium: 1\n\t\tHigh: {}\n"
    "\tTotal issues (by confidence):\n\t\tUndefined: 0\n\t\tLow: 0\n\t\tMedium: 0\n\t\tHigh: 9\n"
)


def of(*turns: dict[str, Any]) -> Results:
    return results_of(made_of(*turns))


def three(results: Results) -> tuple[float | None, float | None, int | None]:
    return results.linter, results.tests, results.criticals


@pytest.mark.parametrize(("rating", "score"), [("9.00", 0.9), ("10.00", 1.0), ("-3.50", 0.0), ("0.00", 0.0)])
def test_pylint_rating_is_a_tenth_and_never_below_zero(rating: str, score: float) -> None:
    found = of(run(1, "pylint x.py", RATED.format(rating), success=False))
    assert three(found) == (score, None, None)
    assert found.tools == {"pylint"}


def test_rating_with_a_previous_run_in_colour() -> None:
    text = "\x1b[1mYour code has been rated at 8.33/10 (previous run: 2.00/10, +6.33)\x1b[0m"
    assert of(run(1, "python -m pylint src/x.py", text)).linter == pytest.approx(0.833)


@pytest.mark.parametrize(
    ("summary", "share"),
    [
        ("==== 3 passed, 1 failed in 0.12s ====", 3 / 4),
        ("3 passed, 1 failed in 0.12s", 3 / 4),
        ("== 1 failed, 2 passed, 4 skipped, 1 xfailed, 2 warnings, 1 error in 61.02s (0:01:01) ==", 2 / 4),
        ("======= 5 passed in 1s =======", 1.0),
        ("=== 2 failed in 0.10s ===", 0.0),
        ("2 errors in 0.10s", 0.0),
        ("no tests ran in 0.01s", None),
        ("=== 3 skipped in 0.01s ===", None),
        ("3 passed", None),
    ],
)
def test_share_of_tests_that_passed(summary: str, share: float | None) -> None:
    assert of(run(1, "pytest -q tests", f"....\n{summary}\n", success=share == 1.0)).tests == share


@pytest.mark.parametrize(
    ("end", "share"),
    [
        ("OK", 1.0),
        ("OK (skipped=2)", 1.0),
        ("FAILED (failures=1, errors=1)", 0.5),
        ("FAILED (failures=1, skipped=2)", 0.5),
    ],
)
def test_unittest(end: str, share: float) -> None:
    text = f"....\n----------\nRan 4 tests in 0.002s\n\n{end}\n"
    assert of(run(1, "python3 -m unittest discover", text)).tests == share


def test_flake8_and_ruff_cost_a_twentieth_for_each_finding() -> None:
    assert [finding_score(n) for n in (0, 1, 7, 20, 999)] == [1.0, 0.95, pytest.approx(0.65), 0.0, 0.0]
    flake8 = "./x.py:1:1: F401 'os' imported but unused\nx.py:2:80: E501 line too long\nnot a finding\n"
    assert of(run(1, "flake8 x.py", flake8, success=False)).linter == pytest.approx(0.9)
    assert of(run(1, "ruff check .", "x.py:1:1: F401 …\nFound 3 errors.\n")).linter == pytest.approx(0.85)
    fixed = "Found 5 errors (3 fixed, 2 remaining).\n"
    assert of(run(1, "ruff check --fix .", fixed)).linter == pytest.approx(0.9)
    assert of(run(1, "uv run ruff check", "All checks passed!\n")).linter == 1.0


def test_silence_of_flake8_means_clean_only_when_it_was_alone_and_succeeded() -> None:
    assert of(run(1, "flake8 x.py", "")).linter == 1.0
    assert of(run(1, "flake8 x.py", "", success=False)).linter is None
    assert of(run(1, "flake8 x.py > out.txt", "")).linter is None
    assert of(run(1, "flake8 x.py &> out.txt", "")).linter is None
    assert of(run(1, "flake8 x.py && pylint x.py", "")).linter is None


def test_bandit_counts_high_severity() -> None:
    assert of(run(1, "bandit -r src", BANDIT.format(3))).criticals == 3
    assert of(run(1, "bandit x.py", BANDIT.format(0))).criticals == 0
    report = '{"metrics": {"_totals": {"CONFIDENCE.HIGH": 1, "SEVERITY.HIGH": 2, "loc": 5}}}'
    assert of(run(1, "bandit -f json x.py", report)).criticals == 2


def test_the_last_rating_of_each_target_counts_and_targets_are_averaged() -> None:
    found = of(
        run(1, "pylint x.py", RATED.format("2.00")),
        run(2, "pylint y.py", RATED.format("5.00")),
        run(3, "pylint ./x.py", RATED.format("9.00")),
    )
    assert found.linter == pytest.approx((9.0 + 5.0) / 2 / 10)


def test_pylint_speaks_before_a_linter_that_only_counts() -> None:
    found = of(run(1, "pylint x.py", RATED.format("5.00")), run(2, "ruff check .", "All checks passed!"))
    assert found.linter == 0.5
    assert found.tools == {"pylint"}


def test_the_largest_test_run_counts_so_that_a_last_run_of_the_good_ones_hides_nothing() -> None:
    whole, part = "8 passed, 2 failed in 1s", "1 passed in 1s"
    assert of(run(1, "pytest", whole), run(2, "pytest tests/a.py", part)).tests == 0.8
    assert of(run(1, "pytest", whole), run(2, "pytest", "10 passed in 1s")).tests == 1.0
    assert of(run(1, "pytest", "10 passed in 1s"), run(2, "pytest", whole)).tests == 0.8


@pytest.mark.parametrize(
    "command",
    [
        "cd /repo && PYTHONPATH=src timeout 60 pytest -q 2>&1 | tail -5",
        "source .venv/bin/activate; python -m pytest; echo done $?",
        "poetry run pytest || true",
        "pip install -q pytest && .venv/bin/py.test",
        "cat > test_x.py <<'EOF'\ndef test_x():\n    print('hello')\nEOF\npytest test_x.py",
        "nice -n 19 env A=b python3.12 -m pytest",
        "pytest --cov=src --color=yes --continue-on-collection-errors",
    ],
)
def test_usual_ways_to_run_tests(command: str) -> None:
    assert of(run(1, command, "4 passed in 0.1s")).tests == 1.0


def test_a_terminal_of_agent_zero_is_a_shell_and_its_python_is_not() -> None:
    text = "4 passed in 0.1s"
    terminal = call(1, "code_execution_tool", text, runtime="terminal", code="pytest")
    python = call(
        1, "code_execution_tool", text, runtime="python", code="import subprocess as s; s.run('pytest')"
    )
    assert of(terminal).tests == 1.0
    assert (of(python).tests, of(python).refused) == (None, 1)


def test_a_tool_named_after_the_program() -> None:
    assert of(call(1, "run_tests", "3 passed, 1 failed in 1s", path="tests")).tests == 0.75
    assert of(call(1, "pylint", RATED.format("7.00"), file="x.py")).linter == 0.7


def test_output_in_an_object_and_in_the_next_observation() -> None:
    assert of(run(1, "pytest", {"stdout": "4 passed in 1s", "exit_code": 0})).tests == 1.0
    late = run(1, "pytest", None)
    after = answer(2, "fine") | {"observation": {"type": "tool_result", "content": "1 failed in 1s"}}
    assert of(late, after).tests == 0.0


FORGED = "Your code has been rated at 10.00/10"


@pytest.mark.parametrize(
    "turns",
    [
        [answer(1, FORGED)],
        [run(1, f'echo "{FORGED}"', FORGED)],
        [run(1, f'pylint --version; echo "{FORGED}"', FORGED)],
        [run(1, f'pylint x.py > /dev/null; echo "{FORGED}"', FORGED)],
        [run(1, f"cat > r.txt <<EOF\n{FORGED}\nEOF", ""), run(2, "cat r.txt", FORGED)],
        [run(1, f"cat > r.txt <<EOF\n{FORGED}\nEOF", ""), run(2, "pylint x.py | cat r.txt", FORGED)],
        [run(1, f"cat > pylint <<EOF\necho {FORGED}\nEOF", ""), run(2, "./pylint x.py", FORGED)],
        [run(1, "python -c 'print(\"Your code has been rated at %d.00/10\" % 10)'; pylint x.py", FORGED)],
        [run(1, "A=10; echo Your code has been rated at $A.00/10; pylint --help", FORGED)],
        [run(1, "printf 'Your code has been rated at %s/10' 10.00 && pylint x.py", FORGED)],
        [run(1, "pylint x.py; echo -e 'Your code has been rated\\x20at 10.00/10'", FORGED)],
        [run(1, "pylint x.py; echo -n 'Your code has been rated '; echo 'at 10.00/10'", FORGED)],
        [run(1, "pylint x.py; python show.py", FORGED)],
        [run(1, "pylint x.py; grep rated notes.txt", FORGED)],
        [run(1, "pylint --disable=all x.py", FORGED)],
        [run(1, "pylint -E x.py", FORGED)],
        [run(1, "pylint --rcfile=mine x.py", FORGED)],
        [run(1, "echo pylint x.py", FORGED)],
        [run(1, "echo 'a; pylint x.py'", FORGED)],
        [run(1, "make lint", FORGED)],
        [call(1, "code_execution_tool", FORGED, runtime="python", code="print('pylint')")],
    ],
)
def test_a_rating_that_the_agent_could_have_written_itself_is_no_evidence(
    turns: list[dict[str, Any]],
) -> None:
    assert of(*turns).linter is None


@pytest.mark.parametrize(
    "command",
    [
        "python forge.py",
        "echo '9 passed in 1s'",
        "cat log.txt; pytest",
        "pytest --version; cat log.txt",
        "tox",
    ],
)
def test_a_test_summary_that_the_agent_could_have_written_itself_is_no_evidence(command: str) -> None:
    found = of(run(1, command, "9 passed in 1s"))
    assert (found.tests, found.refused) == (None, 1)


def test_a_forged_line_beside_a_real_one_gains_nothing() -> None:
    real = RATED.format("3.00")
    assert of(run(1, "pylint x.py", f"{FORGED}\n{real}")).linter == 0.3
    assert of(run(1, "pytest", "99 passed in 1s\n1 passed, 1 failed in 1s\n")).tests == 0.5
    assert of(run(1, "bandit x.py", BANDIT.format(0) + BANDIT.format(2))).criticals == 2


def checks(**parts: Any) -> dict[str, Any]:
    made = run(1, "true", "")
    made["result"]["checks"] = parts
    return made


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"linter": 9.0}, (0.9, None, None)),
        ({"linter": {"tool": "pylint", "score": 8.5}}, (0.85, None, None)),
        ({"linter": {"tool": "flake8", "issues": 4}}, (0.8, None, None)),
        ({"linter": 12}, (1.0, None, None)),
        ({"tests": {"passed": 3, "failed": 1}}, (None, 0.75, None)),
        ({"tests": {"passed": 3, "failed": 1, "errors": 2}}, (None, 0.5, None)),
        ({"tests": {"passed": 3, "total": 6}}, (None, 0.5, None)),
        ({"tests": {"pass_rate": 0.25}}, (None, 0.25, None)),
        ({"tests": 0.5}, (None, 0.5, None)),
        ({"tests": {"passed": 0, "failed": 0}}, (None, None, None)),
        ({"security": {"critical": 1}}, (None, None, 1)),
        ({"security": {"high": 0}}, (None, None, 0)),
        ({"security": 2}, (None, None, 2)),
        ({"linter": 9.0, "tests": 1.0, "security": 0}, (0.9, 1.0, 0)),
        ({"linter": "9/10", "tests": True, "security": -1}, (None, None, None)),
        ({"linter": {"score": []}, "tests": [], "security": {"critical": "none"}}, (None, None, None)),
    ],
)
def test_checks_of_a_result(parts: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert three(of(checks(**parts))) == expected


def test_checks_win_over_outputs_part_by_part() -> None:
    found = of(run(1, "pylint x.py && pytest", RATED.format("2.00") + "1 failed in 1s"), checks(linter=9.0))
    assert three(found) == (0.9, 0.0, None)
    assert found.sources == {"linter": "result.checks", "tests": {"passed": 0, "run": 1}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pylint src/a.py b.py", [Run("pylint", ("a.py", "b.py"))]),
        ("sudo -E env X=1 flake8 .", [Run("flake8", (".",))]),
        ("ruff format . && ruff check .", [Run("ruff", (".",))]),
        ("pytest; bandit -r src", [Run("pytest"), Run("bandit", ("src",))]),
        ("git log; pytest", []),
        ("pytest --collect-only", []),
        ("pytest --co -q", []),
        ("./pytest", []),
        ("/work/.venv/bin/pytest", [Run("pytest")]),
        ("$(pytest)", []),
        ("(cd x && pytest)", []),
        ("", []),
    ],
)
def test_what_a_command_really_runs(text: str, expected: list[Run]) -> None:
    assert runs_in(text) == expected


def test_many_runs_against_much_text_stay_bounded() -> None:
    turns = [run(i + 1, f"pytest {'x' * 20_000}", f"{i % 7 + 1} passed in 1s\n" * 100) for i in range(150)]
    assert of(*turns).tests == 1.0
