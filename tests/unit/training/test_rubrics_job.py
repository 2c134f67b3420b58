from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rubric_writer import toy_plan, toy_settings

from onward.contracts.training import ControlRequest, RubricsRequest
from onward.errors import ConfigError, TrainingError
from onward.training.job import rubrics
from onward.training.role.job_table import type_of
from onward.training.role.rubrics_attempt import refuse_impossible


def request(**changes: Any) -> RubricsRequest:
    values = {
        "kind": "rubrics",
        "training_job_id": "job-1",
        "timestamp": "2026-01-05T13:00:00Z",
        "requester": "tests",
        "algorithm": "rloo",
        "steps": 2,
        "settings": toy_settings(),
        **changes,
    }
    return RubricsRequest.model_validate(values)


def test_the_plan_is_the_preset_with_the_requests_changes() -> None:
    assert rubrics.plan_of(request()) == toy_plan(algorithm="rloo", steps=2)
    assert rubrics.plan_of(request(seed=7, settings=None)).seed == 7
    short, long = (request(algorithm=name) for name in ("reinforce_pp", "reinforce_plus_plus"))
    assert (
        rubrics.plan_of(short) == rubrics.plan_of(long) == toy_plan(algorithm="reinforce_plus_plus", steps=2)
    )


def test_dotted_names_and_objects_in_objects_are_the_same_settings() -> None:
    care = {"demonstrations": 64, "care": {"weighed": 0.5}}
    whole = {"group_size": 4, "warm_start": {**care, "steps": 20}, "options": {"normalise_std": False}}
    dotted = {"warm_start.steps": 20, "group_size": 4, "warm_start": care, "options.normalise_std": False}
    given = [request(algorithm="grpo", settings=one) for one in (whole, dotted)]
    plans = [rubrics.plan_of(one) for one in given]
    assert plans[0] == plans[1] and (plans[0].warm_start.steps, plans[0].warm_start.batch_rows) == (20, 32)
    assert dotted["warm_start"] == {"demonstrations": 64, "care": {"weighed": 0.5}}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"warm_start.step": 3}, r"no setting warm_start\.step: did you mean steps\?"),
        ({"warm_start": {"steps": 2}, "warm_start.steps": 3}, r"warm_start\.steps of .* is given twice"),
        ({"group_size.n": 3, "group_size": 2}, r"group_size\.n of .* is given twice"),
        ({"group_size.n": 3}, "group_size of a rubrics run is {'n': 3}: give a whole number"),
    ],
)
def test_a_dotted_name_that_cannot_be_is_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rubrics.plan_of(request(settings=settings))


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"model": "/etc"}, "leave it out"), ({"seed": 1}, "give it at the top"), ({"warmth": 1}, "warmth")],
)
def test_a_request_that_cannot_run_is_refused_before_its_turn(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rubrics.plan_of(request(settings=settings))
    with pytest.raises(TrainingError, match=words):
        refuse_impossible(request(settings=settings))


def test_a_trainer_without_torch_refuses_the_preset_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(TrainingError, match=r"A job for a rubric writer needs the optional part 'lm'"):
        refuse_impossible(request(settings=None))


def test_a_stored_request_is_known_by_its_kind() -> None:
    stored = json.loads(request().model_dump_json(exclude_none=True))
    assert type_of(stored) is RubricsRequest
    assert type_of({"environment": "CartPole-v1"}) is ControlRequest


def test_the_child_reports_its_steps_and_compares_the_writer_with_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rubrics, "die_with_parent", lambda: None)
    monkeypatch.setattr(rubrics, "VALIDATION_TASKS", 8)
    (tmp_path / rubrics.SPEC).write_text(request().model_dump_json(exclude_none=True))
    base = tmp_path / rubrics.RUN / "base"  # as if the warm start were released: it is there by then
    (tmp_path / rubrics.RELEASED).write_text(json.dumps({"version": "rubric-writer-v7", "folder": str(base)}))
    assert rubrics.main(tmp_path) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    steps = [one for one in events if one["event"] == "progress"]
    assert [one["step"] for one in steps] == list(range(1, 43))  # 40 of the warm start, 2 of learning
    found = [one["progress"] for one in steps]
    assert [round(one["percent_complete"]) for one in found[19::20]] == [48, 95] and found[0][
        "total_steps"
    ] == 42
    assert found[-1]["percent_complete"] == 100.0 and found[-1]["eta_seconds"] == 0.0
    assert [n for n, one in enumerate(found, 1) if "eta_seconds" in one] == [42]  # then its pace is known
    assert set(steps[39]["metrics"]) == {"loss"} and "skill" in steps[40]["metrics"]
    done = events[-1]
    assert done["event"] == "done"
    gain = done["metrics"]["skill_gain"]
    assert gain["low"] <= gain["mean"] <= gain["high"]
    assert done["metrics"]["better"] == (gain["low"] > 0)
    assert (done["metrics"]["released"], done["metrics"]["versus_released"]) == ("rubric-writer-v7", gain)
    assert (tmp_path / rubrics.RUN / "writer" / "writer.json").is_file()


def test_a_damaged_request_ends_the_child_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rubrics, "die_with_parent", lambda: None)
    (tmp_path / rubrics.SPEC).write_text(request(settings={"model": "x"}).model_dump_json(exclude_none=True))
    assert rubrics.main(tmp_path) == 1
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (event["event"], event["code"]) == ("failed", "DATA")
