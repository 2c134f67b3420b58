"""Turns in progress: time, errors, order, and what becomes of those that never end."""

import asyncio
import json
import sqlite3
from datetime import UTC, datetime

import pytest

from onward import Recorder
from onward.clock import ManualClock
from onward.contracts import Trajectory, decode
from onward.errors import ContractError


def stored(recorder) -> list[Trajectory]:
    with sqlite3.connect(recorder._outbox.path) as connection:
        rows = connection.execute("SELECT body FROM queue ORDER BY seq").fetchall()
    return [decode(body, Trajectory) for (body,) in rows]


@pytest.fixture
def clock():
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def recorder(tmp_path, clock):
    with Recorder(tmp_path / "o.db", clock=clock, known_secrets=[]) as recorder:
        yield recorder


def wait(clock, seconds: float) -> None:
    asyncio.run(clock.advance(seconds))


def test_a_turn_in_progress_measures_its_action(recorder, clock):
    with recorder.task("Count") as task:
        with task.open_turn("Count the files") as turn:
            wait(clock, 2.0)
            turn.think("ls will do")
            turn.action({"tool_name": "shell", "tool_args": {"cmd": "ls"}})
            wait(clock, 1.5)
            turn.result("a b")
        with task.open_turn("a b", action="2") as turn:
            wait(clock, 0.25)
    first, second = stored(recorder)[0].turns
    assert (first.observation.content, first.action.tool_name, first.thought_process) == (
        "Count the files",
        "shell",
        ["ls will do"],
    )
    assert (first.result.output, first.result.execution_time_ms) == ("a b", 1500.0)
    assert (second.action.raw_response, second.result.success, second.result.execution_time_ms) == (
        "2",
        True,
        250.0,
    )
    assert [turn.timestamp.second for turn in (first, second)] == [0, 3]


async def test_the_same_in_async_code(recorder, clock):
    async with recorder.task("Count") as task, task.open_turn("Count", action="1") as turn:
        await clock.advance(1.0)
        turn.result({"success": False, "error": "wrong"})
    (turn,) = stored(recorder)[0].turns
    assert (turn.result.success, turn.result.error, turn.result.execution_time_ms) == (False, "wrong", 1000.0)


def test_an_exception_is_the_turns_result_and_goes_on(recorder):
    with recorder.task("Count") as task:
        with pytest.raises(KeyError), task.open_turn("x", action={"tool_name": "t"}):
            raise KeyError("gone")
        with task.open_turn("again", action="done"):
            pass
    first, second = stored(recorder)[0].turns
    assert (first.result.success, first.result.error) == (False, "KeyError: 'gone'")
    assert second.result.success is True


def test_a_model_that_does_not_answer_leaves_a_failed_turn(recorder):
    with pytest.raises(TimeoutError), recorder.task("Count") as task, task.open_turn("x"):
        raise TimeoutError("no answer")
    (trajectory,) = stored(recorder)
    (turn,) = trajectory.turns
    assert (turn.action.type, turn.action.raw_response) == ("response", None)
    assert turn.result.error == "TimeoutError: no answer"
    assert trajectory.metadata.outcome is not None and trajectory.metadata.outcome.status == "failed"


def test_a_turn_without_an_action_is_told_and_not_recorded(recorder):
    with recorder.task("Count") as task:
        with pytest.raises(ContractError, match=r"call action\(\)"), task.open_turn("x"):
            pass
        task.turn(observation="x", action="y")
    assert [turn.turn_id for turn in stored(recorder)[0].turns] == [1]


def test_turns_that_overlap_keep_the_order_in_which_they_began(recorder):
    with recorder.task("x") as task:
        with task.open_turn("outer", action="a"), task.open_turn("inner", action="b"):
            pass
        task.turn(observation="after", action="c")
    turns = stored(recorder)[0].turns
    assert [(t.turn_id, t.observation.content) for t in turns] == [(1, "outer"), (2, "inner"), (3, "after")]


def test_a_turn_that_never_ended_says_so(recorder):
    with recorder.task("x") as task:
        task.open_turn("left", action="a").__enter__()
    (turn,) = stored(recorder)[0].turns
    assert (turn.result.success, turn.result.error) == (
        False,
        "no result was reported before the task was closed",
    )


def test_what_the_agent_changes_later_is_recorded_as_it_was(recorder):
    messages = [{"role": "user", "content": "one"}]
    with recorder.task("x") as task:
        task.turn(
            observation={"messages": messages}, action={"type": "tool_call", "tool_args": {"a": messages}}
        )
        messages.append({"role": "user", "content": "two"})
    (turn,) = stored(recorder)[0].turns
    assert turn.observation.content == {"messages": [{"role": "user", "content": "one"}]}
    assert turn.action.tool_args == {"a": [{"role": "user", "content": "one"}]}


def test_a_value_that_contains_itself_or_is_too_deep_is_refused_in_one_sentence(recorder):
    loop: dict = {}
    loop["self"] = loop
    deep: dict = {}
    for _ in range(40):
        deep = {"a": deep}
    with recorder.task("x") as task:
        for value in (loop, deep):
            with pytest.raises(ContractError, match="record it as text"):
                task.turn(observation={"v": value}, action="a")
    assert recorder.pending() == 0


@pytest.mark.parametrize(("levels", "is_call"), [(25, True), (26, False), (28, False), (40, False)])
def test_a_completion_whose_call_nests_too_deep_is_recorded_as_text(recorder, levels, is_call):
    """By the API's form in a parallel call, where arguments lie deepest, and in a call written as text."""
    arguments = '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)
    call = {"function": {"name": "f", "arguments": arguments}}
    text = '{"tool_name": "f", "tool_args": ' + arguments + "}"
    with recorder.task("x") as task:
        for message in ({"content": None, "tool_calls": [call, call]}, {"content": text}):
            task.turn(observation="q", action={"choices": [{"message": message}]})
    (trajectory,) = stored(recorder)
    by_api, by_text = (turn.action for turn in trajectory.turns)
    whole, unparsed = json.loads(arguments), {"unparsed": arguments}
    assert by_api.tool_args == (whole if levels <= 26 else unparsed)
    assert by_text.type == ("tool_call" if is_call else "response") and by_text.raw_response == text
