"""Inspect tasks as suites: refusals and the meaning of scores; whole runs where Inspect is installed.

Whole runs need the extra ``eval`` in this Python, or in the one that ``ONWARD_EVAL_PYTHON`` names.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace as Fields
from typing import Any

import pytest
from chat_server import ChatServer, text

from onward.errors import ConfigError, EngineError
from onward.suites.inspect import outcome
from onward.suites.inspect.suite import InspectSuite
from onward.suites.suite import Endpoint

EVAL_PYTHON = os.environ.get("ONWARD_EVAL_PYTHON")
INSPECT = bool(EVAL_PYTHON) or find_spec("inspect_ai") is not None
with_inspect = pytest.mark.skipif(not INSPECT, reason="the extra 'eval' is not installed")


def child_that_prints(folder: Path, *events: dict[str, Any]) -> str:
    """An interpreter that prints these events, whatever it is started with."""
    program = folder / "python"
    lines = "\n".join(json.dumps(event) for event in events)
    program.write_text(f"#!/bin/sh\necho 'a line of a library'\ncat <<'END'\n{lines}\nEND\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def item_event(name: str, score: float | None, note: str = "") -> dict[str, Any]:
    return {
        "event": "item", "item_id": name, "kind": "", "score": score, "note": note,
        "transcript": [{"role": "assistant", "content": name}],
    }  # fmt: skip


async def test_results_come_in_the_tasks_order_and_an_item_without_one_is_unscored(tmp_path: Path) -> None:
    python = child_that_prints(
        tmp_path,
        {"event": "started", "items": ["a", "b", "c"]},
        item_event("b", 0.5),
        item_event("a", 1.0),
        {"event": "done"},
    )
    seen: list[str] = []
    with ChatServer(lambda _: 500).running() as server:
        suite = InspectSuite("mine", "x/y", folder=tmp_path, python=python)
        results = await suite.run(
            Endpoint(server.url, "m", "key"), seed=0, on_item=lambda result: seen.append(result.item_id)
        )
    assert [(one.item_id, one.score, one.success, one.kind) for one in results] == [
        ("a", 1.0, True, "mine"), ("b", 0.5, False, "mine"), ("c", None, False, "mine"),
    ]  # fmt: skip
    assert seen == ["b", "a"]


async def test_an_endpoint_that_answers_no_item_is_away_and_not_a_zero(tmp_path: Path) -> None:
    python = child_that_prints(
        tmp_path,
        {"event": "started", "items": ["a"]},
        item_event("a", None, "APIConnectionError('Connection error.')"),
        {"event": "done"},
    )
    with ChatServer(lambda _: 500).running() as server, pytest.raises(EngineError, match="answered no item"):
        await InspectSuite("mine", "x/y", folder=tmp_path, python=python).run(
            Endpoint(server.url, "m", "key"), seed=0
        )


async def test_no_child_is_started_for_an_endpoint_at_which_nothing_listens(tmp_path: Path) -> None:
    suite = InspectSuite("mine", "x/y", folder=tmp_path / "new", python="/nowhere")
    with pytest.raises(EngineError, match="does not answer"):
        await suite.run(Endpoint("http://127.0.0.1:9/v1", "m", "key"), seed=0)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"event": "refused", "code": "extra"}, "optional part 'eval'.*ONWARD_EVAL_PYTHON"),
        ({"event": "refused", "code": "unknown", "known": ["a/maths", "a/code"]}, "did you mean 'a/maths'"),
        ({"event": "refused", "code": "broken", "why": "KeyError: 'x'"}, "cannot run here: KeyError: 'x'"),
        ({"event": "nonsense"}, "ended without a result"),
    ],
)
def test_a_task_that_cannot_run_is_refused_in_one_sentence(
    tmp_path: Path, event: dict[str, Any], words: str
) -> None:
    suite = InspectSuite("mine", "a/math", folder=tmp_path, python=child_that_prints(tmp_path, event))
    with pytest.raises(ConfigError, match=words):
        _ = suite.size


def test_an_interpreter_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="'/nowhere' for Inspect does not exist: correct ONWARD_EVAL_PYTHON"
    ):
        InspectSuite("mine", "a/b", folder=tmp_path, python="/nowhere").digest()


@pytest.mark.skipif(find_spec("inspect_ai") is not None, reason="the extra 'eval' is installed")
def test_without_the_extra_the_real_child_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="optional part 'eval'"):
        InspectSuite("mine", "onward/tool_usage", folder=tmp_path, python=sys.executable).digest()


@pytest.mark.parametrize(
    ("value", "score"),
    [
        ("C", 1.0), ("P", 0.5), ("I", 0.0), ("N", 0.0), (True, 1.0), (False, 0.0), (0.25, 0.25),
        ("0.75", 0.75), ("yes", 1.0), ({"a": 1.0, "b": 0.0}, 0.5), ([1, 0, 0, 0], 0.25), (7, None),
        (-1, None), (math.nan, None), ("a word", None), ([], None),
    ],
)  # fmt: skip
def test_a_value_of_inspect_is_a_score_or_none(value: Any, score: float | None) -> None:
    assert outcome.number(value) == score


def test_a_sample_with_an_error_is_unscored_and_a_repetition_has_its_own_name() -> None:
    message = Fields(role="user", text="hello", tool_calls=None)
    sample = Fields(
        id=4, epoch=2, error=Fields(message="ValueError('x')"),
        scores={"m": Fields(value="C", explanation="")},
        metadata={"category": "maths"}, messages=[message],
    )  # fmt: skip
    assert outcome.item(sample, "task") == {
        "event": "item", "item_id": "4#2", "kind": "maths", "score": None, "note": "ValueError('x')",
        "transcript": [{"role": "user", "content": "hello"}], "fault": "policy",
    }  # fmt: skip
    trace = 'File "/x/inspect_ai/scorer/_match.py", line 9, in score\n'
    sample.error = Fields(message="ValueError('x')", traceback=trace)
    assert outcome.item(sample, "task")["fault"] == "judge", "a scorer that fails says nothing of the policy"
    sample.error = Fields(message="APIConnectionError('Connection error.')")
    assert outcome.item(sample, "task")["fault"] == "judge", "the policy was not asked"
    sample.error = Fields(message="Request timed out.")
    assert outcome.item(sample, "task")["fault"] == "policy"


@with_inspect
@pytest.mark.long
async def test_a_shipped_task_scores_alike_with_and_without_inspect(tmp_path: Path) -> None:
    from onward.suites.tasks.shipped import ShippedSuite, task

    with ChatServer(lambda body: text("cheese" if "tea" in str(body) else "Sven 3")).running() as server:
        policy = Endpoint(server.url, "m", "key")
        plain = await ShippedSuite(task("data_analysis"), at_once=2).run(policy, seed=0)
        suite = InspectSuite(
            "data_analysis", "onward/data_analysis", folder=tmp_path, at_once=2, python=EVAL_PYTHON
        )
        inspected = await suite.run(policy, seed=0)
    assert suite.size == 45 == len(inspected)
    assert {one.item_id: one.score for one in plain} == {one.item_id: one.score for one in inspected}
    assert all(one.transcript[-1]["role"] == "assistant" for one in inspected)
    assert "key" not in (tmp_path / "data_analysis.log").read_text().split()


@with_inspect
@pytest.mark.long
async def test_a_mistyped_task_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'onward/tool_usage'"):
        InspectSuite("mine", "onward/tool_usag", folder=tmp_path, python=EVAL_PYTHON).digest()


@with_inspect
@pytest.mark.long
async def test_an_endpoint_whose_every_answer_is_an_error_is_away(tmp_path: Path) -> None:
    with ChatServer(lambda _: 401).running() as server, pytest.raises(EngineError, match="answered no item"):
        suite = InspectSuite("mine", "onward/data_analysis", folder=tmp_path, limit=2, python=EVAL_PYTHON)
        await suite.run(Endpoint(server.url, "m", "key"), seed=0)
