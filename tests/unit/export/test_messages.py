"""Conversations in OpenAI's form, compared with what the server of a recorded agent really saw."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import openai
import pytest
from chat_server import ChatServer, calls, text
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from pydantic import TypeAdapter
from trajectory_store import TOOLS

from onward import Recorder, wrap_openai
from onward.capture.conversations.messages import NO_RESULT, conversation
from onward.lm.tool_words import with_objects

MESSAGES = TypeAdapter(list[ChatCompletionMessageParam])
TOOL_LIST = TypeAdapter(list[ChatCompletionToolUnionParam])
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 times 7, and 2 times 3?"}]
BOTH = calls(("c1", "calculator", {"expression": "6*7"}), ("c2", "calculator", {"expression": "2*3"}))
RESULTS = {"c1": "42", "c2": "6"}


def valid(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> None:
    """Each message by the types of the package ``openai``; each call is answered once, right behind it."""
    MESSAGES.validate_python(messages)
    TOOL_LIST.validate_python(tools or [])
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting, "a call without its result"
        waiting += [call["id"] for call in message.get("tool_calls") or ()]


def agent(client: openai.OpenAI, *, order: str = "c1 c2", tries: int = 1, **given: Any) -> None:
    messages: list[Any] = list(ASKED)
    while True:
        for left in reversed(range(tries)):
            try:
                answer = client.chat.completions.create(model="m", messages=messages, tools=TOOLS, **given)  # type: ignore[call-overload]
                break
            except openai.InternalServerError:
                assert left
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return
        for name in order.split():
            messages.append({"role": "tool", "tool_call_id": name, "content": RESULTS[name]})


def recorded(folder: Path, script: Any, **given: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The trajectory of ``agent``, and the last request that its server got."""
    with ChatServer(script).running() as server, Recorder(folder / "o.db", known_secrets=[]) as recorder:
        client = openai.OpenAI(base_url=server.url, api_key="none-needed", max_retries=0)
        agent(wrap_openai(client, recorder), **given)
        with sqlite3.connect(folder / "o.db") as connection:
            ((body,),) = connection.execute("SELECT body FROM queue").fetchall()
    return json.loads(body), server.requests[-1]["messages"]


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if value is not None} for one in messages]


def say(body: dict[str, Any]) -> dict[str, Any]:
    return text("42 and 6.") if body["messages"][-1]["role"] == "tool" else BOTH


@pytest.mark.parametrize("order", ["c1 c2", "c2 c1"])
def test_parallel_calls_are_one_message_and_each_result_follows_as_the_server_saw_it(
    tmp_path: Path, order: str
) -> None:
    document, seen = recorded(tmp_path, say, order=order)
    made = conversation(document)
    assert plain(made.messages) == [*plain(seen), {"role": "assistant", "content": "42 and 6."}]
    assert made.tools == TOOLS
    valid(made.messages, made.tools)


def test_a_call_with_words_beside_it_keeps_them(tmp_path: Path) -> None:
    document, seen = recorded(
        tmp_path,
        lambda body: say(body) if len(body["messages"]) > 2 else {**BOTH, "content": "I work it out."},
    )
    made = conversation(document)
    assert made.messages[2]["content"] == "I work it out."
    assert plain(made.messages[:-1]) == plain(seen)


def test_a_request_that_failed_and_was_repeated_leaves_no_trace(tmp_path: Path) -> None:
    answers: list[Any] = [500, BOTH, 500, text("42 and 6.")]
    document, seen = recorded(tmp_path, lambda body: answers.pop(0), tries=2)
    assert len(document["turns"]) == 5
    made = conversation(document)
    assert plain(made.messages) == [*plain(seen), {"role": "assistant", "content": "42 and 6."}]


def test_the_same_request_as_said_is_the_same_since_its_calls_were_calls(tmp_path: Path) -> None:
    document, _ = recorded(tmp_path, say)
    assert conversation(document, as_said=True) == conversation(document)


def turns(*given: tuple[Any, dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    return {
        "turns": [
            {
                "turn_id": n,
                "observation": seen if isinstance(seen, dict) else {"type": "user_message", "content": seen},
                "action": action,
                "result": result,
            }
            for n, (seen, action, result) in enumerate(given, 1)
        ]
    }


CALL = '{"tool_name": "ls", "tool_args": {"path": "."}}'
WRITTEN = {"type": "tool_call", "tool_name": "ls", "tool_args": {"path": "."}, "raw_response": CALL}
LISTED = {"type": "tool_result", "content": "a.txt"}
DONE = ({**LISTED}, {"type": "response", "raw_response": "One file."}, {"success": True})


def test_a_call_written_as_text_becomes_a_call_or_stays_what_was_said() -> None:
    """Agent Zero writes its calls as JSON and shows results as the user's messages."""
    document = turns(("What is here?", WRITTEN, {"success": True, "output": "a.txt"}), DONE)
    asked, answer = (
        {"role": "user", "content": "What is here?"},
        {"role": "assistant", "content": "One file."},
    )
    made = conversation(document)
    function = {"name": "ls", "arguments": '{"path": "."}'}
    call = {"id": "call_1_0", "type": "function", "function": function}
    assert made.messages == [
        asked,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1_0", "content": "a.txt"},
        answer,
    ]
    valid(made.messages)
    assert conversation(document, as_said=True).messages == [
        asked,
        {"role": "assistant", "content": CALL},
        {"role": "user", "content": "a.txt"},
        answer,
    ]


def test_results_come_from_the_turn_where_no_observation_brings_them() -> None:
    bare = {"type": "tool_call", "tool_name": "ls"}
    document = turns(
        ("Look.", bare, {"success": False, "error": "no such folder"}),
        ("Look again.", bare, {"success": True, "output": {"files": 1}}),
    )
    made = conversation(document)
    assert [(one["role"], one["content"]) for one in made.messages] == [
        ("user", "Look."),
        ("assistant", None),
        ("tool", "no such folder"),
        ("user", "Look again."),
        ("assistant", None),
        ("tool", '{"files": 1}'),
    ]
    valid(made.messages)
    assert made.until_last_answer().messages == made.messages[:5]


def test_a_completion_told_turn_by_turn_keeps_ids_and_parallel_calls() -> None:
    """``Task.turn(action=completion)`` keeps the calls as JSON, the first one as the action."""
    listed = BOTH["tool_calls"]
    action = {
        "type": "tool_call", "tool_name": "calculator", "tool_args": {"expression": "6*7"},
        "raw_response": json.dumps(listed),
        "parallel_calls": [{"tool_name": "calculator", "tool_args": {"expression": "2*3"}}],
    }  # fmt: skip
    document = turns(("Work it out.", action, {"success": True, "output": "42"}), DONE)
    made = conversation(document).messages
    assert [call["id"] for call in made[1]["tool_calls"]] == ["c1", "c2"]
    assert [(one["tool_call_id"], one["content"]) for one in made[2:4]] == [
        ("c1", "a.txt"),
        ("c2", NO_RESULT),
    ]
    valid(made)


def test_arguments_are_text_in_openais_form_and_objects_for_chat_templates(tmp_path: Path) -> None:
    document, _ = recorded(tmp_path, say)
    made = conversation(document).messages
    assert made[2]["tool_calls"][0]["function"]["arguments"] == '{"expression": "6*7"}'
    assert with_objects(made)[2]["tool_calls"][0]["function"]["arguments"] == {"expression": "6*7"}


def test_history_in_parts_becomes_text_and_what_is_no_message_stays_json() -> None:
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
        {"role": "assistant", "content": "Hi", "annotations": [], "tool_calls": None},
        {"role": "user", "content": "Bye"},
    ]
    answer = {"type": "response", "raw_response": "Bye!"}
    made = conversation(
        turns(({"type": "user_message", "content": {"messages": history}}, answer, {"success": True}))
    )
    assert made.messages == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "Bye!"},
    ]
    valid(made.messages)
    odd = conversation(
        turns(({"type": "user_message", "content": {"messages": "none"}}, answer, {"success": True}))
    )
    assert odd.messages[0] == {"role": "user", "content": '{"messages": "none"}'}
