"""The events of a streamed answer, as OpenAI's own examples have them."""

from __future__ import annotations

import json
from typing import Any

from onward.serving.protocol.events import Chunks

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}


def parsed(events: bytes) -> list[Any]:
    lines = events.decode().split("\n\n")
    assert lines[-1] == ""
    return [
        line if line == "data: [DONE]" else json.loads(line.removeprefix("data: ")) for line in lines[:-1]
    ]


def answer(reason: str) -> dict[str, Any]:
    return {
        "choices": [{"finish_reason": reason}],
        "usage": {"total_tokens": 3},
        "onward": {"session_id": "s"},
    }


def test_text():
    chunks = Chunks("g", "m", 7, include_usage=False)
    events = parsed(chunks.role() + chunks.content("hello ü") + chunks.calls([]) + chunks.end(answer("stop")))
    assert events[-1] == "data: [DONE]"
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "hello ü"}, {}]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, "stop"]
    assert {(event["id"], event["object"], event["created"], event["model"]) for event in events[:-1]} == {
        ("chatcmpl-g", "chat.completion.chunk", 7, "m")
    }
    assert events[-2]["onward"] == {"session_id": "s"} and all("usage" not in event for event in events[:-1])


def test_calls_come_with_their_name_first_and_the_arguments_after():
    events = parsed(Chunks("g", "m", 7, include_usage=False).calls([CALL]))
    assert [event["choices"][0]["delta"]["tool_calls"] for event in events] == [
        [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"x": 1}'}}],
    ]


def test_usage_has_a_chunk_of_its_own_and_is_null_before():
    chunks = Chunks("g", "m", 7, include_usage=True)
    *before, usage, done = parsed(chunks.role() + chunks.content("a") + chunks.end(answer("length")))
    assert done == "data: [DONE]"
    assert usage["choices"] == [] and usage["usage"] == {"total_tokens": 3}
    assert [event["usage"] for event in before] == [None, None, None]


def test_an_error_ends_without_done():
    (event,) = parsed(Chunks("g", "m", 7, include_usage=False).failure({"error": {"message": "gone"}}))
    assert event == {"error": {"message": "gone"}}
