"""Trajectories scored by rubrics: documents, families with a known truth, and checks that a writer weighs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import ChatServer, text
from reward_documents import trajectory, turn

from onward.config import RewardSettings
from onward.contracts import Trajectory
from onward.errors import ConfigError
from onward.reward import NotApplicable, ScoringContext, State, Unscored, score
from onward.reward.components import RubricScore
from onward.reward.measures.baselines import Baselines
from onward.reward.measures.judgement import judge
from onward.rubrics.tasks import make_task
from onward.rubrics.tasks.render import markdown
from onward.rubrics.trajectories import rubrics_of
from onward.rubrics.trajectories.document import FORM_CHECKS, read_document

REPORT = """# Weekly report

Sales rose in every region this week, and returns fell to the level of last year.

## Summary

The week was good in all regions, and no shop was short of goods.

## Items

| id | date | amount | owner |
| --- | --- | --- | --- |
| AB-0001 | 2026-01-02 | EUR 1,200.50 | Ada |
| AB-0002 | 2026-01-03 | EUR 20.00 |  |
"""


def answered(answer: str, *, task_id: str = "k", task_type: str = "report", files: Any = ()) -> Trajectory:
    writes = [turn(n, tool="write", args=one) for n, one in enumerate(files, 1)]
    last = turn(len(writes) + 1, output=answer)
    found = trajectory(turns=[*writes, last], task_type=task_type)
    return found.model_copy(
        update={"task_context": found.task_context.model_copy(update={"task_id": task_id})}
    )


def settings(**sources: dict[str, Any]) -> RewardSettings:
    return RewardSettings.model_validate({"rubrics": sources})


def free(folder: Path, *rules: dict[str, Any]) -> dict[str, Any]:
    stage = {"name": "all", "max_points": sum(one["weight"] for one in rules), "rules": list(rules)}
    document = {"category_name": "report", "max_total_score": stage["max_points"], "stages": [stage]}
    (folder / "rubric.json").write_text(json.dumps(document))
    return {"document": str(folder / "rubric.json")}


def code(name: str, weight: float, expression: str) -> dict[str, Any]:
    return {
        "type": "code", "name": name, "weight": weight,
        "code": f"def evaluate(artefact):\n    return {expression}\n",
    }  # fmt: skip


def judge_rule(name: str, weight: float) -> dict[str, Any]:
    return {"type": "llm_judge", "name": name, "weight": weight, "judge_prompt": "Is it polite?"}


# --- the reading of an answer -------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["weekly_sales_summary", "incident_postmortem", "travel_itinerary"])
def test_an_artefact_written_as_markdown_satisfies_the_same_checks(family: str) -> None:
    """The checks on what is read back are those on the artefact itself, broken parts and all."""
    task = make_task(family, 1)
    readable = [place for place, check in enumerate(task.active) if check.name in FORM_CHECKS]
    assert len(readable) >= 7
    for bits in task.probes():
        artefact = task.build(bits)
        assert (task.bits(read_document(markdown(artefact)))[readable] == bits[readable]).all()
        assert (task.bits(read_document(json.dumps(artefact))) == bits).all()


# --- the three kinds of rubrics ------------------------------------------------------------------------


async def test_a_family_scores_an_answer_by_the_truth_of_its_task() -> None:
    engine = rubrics_of(settings(notes={"family": "release_notes"}))
    task = make_task("release_notes", 7)
    for bits in task.probes()[:4]:
        answer = json.dumps(task.build(bits))
        found = await engine.result(answered(answer, task_id="release_notes/7"))
        assert found is not None and found.score == pytest.approx(float(np.asarray(bits) @ task.weights))
    nothing = await engine.result(answered("", task_id="release_notes/7"))
    assert nothing is not None and nothing.score == 0
    assert await engine.result(answered("x", task_id="recall_notice/7")) is None


@pytest.mark.parametrize("seed", ["4000000", "9" * 5000, "-1", "x"])
async def test_a_task_with_a_seed_of_no_split_is_no_task_of_the_family(seed: str) -> None:
    engine = rubrics_of(settings(audit={"family": "expense_audit"}))
    assert await engine.result(answered(REPORT, task_id=f"expense_audit/{seed}")) is None


async def test_checks_of_the_form_count_alike_without_a_writer() -> None:
    checks = ["min_words(20)", "has_section(summary)", "id_format", "each_row_has(owner)", "owner_assigned"]
    engine = rubrics_of(settings(report={"checks": checks, "task_types": ["report"]}))
    found = await engine.result(answered(REPORT))
    assert found is not None and found.score == pytest.approx(2 / 5)
    assert found.criteria == {
        "min_words(20)": 0, "has_section(summary)": 1, "id_format": 1, "each_row_has(owner)": 0,
        "owner_assigned": 0,
    }  # fmt: skip
    assert found.reasons["owner_assigned"] == "There is no table of actions."
    empty = await engine.result(answered("nothing to see"))
    assert empty is not None and empty.criteria["id_format"] == 0, "no row is not a good row"
    assert await engine.result(answered(REPORT, task_type="chat")) is None


async def test_a_writer_reads_the_task_and_weighs_the_checks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")
    weights = {"min_words": 5, "has_section": 3, "id_format": 2}

    def script(body: dict[str, Any]) -> dict[str, Any]:
        assert body["response_format"]["json_schema"]["name"] == "Rubric", "no question that no one answers"
        assert body["messages"][1]["content"].endswith('"20"\ngo\nWrite the rubric.')
        arguments = {"min_words": "20", "has_section": "summary", "id_format": ""}
        criteria = [{"check": c, "arg": arguments[c], "weight": w} for c, w in weights.items()]
        return text(json.dumps({"criteria": criteria}))

    with ChatServer(script).running() as server:
        source = {
            "checks": ["min_words(20)", "has_section(summary)", "id_format", "date_iso"],
            "writer": f"openai:m1@{server.url}",
        }
        engine = rubrics_of(settings(report=source))
        found = await engine.result(answered(REPORT))
        again = await engine.result(answered("# T"))
    assert found is not None and again is not None
    assert (found.score, again.score) == (pytest.approx(0.5), 0), "has_section 3/10 and id_format 2/10"
    assert len(server.requests) == 1


async def test_a_document_reads_answer_and_files(tmp_path: Path) -> None:
    rules = (
        code("names the file", 3, "3 if 'out.csv' in artefact['answer'] else 0"),
        code("three rows", 1, "artefact['files']['out.csv'].count('\\n') == 3"),
    )
    engine = rubrics_of(settings(r=free(tmp_path, *rules)))
    wrote = answered("See out.csv", files=[{"path": "out.csv", "content": "a\nb\n"}])
    found = await engine.result(wrote)
    assert found is not None and found.score == 0.75
    assert found.criteria == {"all: names the file": 1, "all: three rows": 0}
    assert found.weights == {"all: names the file": 0.75, "all: three rows": 0.25}


# --- the reward -----------------------------------------------------------------------------------------


async def component(engine_settings: RewardSettings, item: Trajectory) -> Any:
    found = await rubrics_of(engine_settings).result(item)
    return RubricScore().score(item, ScoringContext(judge(item), Baselines(), rubric=found))


async def test_a_rule_that_breaks_leaves_the_trajectory_unscored(tmp_path: Path) -> None:
    given = settings(r=free(tmp_path, code("fine", 1, "1"), code("broken", 1, "artefact['files']['none']")))
    answer = await component(given, answered("hello"))
    assert answer == Unscored("rubric_unknown", "all: broken")
    weighted = given.model_copy(update={"rubric": 0.5, "task_completion": 0.5, "efficiency": 0,
                                        "code_quality": 0, "user_feedback": 0})  # fmt: skip
    found = await rubrics_of(given).result(answered("hello"))
    item = answered("hello")
    whole = score(item, State(40), settings=weighted, timestamp=item.end_timestamp, rubric=found)
    assert whole == Unscored("rubric_unknown", "rubric: all: broken")


async def test_what_a_model_judged_is_marked_as_an_opinion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the score is an opinion: the evidence is 0.5 · 1 + 0.5 · 0.5 = 0.75."""
    monkeypatch.setenv("VLLM_API_KEY", "")
    source = free(tmp_path, code("short", 2, "2"), judge_rule("polite", 2))
    without = await component(settings(r=source), answered("hello"))
    assert without == Unscored("rubric_unknown", "all: polite"), "no judge is no zero"
    with ChatServer(lambda body: text('Fine. {"score": 1, "reason": "half polite"}')).running() as server:
        judged = settings(r={**source, "judge": f"vllm:m1@{server.url}"})
        answer = await component(judged, answered("hello"))
    assert (answer.score, answer.evidence, answer.source) == (0.75, 0.75, "automated")
    assert answer.raw_data["opinions"] == ["all: polite"]
    assert answer.raw_data["reasons"]["all: polite"] == "half polite"
    assert "an opinion" in answer.reasoning


async def test_a_trajectory_that_no_rubric_is_about_is_left_out(tmp_path: Path) -> None:
    given = settings(notes={"family": "release_notes"})
    assert await component(given, answered("x")) == NotApplicable("no rubric is about it")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"document": "nowhere.json"}, "cannot be read"),
        ({"family": "release_note"}, "did you mean 'release_notes'"),
        ({"checks": ["min_words(20)", "pii_masked(email)", "date_iso"]}, "inputs of a known task"),
        ({"checks": ["min_word(20)", "id_format", "date_iso"]}, "min_word"),
        ({"checks": ["date_iso"]}, "give more"),
        ({"checks": ["date_iso", "date_iso()", " date_iso", "id_format"]}, "2 different checks are given"),
        ({"checks": ["date_iso", "id_format", "max_words(120)"], "writer": "nowhere"}, "no rubric writer"),
    ],
)
def test_a_rubric_that_cannot_be_used_is_refused_at_the_start(source: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[reward\.rubrics\.r\] cannot be used: .*{words}"):
        rubrics_of(settings(r=source))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "exactly one of"),
        ({"document": "a", "family": "b"}, "exactly one of"),
        ({"document": "a", "writer": "b"}, "a rubric already"),
        ({"family": "a", "judge": "b"}, "judge rules of a document"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(source: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings(r=source)
