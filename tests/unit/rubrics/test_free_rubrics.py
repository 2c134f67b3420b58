"""Free rubrics: consistency when they are made, gates, code in the sandbox, best and poor examples."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from onward.reward.sandbox import Sandbox
from onward.rubrics.evaluation import EvaluationError, check_evaluator
from onward.rubrics.language import InvalidRubric
from onward.rubrics.language.free import (
    CodeRule,
    FunctionRule,
    JudgeRule,
    Stage,
    StagedRubric,
    parse_free,
)
from onward.rubrics.language.judging import RecordedJudge, key_of, prompt_of
from onward.rubrics.language.outcomes import Outcome, failed, not_applicable, outcome_of
from onward.rubrics.language.staged import RuleRunner, combine, score_free

CODE = "def evaluate(artefact):\n    return artefact['rows'] * 2, 'counted'\n"
FREE: dict[str, Any] = {
    "category_name": "report",
    "rationale": "what the owner wants",
    "max_total_score": 10,
    "stages": [
        {
            "name": "gate",
            "max_points": 4,
            "min_score_to_pass": 2,
            "rules": [{"type": "code", "name": "rows", "weight": 4, "code": CODE}],
        },
        {
            "name": "style",
            "is_required": False,
            "max_points": 6,
            "rules": [
                {
                    "type": "llm_judge",
                    "name": "clear",
                    "weight": 6,
                    "judge_prompt": "Is it clear?",
                    "expectation": "short sentences",
                }
            ],
        },
    ],
}


def changed(path: str, value: Any) -> str:
    copy = json.loads(json.dumps(FREE))
    at = copy
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in parents:
        at = at[part]
    at[last] = value
    return json.dumps(copy)


def test_a_free_rubric_is_read() -> None:
    rubric = parse_free(json.dumps(FREE))
    assert rubric.stages[0].rules[0].name == "rows"


@pytest.mark.parametrize(
    "path, value, reason",
    [
        ("max_total_score", 11, "points of the stages of 'report' sum to 10, and max_total_score is 11"),
        (
            "stages.0.max_points",
            5,
            "weights of the rules of the stage 'gate' sum to 4, and its max_points is 5",
        ),
        ("stages.0.min_score_to_pass", 5, "needs 5 points to pass and has 4"),
        ("stages.0.on_failure_score", 11, "on_failure_score 11: use 0 to 10"),
        ("stages.0.on_failure_score", -1, "on_failure_score -1: use 0 to 10"),
        ("stages.1.name", "gate", "Two stages in 'report' have the name 'gate'"),
        (
            "stages.0.rules.0.weight",
            True,
            "weight of the free rubric is invalid: Input should be a valid number",
        ),
        (
            "stages.0.max_points",
            "4",
            "max_points of the free rubric is invalid: Input should be a valid number",
        ),
        ("stages.0.rules.0.weight", 0, "stages.0.rules.0.code.weight of the free rubric is invalid"),
        ("stages.0.rules.0.type", "function", "invalid"),
        ("stages.0.rules.0.type", "other", "invalid"),
        ("stages.0.rules", [], "invalid"),
        ("stages", [], "invalid"),
        ("more", 1, "more of the free rubric is invalid"),
        ("stages.0.rules.0.code", CODE.replace("\n", "\\n"), "its line breaks are escaped twice"),
        ("stages.0.rules.0.code", "def evaluate(artefact:", "does not compile in line 1"),
        ("stages.0.rules.0.code", "x = 1", "defines no function evaluate(artefact)"),
        ("stages.0.rules.0.code", "def evaluate():\n    return 1", "defines no function evaluate(artefact)"),
        ("stages.0.rules.0.code", "def evaluate(a, b):\n    return 1", "defines no function"),
        ("stages.0.rules.0.code", "#" * 20_001, "has 20001 characters: write at most 20000"),
    ],
)
def test_an_inconsistent_rubric_is_refused_with_a_reason(path: str, value: Any, reason: str) -> None:
    with pytest.raises(InvalidRubric) as caught:
        parse_free(changed(path, value))
    assert reason in str(caught.value)


def test_a_number_of_too_many_digits_is_refused_with_a_reason() -> None:
    with pytest.raises(InvalidRubric, match="number with too many digits"):
        parse_free(json.dumps(FREE).replace("10", "1" * 5000, 1))


def judge(points: str) -> RecordedJudge:
    prompt = prompt_of("Is it clear?", {"rows": 2}, 6, "short sentences")
    return RecordedJudge({key_of(prompt, "m", 3): points})


@pytest.mark.parametrize(
    "answer, normalized, error",
    [
        ('{"score": 3}', 0.7, ""),
        ('{"score": true}', 1.0, ""),
        ('{"score": 600}', 1.0, ""),
        ("no verdict", None, "clear: The judge's answer ends without a verdict."),
    ],
)
def test_code_runs_in_the_sandbox_and_the_judge_gives_the_rest(
    answer: str, normalized: float | None, error: str
) -> None:
    rubric = parse_free(json.dumps(FREE))
    runner = RuleRunner(Sandbox(), judge(answer), "m", 3)
    result = asyncio.run(score_free(rubric, {"rows": 2}, runner))
    assert result.normalized == (pytest.approx(normalized) if normalized is not None else None)
    assert result.error == error
    assert result.rules["gate", "rows"] == Outcome("scored", 4.0, 4.0, "counted")


def stage(name: str, points: float, **more: Any) -> Stage:
    rules = (FunctionRule(name=name, weight=points, function=lambda artefact: 0.0),)
    return Stage(name=name, max_points=points, rules=rules, **more)


def scored(raw: float, most: float) -> Outcome:
    return Outcome("scored", most, raw)


@pytest.mark.parametrize(
    "action, more, total",
    [
        ("skip_remaining", {}, 0.0),
        ("skip_remaining", {"keep_partial": True}, 1.0),
        ("zero_category", {"on_failure_score": 2.5}, 2.5),
        ("continue", {}, 1.0 + 6.0),
    ],
)
def test_a_failed_gate_does_what_it_says(action: Any, more: dict[str, Any], total: float) -> None:
    gate = stage("gate", 4.0, min_score_to_pass=2.0, on_failure_action=action, **more)
    rubric = StagedRubric(category_name="r", max_total_score=10.0, stages=(gate, stage("rest", 6.0)))
    outcomes = {("gate", "gate"): scored(1.0, 4.0), ("rest", "rest"): scored(6.0, 6.0)}
    result = combine(rubric, outcomes)
    assert result.points == pytest.approx(total)
    assert result.normalized == pytest.approx(total / 10)
    assert result.passed["gate"] is False


def test_a_stage_that_is_not_required_is_no_gate() -> None:
    gate = stage("gate", 4.0, min_score_to_pass=2.0, is_required=False)
    rubric = StagedRubric(category_name="r", max_total_score=10.0, stages=(gate, stage("rest", 6.0)))
    result = combine(rubric, {("gate", "gate"): scored(1.0, 4.0), ("rest", "rest"): scored(6.0, 6.0)})
    assert result.points == 7.0


def test_an_error_leaves_no_score_unless_a_gate_failed_before() -> None:
    rubric = StagedRubric(
        category_name="r",
        max_total_score=10.0,
        stages=(stage("gate", 4.0, min_score_to_pass=2.0), stage("rest", 6.0)),
    )
    broken = failed("gone", 6.0)
    open_gate = combine(rubric, {("gate", "gate"): scored(4.0, 4.0), ("rest", "rest"): broken})
    assert (open_gate.normalized, open_gate.error) == (None, "rest: gone")
    closed = combine(rubric, {("gate", "gate"): scored(0.0, 4.0), ("rest", "rest"): broken})
    assert (closed.normalized, closed.error) == (0.0, "")
    assert ("rest", "rest") not in closed.rules


def test_a_rule_that_does_not_apply_leaves_its_points_to_the_others() -> None:
    rubric = StagedRubric(
        category_name="r", max_total_score=10.0, stages=(stage("gate", 4.0), stage("rest", 6.0))
    )
    away = not_applicable("no rows", 6.0)
    result = combine(rubric, {("gate", "gate"): scored(3.0, 4.0), ("rest", "rest"): away})
    assert result.normalized == pytest.approx(0.75)
    none = combine(rubric, {("gate", "gate"): not_applicable("", 4.0), ("rest", "rest"): away})
    assert (none.normalized, none.error) == (None, "No rule of the rubric applies.")


def rubric_of(code: str, weight: float = 4.0) -> StagedRubric:
    rule = CodeRule(name="rows", weight=weight, code=code)
    return StagedRubric(
        category_name="r",
        max_total_score=weight,
        stages=(Stage(name="s", max_points=weight, rules=(rule,)),),
    )


def run(code: str, artefact: Any = None) -> Outcome:
    return asyncio.run(score_free(rubric_of(code), artefact or {"rows": 2})).rules["s", "rows"]


@pytest.mark.parametrize(
    "body, error",
    [
        ("return float('nan')", "returned nan"),
        ("return None", "returned None"),
        ("return 1.0, 'a', 'b'", "return a number or a bool"),
        ("return 10**5000", "The rule ended its process"),
        ("import os; os._exit(0)", "replaced the answer"),
        ("import onward.rubrics.tasks; return 1", "ModuleNotFoundError"),
        ("import sys; open(sys.modules['onward'].__path__[0] + '/errors.py'); return 1", "PermissionError"),
        ("import threading; threading.Thread(target=print).start(); return 1", "start new thread"),
        ("return artefact['none']", "KeyError: 'none'"),
        ("raise SystemExit(3)", "The rule ended its process"),
        ("return open('/etc/passwd').read()", "PermissionError"),
        ("import socket; socket.socket(); return 1", "PermissionError"),
        ("import os; os.fork(); return 1", "PermissionError"),
        ("import os; os.write(1, b'[[\"value\", 4]]'); return 0", "replaced the answer"),
        ("x = 'a' * (1 << 40); return 1", "MemoryError"),
    ],
)
def test_code_that_fails_or_reaches_out_is_an_error(body: str, error: str) -> None:
    outcome = run(f"def evaluate(artefact):\n    {body}\n")
    assert (outcome.status, outcome.raw) == ("error", None)
    assert error in outcome.error


def test_what_a_rule_prints_is_not_its_answer_and_reasons_come_back() -> None:
    outcome = run("def evaluate(artefact):\n    print('[1]')\n    return True, 'all there'\n")
    assert outcome == Outcome("scored", 4.0, 4.0, "all there")
    outcome = run("def evaluate(artefact):\n    raise NotApplicable('no rows')\n")
    assert (outcome.status, outcome.message) == ("not_applicable", "no rows")


def test_a_failing_or_slow_function_and_a_broken_judge_are_errors() -> None:
    async def slow(artefact: Any) -> float:
        await asyncio.sleep(60)
        return 1.0

    def broken(artefact: Any) -> float:
        raise KeyError("x")

    class Away:
        async def answer(self, prompt: str, *, model: str, seed: int) -> str:
            raise OSError("no route")

    rules = (
        FunctionRule(name="slow", weight=1.0, function=slow),
        FunctionRule(name="broken", weight=1.0, function=broken),
        JudgeRule(name="judge", weight=1.0, judge_prompt="Is it good?"),
    )
    rubric = StagedRubric(
        category_name="r", max_total_score=3.0, stages=(Stage(name="s", max_points=3.0, rules=rules),)
    )
    result = asyncio.run(score_free(rubric, {}, RuleRunner(Sandbox(), Away(), timeout=0.01)))
    assert result.normalized is None
    assert [one.error for one in result.rules.values()] == [
        "The rule took longer than 0.01 s.",
        "KeyError: 'x'",
        "OSError: no route",
    ]


def test_a_rule_keeps_nothing_from_one_artefact_to_the_next() -> None:
    code = "def evaluate(artefact):\n    import sys\n    sys.n = getattr(sys, 'n', 0) + 1\n    return sys.n\n"
    runner, rubric = RuleRunner(Sandbox()), rubric_of(code)

    async def twice() -> list[float | None]:
        return [(await score_free(rubric, {"rows": rows}, runner)).points for rows in (1, 2)]

    assert asyncio.run(twice()) == [1.0, 1.0]


def test_a_reason_that_is_no_text_for_a_file_is_escaped() -> None:
    assert run("def evaluate(artefact):\n    return 1, '\\ud800'\n").message == "\\ud800"


def test_points_a_rounding_error_above_the_maximum_are_the_maximum() -> None:
    assert outcome_of(0.1 + 0.2, 0.3) == Outcome("scored", 0.3, 0.3)
    assert outcome_of(0.3001, 0.3).status == "error"
    assert outcome_of(-1e-12, 0.3) == Outcome("scored", 0.3, 0.0)


def test_a_gate_passes_at_its_least_score_and_not_below() -> None:
    gate = stage("gate", 4.0, min_score_to_pass=2.0)
    rubric = StagedRubric(category_name="r", max_total_score=4.0, stages=(gate,))
    for raw, passed in ((2.0, True), (2.0 - 1e-12, True), (1.999999, False)):
        assert combine(rubric, {("gate", "gate"): scored(raw, 4.0)}).passed == {"gate": passed}


def test_the_score_of_a_failed_gate_is_no_more_than_what_applies() -> None:
    first = stage("first", 6.0)
    gate = stage("gate", 4.0, min_score_to_pass=2.0, on_failure_action="zero_category", on_failure_score=9.0)
    rubric = StagedRubric(category_name="r", max_total_score=10.0, stages=(first, gate))
    outcomes = {("first", "first"): not_applicable("", 6.0), ("gate", "gate"): scored(0.0, 4.0)}
    result = combine(rubric, outcomes)
    assert (result.points, result.normalized) == (4.0, 1.0)


def test_a_rule_over_a_set_has_the_same_order_in_every_process() -> None:
    body = "    return 1, ''.join(set('abcdefgh'))\n"
    reasons = {run("def evaluate(artefact):\n" + body).message for _ in range(3)}
    assert len(reasons) == 1


BEST, POOR = {"rows": 2}, {"rows": 1}


@pytest.mark.parametrize(
    "code, reason",
    [
        (CODE, ""),
        ("def evaluate(artefact):\n    return 4\n", "'r' cannot fail: all 1 poor cases have full marks"),
        ("def evaluate(artefact):\n    return min(1, artefact['rows'])\n", "gives the best case 1 of 4"),
        ("def evaluate(artefact):\n    return artefact['x']\n", "fails on the best case: KeyError"),
        (
            "def evaluate(artefact):\n    raise NotApplicable('no rows')\n",
            "fails on the best case: it does not apply (no rows)",
        ),
        (
            "def evaluate(artefact):\n    return 4 if artefact['rows'] == 2 else artefact['x']\n",
            "has no score for any of 1 poor cases",
        ),
    ],
)
def test_a_rubric_must_reach_its_maximum_and_be_able_to_fail(code: str, reason: str) -> None:
    check = check_evaluator(rubric_of(code), BEST, [POOR])
    if not reason:
        asyncio.run(check)
        return
    with pytest.raises(EvaluationError) as caught:
        asyncio.run(check)
    assert reason in str(caught.value)
