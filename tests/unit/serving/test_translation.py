"""A chat in Anthropic's form and back, by hand from the two APIs' references."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from onward.clock import ManualClock
from onward.http.app import HttpError
from onward.serving.providers.messages import MessageBuilder
from onward.serving.providers.translation import Translation
from onward.serving.providers.upstream import retry_after

USER = {"role": "user", "content": "Hi"}


def translated(**more: Any) -> dict[str, Any]:
    return Translation(4096).request({"model": "x", "messages": [USER], **more}, "claude")


def test_parameters_are_mapped() -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }
    body = translated(
        max_completion_tokens=9, temperature=0.5, stop="END", user="u1", tools=[tool],
        tool_choice={"type": "function", "function": {"name": "f"}}, parallel_tool_calls=False, n=1,
    )  # fmt: skip
    assert body == {
        "model": "claude", "max_tokens": 9, "temperature": 0.5, "stop_sequences": ["END"],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "metadata": {"user_id": "u1"},
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    }  # fmt: skip


def test_system_texts_are_lifted_and_neighbours_of_one_role_are_joined() -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "A"}, {"role": "developer", "content": "B"},
        {"role": "user", "content": [{"type": "text", "text": "See"}, picture]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "one"}, USER,
    ]  # fmt: skip
    body = translated(messages=messages)
    assert body["system"] == "A\n\nB" and body["max_tokens"] == 4096
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image", "source": source}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "one"},
                                     {"type": "text", "text": "Hi"}]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "given", [{"n": 2}, {"seed": 1}, {"temperature": 1.5}, {"response_format": {"type": "json_object"}}]
)
def test_what_the_other_api_lacks_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(HttpError) as refused:
        translated(**given)
    assert (refused.value.status, refused.value.param) == (400, next(iter(given)))


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("tool_use", "tool_calls"),
     ("refusal", "content_filter"), ("model_context_window_exceeded", "length")],
)  # fmt: skip
def test_reasons_and_cached_tokens_are_mapped(reason: str, expected: str) -> None:
    used = {"input_tokens": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 2,
            "output_tokens": 5}  # fmt: skip
    content = [{"type": "thinking", "thinking": "…"}, {"type": "text", "text": "Yes"}]
    answer = Translation(1).reply({"id": "m", "content": content, "stop_reason": reason, "usage": used})
    assert answer["choices"][0]["finish_reason"] == expected
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Yes"}
    assert answer["usage"] == {"prompt_tokens": 45, "completion_tokens": 5, "total_tokens": 50}


def test_a_call_that_was_cut_off_is_left_out_of_the_message() -> None:
    builder = MessageBuilder()
    builder.add({"type": "message_start", "message": {"id": "m", "content": []}})
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    builder.add({"type": "content_block_start", "index": 0, "content_block": use})
    delta = {"type": "input_json_delta", "partial_json": '{"a": '}
    builder.add({"type": "content_block_delta", "index": 0, "delta": delta})
    assert builder.whole() == {"id": "m", "content": []} and not builder.ended


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    given = ["2.5", "Thu, 01 Jan 2026 00:00:30 GMT", "Wed, 31 Dec 2025 00:00:00 GMT", "soon", "nan", None]
    assert [retry_after(one, clock) for one in given] == [2.5, 30.0, 0.0, 0.0, 0.0, 0.0]
