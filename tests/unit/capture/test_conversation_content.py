"""Answers in the forms of each vendor's own documentation: what is text, thought, refusal and call."""

from __future__ import annotations

import copy
import json
import sqlite3
import warnings
from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest

from onward import Recorder, wrap_openai
from onward.capture.conversations import endings, turns
from onward.capture.conversations.exchange import request_observation
from onward.capture.conversations.exchange import text as text_of_content
from onward.capture.conversations.messages import conversation
from onward.contracts import Trajectory, decode
from onward.errors import ContractError

LOOKUP = {"tool_name": "lookup", "tool_args": {"n": 4}}
CHAT_CALL = {"id": "t1", "type": "function", "function": {"name": "lookup", "arguments": '{"n": 4}'}}


def chat(finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}]}


ANTHROPIC = {
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 12, "output_tokens": 30},
    "content": [
        {"type": "thinking", "thinking": "Look it up.", "signature": "s"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "text", "text": "A moment."},
        {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"n": 4}},
    ],
}
RESPONSES = {
    "object": "response",
    "status": "completed",
    "model": "gpt-x",
    "usage": {"input_tokens": 5, "output_tokens": 6, "total_tokens": 11},
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Look it up."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A moment."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "lookup", "arguments": '{"n": 4}'},
    ],
}
OLLAMA = {
    "model": "qwen",
    "message": {
        "role": "assistant",
        "content": "A moment.",
        "thinking": "Look it up.",
        "tool_calls": [{"function": {"name": "lookup", "arguments": {"n": 4}}}],
    },
    "done_reason": "stop",
    "prompt_eval_count": 7,
    "eval_count": 4,
}
BEDROCK = chat(
    content=[
        {"reasoningContent": {"reasoningText": {"text": "Look it up.", "signature": "s"}}},
        {"text": "A moment."},
        {"toolUse": {"toolUseId": "t1", "name": "lookup", "input": {"n": 4}}},
    ]
)
GEMINI = chat(
    content=[
        {"text": "Look it up.", "thought": True},
        {"text": "A moment."},
        {"functionCall": {"name": "lookup", "args": {"n": 4}}},
    ]
)
MISTRAL = chat(
    content=[
        {"type": "thinking", "thinking": [{"type": "text", "text": "Look it up."}]},
        {"type": "text", "text": "A moment."},
    ],
    tool_calls=[CHAT_CALL],
)
OPENROUTER = chat(
    content="A moment.",
    reasoning="Look it up.",
    reasoning_details=[
        {"type": "reasoning.text", "text": "Look "},
        {"type": "reasoning.text", "text": "it up."},
        {"type": "reasoning.encrypted", "data": "b3BhcXVl"},
    ],
    tool_calls=[CHAT_CALL],
)
LITELLM = chat(
    content="A moment.",
    reasoning_content="Look it up.",
    thinking_blocks=[{"type": "thinking", "thinking": "Look it up.", "signature": "s"}],
    tool_calls=[CHAT_CALL],
)
FORMS = {
    "anthropic": (ANTHROPIC, 42),
    "responses": (RESPONSES, 11),
    "ollama": (OLLAMA, 11),
    "bedrock": (BEDROCK, 0),
    "gemini": (GEMINI, 0),
    "mistral": (MISTRAL, 0),
    "openrouter": (OPENROUTER, 0),
    "litellm": (LITELLM, 0),
}


@pytest.mark.parametrize("form", FORMS)
def test_thought_text_and_call_of_every_form_are_told_apart(form):
    document, tokens = FORMS[form]
    read = turns.completion(document)
    assert read.action["thought_process"] == ["Look it up."]
    assert read.action["raw_response"] == "A moment."
    assert {name: read.action[name] for name in LOOKUP} == LOOKUP
    assert len(read.calls) == 1 and read.tokens == tokens


@pytest.mark.parametrize("form", FORMS)
def test_a_turn_of_every_form_is_a_valid_trajectory_with_its_thought(form, tmp_path):
    with Recorder(tmp_path / "o.db", known_secrets=[]) as recorder, recorder.task("Is four even?") as task:
        task.turn(observation="Is four even?", action=FORMS[form][0], thoughts="mine")
        with task.open_turn("yes") as turn:
            turn.action(FORMS[form][0])
    (trajectory,) = stored(tmp_path)
    for turn in trajectory.turns:
        assert (turn.thought_process or [])[0] == "Look it up." and turn.action.tool_name == "lookup"
        assert turn.result.success and "thought_process" not in (turn.action.model_extra or {})
    assert trajectory.turns[0].thought_process == ["Look it up.", "mine"]


def stored(folder: Any) -> list[Trajectory]:
    with sqlite3.connect(folder / "o.db") as connection:
        rows = connection.execute("SELECT body FROM queue ORDER BY seq").fetchall()
    return [decode(body, Trajectory) for (body,) in rows]


def test_calls_in_the_content_and_beside_it_are_one_call():
    block = {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"n": 4}}
    other = {"type": "tool_use", "id": "t2", "name": "lookup", "input": {"n": 5}}
    read = turns.completion(chat(content=[block, other], tool_calls=[CHAT_CALL]))
    assert [(one["tool_call_id"], one["tool_args"]) for one in read.calls] == [
        ("t1", {"n": 4}),
        ("t2", {"n": 5}),
    ]


def test_two_calls_with_one_id_wait_for_two_results():
    read = turns.completion(chat(content=None, tool_calls=[CHAT_CALL, CHAT_CALL]))
    assert [one["tool_call_id"] for one in read.calls] == ["t1", "1"]


def test_a_part_of_an_unknown_type_is_kept_as_it_is():
    part = {"type": "hologram", "data": [1, 2]}
    read = turns.completion(chat(content=[{"type": "text", "text": "See."}, part]))
    assert (read.action["raw_response"], read.action["other_parts"]) == ("See.", [part])


@pytest.mark.parametrize("content", [7, [None, 7], {"type": None}, [[["deep"]]], [{"type": "tool_use"}]])
def test_odd_content_never_raises(content):
    assert turns.completion(chat(content=content)).action["type"] in ("response", "tool_call")


@pytest.mark.parametrize("response", [{}, {"choices": []}, {"choices": [{}]}, {"choices": ["x"]}, 5, None])
def test_a_response_without_a_message_is_refused_by_name(response):
    with pytest.raises(ContractError, match="pass the whole response"):
        turns.completion(response)


def test_a_custom_tool_and_a_spoken_answer_are_read():
    custom = {"id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    assert turns.completion(chat(content=None, tool_calls=[custom])).action["tool_args"] == {"input": "ls"}
    spoken = turns.completion(chat(content=None, audio={"id": "a", "data": "", "transcript": "Even."}))
    assert spoken.action["raw_response"] == "Even."


# How an answer ended.

REASONS = {  # from the references of the vendors
    "stop": None,
    "end_turn": None,
    "tool_calls": None,
    "STOP": None,
    "made_up_by_a_server": None,
    "length": "truncated",
    "max_tokens": "truncated",
    "MAX_TOKENS": "truncated",
    "FinishReason.MAX_TOKENS": "truncated",
    "model_context_window_exceeded": "truncated",
    "content_filter": "filtered",
    "SAFETY": "filtered",
    "RECITATION": "filtered",
    "guardrail_intervened": "filtered",
    "refusal": "refused",
    "error": "broken",
    "MALFORMED_FUNCTION_CALL": "broken",
}


@pytest.mark.parametrize(("reason", "kind"), REASONS.items())
def test_the_reason_of_an_ending_decides_the_result_of_its_turn(reason, kind):
    action = turns.completion(chat(reason, content="The three reasons are: fir")).action
    result = endings.result_of(action)
    assert action["finish_reason"] == reason and action["raw_response"] == "The three reasons are: fir"
    assert result["success"] is (kind is None)
    assert kind is None or result["error"].startswith(f"{kind}: ")


@pytest.mark.parametrize(
    "refused",
    [
        chat(content=None, refusal="I must not say."),
        chat(content=[{"type": "refusal", "refusal": "I must not say."}]),
        {
            "object": "response",
            "status": "completed",
            "output": [
                {"type": "message", "content": [{"type": "refusal", "refusal": "I must not say."}]},
            ],
        },
    ],
)
def test_a_refusal_is_kept_word_for_word_and_is_no_success(refused):
    action = turns.completion(refused).action
    assert (action["refusal"], action["raw_response"]) == ("I must not say.", "I must not say.")
    assert endings.result_of(action)["error"].startswith("refused")


def test_a_response_that_is_incomplete_is_truncated():
    document = {**RESPONSES, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    document["output"] = document["output"][:2]
    assert endings.kind_of(turns.completion(document).action) == "truncated"


def test_a_result_that_the_agent_reports_counts_before_the_ending(tmp_path):
    cut = chat("length", content="Long")
    with Recorder(tmp_path / "o.db", known_secrets=[]) as recorder, recorder.task("x") as task:
        task.turn(observation="x", action=cut, result="enough for me")
        task.turn(observation="x", action=task.from_completion(cut))
        with task.open_turn("x") as turn:
            turn.action(cut)
    results = [turn.result for turn in stored(tmp_path)[0].turns]
    assert [result.success for result in results] == [True, False, False]
    assert results[0].output == "enough for me"


# The real client.


def answered(answer: httpx.Response) -> openai.OpenAI:
    transport = httpx.MockTransport(lambda request: answer)
    http_client: Any = httpx.Client(transport=transport)
    return openai.OpenAI(api_key="k", base_url="http://h/v1", max_retries=0, http_client=http_client)


def test_blocks_through_the_real_client_are_recorded_without_a_warning(tmp_path):
    answer = httpx.Response(
        200, json={"id": "1", "object": "chat.completion", "created": 1, "model": "m"} | MISTRAL
    )
    with Recorder(tmp_path / "o.db", known_secrets=[]) as recorder, warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped = wrap_openai(answered(answer), recorder, errors="raise")
        wrapped.chat.completions.create(model="m", messages=[{"role": "user", "content": "Even?"}])
    (turn,) = stored(tmp_path)[0].turns
    assert turn.thought_process == ["Look it up."] and turn.action.tool_args == {"n": 4}


def test_a_legacy_function_call_gets_the_result_of_the_next_function_message(tmp_path):
    answers = [
        chat("function_call", content=None, function_call={"name": "clock", "arguments": '{"zone": "UTC"}'}),
        chat("stop", content="Noon."),
    ]
    whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=whole | answers.pop(0)))
    http: Any = httpx.Client(transport=transport)
    client = openai.OpenAI(api_key="k", base_url="http://h/v1", max_retries=0, http_client=http)
    messages: list[Any] = [{"role": "user", "content": "Time?"}]
    with Recorder(tmp_path / "o.db", known_secrets=[]) as recorder:
        wrapped = wrap_openai(client, recorder, errors="raise")
        first = wrapped.chat.completions.create(model="m", messages=messages)
        messages += [first.choices[0].message, {"role": "function", "name": "clock", "content": "12:00"}]
        wrapped.chat.completions.create(model="m", messages=messages)
    (trajectory,) = stored(tmp_path)
    call, answer = trajectory.turns
    assert (call.action.tool_name, call.action.tool_args, call.result.output) == (
        "clock",
        {"zone": "UTC"},
        "12:00",
    )
    assert answer.action.raw_response == "Noon." and answer.result.success
    told = conversation(json.loads(trajectory.model_dump_json(exclude_none=True)))
    assert [message["role"] for message in told.messages] == ["user", "assistant", "tool", "assistant"]


# Content of requests.


def test_a_request_with_parts_keeps_them_and_its_text_is_readable():
    picture = {"type": "image_url", "image_url": {"url": "http://h/cat.png"}}
    content = [{"type": "text", "text": "What is this?"}, picture]
    seen = request_observation([{"role": "user", "content": content}], None)
    assert seen["content"] == {"messages": [{"role": "user", "content": content}]}
    assert text_of_content(content).splitlines()[0] == "What is this?"
    assert request_observation([{"role": "user", "content": content[:1]}], None)["content"] == "What is this?"


def test_thoughts_and_blocks_of_a_history_become_chat_messages():
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Is four even?"}]},
        {"role": "assistant", "content": ANTHROPIC["content"]},
        {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "yes"}]},
    ]
    turn = {
        "turn_id": 1,
        "observation": {"type": "tool_result", "content": {"messages": history}},
        "action": {"type": "response", "raw_response": "Even."},
        "result": {"success": True},
    }
    user, call, result, answer = conversation({"turns": [turn]}).messages
    assert user == {"role": "user", "content": "Is four even?"} and answer["content"] == "Even."
    assert call["content"] == "A moment." and call["tool_calls"] == [CHAT_CALL]
    assert result == {"role": "tool", "tool_call_id": "t1", "content": "yes"}


# Values that no API documents.

ODD = [
    "x", 5, -1, True, None, [], {}, [5], ["x"], [None], {"a": 1}, [[1]], b"x", object(), float("nan"),
    float("inf"), 10**400, {"total_tokens": float("nan")}, {"input_tokens": "x"}, {"sampling": 5},
    {"release": "x"}, [{"id": []}], [{"function": "x"}], [{"function": {"name": 5, "arguments": 5}}],
    [{"type": []}],
]  # fmt: skip
GATEWAY = chat(content="A.", refusal="No.", images=[1], tool_calls=[CHAT_CALL], audio={"transcript": "t"}) | {
    "model": "m",
    "usage": {"total_tokens": 3},
    "onward": {
        "sampling": {"temperature": 1.0},
        "release": {"a": 1},
        "session_id": "s",
        "raw_response": "A.",
    },
}


def places(document: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each value within a document."""
    items: Any = document.items() if isinstance(document, dict) else enumerate(document)
    found = []
    for name, value in items:
        found.append((*before, name))
        if isinstance(value, (dict, list)):
            found += places(value, (*before, name))
    return found


@pytest.mark.parametrize("form", [*FORMS, "gateway"])
def test_an_odd_value_anywhere_in_an_answer_is_read_or_raises_a_contract_error(form, tmp_path):
    document = GATEWAY if form == "gateway" else FORMS[form][0]
    recorder = Recorder(tmp_path / "o.db", known_secrets=[])
    for place in places(document):
        for odd in ODD:
            changed = copy.deepcopy(document)
            target = changed
            for name in place[:-1]:
                target = target[name]
            target[place[-1]] = odd
            with suppress(ContractError):
                recorder.task("Is four even?").from_completion(changed)
    recorder.close()


@pytest.mark.parametrize(
    "odd", ["x", 5, float("nan"), float("inf"), {"total_tokens": float("nan")}, -3, True]
)
def test_an_odd_value_beside_an_answer_loses_nothing_of_the_answer(odd):
    read = turns.completion(chat(content="A.", images=odd) | {"usage": odd, "onward": odd, "model": 5})
    assert (read.action["raw_response"], read.tokens, read.metadata) == ("A.", 0, {})
    assert len(read.action["other_parts"]) == 1


def test_lists_of_numbers_stay_and_their_nan_becomes_null():
    given = [[1, 2, 10**400], [0.5, -0.25], [float("nan"), 1.0], [1, True, 2.5, float("inf")], []]
    made = turns.plain(given)
    assert made == [[1, 2, 10**400], [0.5, -0.25], [None, 1.0], [1, True, 2.5, None], []]
    assert all(one is not other for one, other in zip(made, given, strict=True)), "a copy"
