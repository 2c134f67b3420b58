import json

import pytest

from onward.httpbase import HttpError
from onward.serving import openai
from onward.serving.engines import Generation

MESSAGES = [{"role": "user", "content": "hi"}]


def test_defaults_are_those_of_the_api():
    chat = openai.parse_chat({"messages": MESSAGES})
    assert (chat.model, chat.temperature, chat.top_p, chat.top_k) == ("onward", 1.0, 1.0, None)
    assert (chat.max_tokens, chat.seed, chat.stream, chat.user) == (None, None, False, None)


def test_text_parts_are_joined_and_developer_is_system():
    chat = openai.parse_chat(
        {
            "messages": [
                {"role": "developer", "content": "rules"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            ],
            "max_completion_tokens": 5,
        }
    )
    assert chat.messages == [{"role": "system", "content": "rules"}, {"role": "user", "content": "ab"}]
    assert chat.max_tokens == 5 and chat.first_user_message == "ab"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"stop": ["x"]}, "stop"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"n": 2}, "n"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(change, param):
    with pytest.raises(HttpError) as caught:
        openai.parse_chat({"messages": MESSAGES, **change})
    assert caught.value.status == 400 and caught.value.param == param


def test_empty_forms_of_refused_parameters_are_fine():
    openai.parse_chat({"messages": MESSAGES, "stop": None, "tools": [], "n": 1, "presence_penalty": 0})


def test_chunks_carry_the_whole_answer():
    sampling = {"generation_id": "g", "finish_reason": "stop"}
    generation = Generation(
        "hello ü", sampling, {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    )
    answer = openai.completion(generation, {"model_id": "m", "sampling": sampling}, 7)
    lines = openai.chunks(answer).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    parts = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == "hello ü"
    assert parts[-1]["choices"][0]["finish_reason"] == "stop" and parts[-1]["onward"]["model_id"] == "m"
    assert {part["id"] for part in parts} == {"chatcmpl-g"}
