"""The tables of request parameters: complete, and each name in one of two classes."""

from __future__ import annotations

import json

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params

from onward.http.app import HttpError
from onward.serving.protocol import completions, openai, responses
from onward.serving.protocol.options import stops
from onward.serving.protocol.parameters import CHAT, COMPLETIONS, RESPONSES, TABLES, Answered, Refused


@pytest.mark.parametrize(
    ("table", "params"),
    [
        (CHAT, chat_params.CompletionCreateParamsBase),
        (COMPLETIONS, completion_create_params.CompletionCreateParamsBase),
        (RESPONSES, response_create_params.ResponseCreateParamsBase),
    ],
)
def test_every_parameter_of_openais_own_client_is_answered_or_refused(table, params):
    assert not (set(params.__annotations__) | {"stream"}) - set(table)


def test_every_entry_says_how_it_is_answered_or_has_a_default_that_passes_or_an_advice():
    for table in TABLES.values():
        for name, entry in table.items():
            if isinstance(entry, Answered):
                assert entry.words, name
            else:
                assert isinstance(entry, Refused) and (entry.passes or entry.instead), name


def refused(parse, document) -> tuple[str | None, str]:
    with pytest.raises(HttpError) as caught:
        parse(document)
    assert caught.value.status == 400
    return caught.value.param, caught.value.message


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"stop": 0}, "stop"),
        ({"stop": False}, "stop"),
    ],
)
def test_a_completion_refuses_by_name(change, param):
    assert refused(completions.parse, {"prompt": "a", **change})[0] == param


def test_a_completion_takes_a_text_or_ids_and_sixteen_tokens():
    chat = completions.parse({"prompt": [5, 6], "logprobs": 2})
    assert chat.max_tokens == 16 and chat.options is not None
    assert chat.options.prompt == [5, 6] and chat.options.top_logprobs == 2
    assert completions.parse({"prompt": "a", "echo": False, "suffix": ""}).first_user_message == "a"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"text": {"fomat": {"type": "json_object"}}}, "text"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {}, "scema": 1}}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": "a"}] * 2001}, "input"),
    ],
)
def test_a_response_refuses_by_name(change, param):
    assert refused(responses.parse, {"input": "a", **change})[0] == param


@pytest.mark.parametrize(("reason", "status"), [("length", "incomplete"), ("stop", "completed")])
def test_the_message_of_a_response_has_the_status_of_the_response_also_in_a_stream(reason, status):
    answer = {
        "id": "chatcmpl-g",
        "created": 0,
        "model": "m",
        "choices": [{"finish_reason": reason, "message": {"content": "One and"}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }
    whole = responses.response(answer, {"input": "q"})
    assert (whole["status"], whole["output"][0]["status"]) == (status, status)
    chunks = responses.ResponseChunks("g", "m", 0, include_usage=False, request={"input": "q"})
    sent = chunks.role() + chunks.content("One and") + chunks.calls([]) + chunks.end(answer)
    events = [json.loads(line[6:]) for line in sent.decode().splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(9))
    (done,) = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"][0] and events[-1]["type"] == f"response.{status}"


def test_an_error_about_a_message_names_the_item_that_it_was_made_of():
    say = {"role": "assistant", "content": "I add."}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    bad = {**call, "arguments": '{"a": NaN}'}
    result = {"type": "function_call_output", "call_id": "c", "output": "r"}
    items = [say, call, result, bad]
    param, message = refused(responses.parse, {"input": items, "instructions": "Be brief."})
    assert param == "input[3].tool_calls" and message.startswith(param) and "messages" not in message
    limit = refused(responses.parse, {"input": "a", "max_output_tokens": 0})[1]
    assert "'max_output_tokens'" in limit and "'max_tokens'" not in limit


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object", "schema": {"type": "object"}},
        {"type": "text", "schema": {}},
        {"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}},
        {"type": "json_schema", "json_schema": {"schema": {}, "strct": True}},
    ],
)
def test_a_part_of_a_response_format_that_is_not_applied_is_refused(form):
    chat = {"messages": [{"role": "user", "content": "q"}], "response_format": form}
    assert refused(openai.parse_chat, chat)[0] == "response_format"


def test_a_bias_of_zero_shapes_nothing():
    chat = {"messages": [{"role": "user", "content": "q"}], "logit_bias": {"5": 0, "6": 1}}
    options = openai.parse_chat(chat).options
    assert options is not None and options.logit_bias == {"6": 1.0}
    assert openai.parse_chat({**chat, "logit_bias": {"5": 0}}).options is None


def test_items_of_a_response_become_the_messages_of_one_chat():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "2 + 2?"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
    ]
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
    chat = responses.parse({"input": items, "instructions": "Be brief.", "tools": [tool],
                            "tool_choice": {"type": "function", "name": "add"}})  # fmt: skip
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "I add.", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]
    assert chat.tools == [{"type": "function", "function": {n: v for n, v in tool.items() if n != "type"}}]
    assert chat.options is not None and chat.options.must_call and chat.callable == {"add"}


def test_a_stop_text_is_limited_in_bytes_as_the_sampler_decodes_a_token_for_each() -> None:
    assert stops(["☃" * 42, "x" * 128]) == ["☃" * 42, "x" * 128]
    for text in ("☃" * 43, "x" * 129, "\U0001f600" * 256, ""):
        with pytest.raises(HttpError, match="of 1 to 128 UTF-8 bytes") as caught:
            stops(["a", text])
        assert caught.value.status == 400
