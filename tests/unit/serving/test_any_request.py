"""Requests with any JSON in any place: the three parsers read them or refuse them as the client's error."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from onward.http.app import HttpError
from onward.serving.protocol import completions, openai, responses

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
SCHEMA = {"name": "s", "schema": {"type": "object"}, "strict": True}
SAMPLING = {
    "model": "onward",
    "temperature": 1,
    "top_p": 1,
    "user": "u",
    "stream": False,
    "metadata": {"a": "b"},
}
MORE = {
    **SAMPLING,
    "top_k": 5,
    "seed": 1,
    "max_tokens": 2,
    "n": 1,
    "stop": ["a"],
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "logit_bias": {"5": 1},
    "stream_options": {"include_usage": True},
}
CHAT = {
    **MORE,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ],
    "max_completion_tokens": 2,
    "logprobs": True,
    "top_logprobs": 1,
    "tools": [{"type": "function", "function": FUNCTION}],
    "parallel_tool_calls": True,
    "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    "modalities": ["text"],
}
ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
RESPONSE = {
    **SAMPLING,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "message", "role": "assistant", "content": "y"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
    ],
    "instructions": "i",
    "max_output_tokens": 2,
    "tools": [{"type": "function", **FUNCTION}],
    "parallel_tool_calls": True,
    "text": {"format": {"type": "json_schema", **SCHEMA}, "verbosity": "medium"},
    "stream_options": {"include_obfuscation": False},
    "reasoning": {"effort": "none"},
}
REQUESTS: list[tuple[Any, dict[str, Any]]] = [
    (openai.parse_chat, {**CHAT, "tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED}}),
    (openai.parse_chat, {**CHAT, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    (openai.parse_chat, {**CHAT, "tool_choice": {"type": "allowed_tools", **ALLOWED}}),
    (completions.parse, {**MORE, "prompt": "x", "logprobs": 1}),
    (completions.parse, {**MORE, "prompt": [1, 2]}),
    (responses.parse, {**RESPONSE, "tool_choice": {"type": "function", "name": "f"}}),
    (responses.parse, {**RESPONSE, "tool_choice": {"type": "allowed_tools", **ALLOWED}}),
]
ODD = [None, True, 5, -1, 1e308, 10**300, "", "x", "\x00", [], {}, ["x"], [[]], {"a": []}, [{}]]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _places(value[key], (*path, key))


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_any_json_in_any_place_is_read_or_refused(number: int) -> None:
    parse, whole = REQUESTS[number]
    parse(whole)
    for path in _places(whole):
        for odd in ODD:
            document = copy.deepcopy(whole)
            at: Any = document
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = odd
            try:
                parse(document)
            except HttpError as error:
                assert error.status == 400, (path, odd)
            except Exception as error:
                pytest.fail(f"{path} with {odd!r}: {error!r}")
