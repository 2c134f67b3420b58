"""An answer's text as tool calls: what is one, what is not, and what may be streamed before it is known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.capture.conversations.answers import ParsedAnswer, ToolCall, call_id, read_answer, streamable_text
from onward.http.app import HttpError
from onward.serving.protocol.tools import check_tools

NAMES = {"add", "search"}
ADD = '{"tool_name": "add", "tool_args": {"x": 1}}'


def calls(text: str, **how: bool) -> list[tuple[str, dict]]:
    return [(call.name, call.arguments) for call in read_answer(text, NAMES, "g", **how).calls]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ADD, [("add", {"x": 1})]),
        (f"  {ADD}\n", [("add", {"x": 1})]),
        ('{"name": "add", "arguments": {"x": 1}}', [("add", {"x": 1})]),
        ('{"name": "add", "parameters": {}}', [("add", {})]),
        (
            f"[{ADD}, " + '{"name": "search", "arguments": {"q": "a"}}]',
            [("add", {"x": 1}), ("search", {"q": "a"})],
        ),
        ('<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>', [("add", {"x": 1})]),
        (
            '<tool_call>{"name": "add", "arguments": {}}</tool_call>\n'
            '<tool_call>{"name": "search", "arguments": {}}',
            [("add", {}), ("search", {})],
        ),
    ],
)
def test_calls_in_every_written_form(text, expected):
    assert calls(text) == expected


@pytest.mark.parametrize(
    ("text", "malformed"),
    [
        ("The sum is 3.", False),
        ("", False),
        ('{"name": "Bob", "age": 3}', False),
        ("[1, 2]", False),
        ('{"tool_name": "add", "tool_args": {"x": 1}', True),
        ('{"tool_name": "drop", "tool_args": {}}', True),
        ('{"name": "drop", "arguments": {}}', True),
        ('<tool_call>{"name": "add", "arguments": {</tool_call>', True),
        ("<tool_call>add</tool_call>", True),
        (f"Sure: {ADD}", False),
        ('{"tool_name": "add", "tool_args": ' + '{"a":' * 30 + "1" + "}" * 31, True),
    ],
)
def test_everything_else_stays_text_word_for_word(text, malformed):
    assert read_answer(text, NAMES, "g") == ParsedAnswer(text, (), malformed)


def test_without_tools_a_call_is_text():
    assert read_answer(ADD, (), "g") == ParsedAnswer(ADD)


def test_words_around_a_call_are_its_content():
    text = f"Let me see.\n<tool_call>{ADD}</tool_call>"
    said = read_answer(text, NAMES, "g")
    assert said.content == "Let me see.\n" and len(said.calls) == 1


def test_without_parallel_calls_only_the_first_counts():
    assert calls(f"[{ADD}, {ADD}]", parallel=False) == [("add", {"x": 1})]


def test_ids_follow_from_generation_and_place():
    one, two = read_answer(f"[{ADD}, {ADD}]", NAMES, "g").calls
    assert (one.id, two.id) == (call_id("g", 0), call_id("g", 1)) and one.id != two.id
    assert one.id != call_id("h", 0)
    document = ToolCall("call_1", "add", {"x": "ü"}).document()
    assert document["function"] == {"name": "add", "arguments": '{"x": "ü"}'}


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("Hello", "Hello"),
        ("Hello <", "Hello "),
        ("Hello <tool", "Hello "),
        ("Hello <tool_call>{", "Hello "),
        ("a < b", "a < b"),
        ("", ""),
        ("  ", ""),
        ("{", ""),
        ("\n[1", ""),
        ("<tool_c", ""),
    ],
)
def test_what_may_be_streamed(text, known):
    assert streamable_text(text) == known


PIECES = st.sampled_from(
    ["Hi ", ADD, "<tool_call>", "</tool_call>", "<", "{", "}", " ", "\n", "[", "]", "tool_"]
)


@given(st.lists(PIECES, max_size=8).map("".join))
def test_what_was_streamed_always_begins_the_content_of_the_whole(text):
    content = read_answer(text, NAMES, "g").content or ""
    sent = ""
    for end in range(len(text) + 1):
        now = streamable_text(text[:end])
        assert now.startswith(sent)
        sent = now
    assert content.startswith(sent)


@given(st.dictionaries(st.text(max_size=5), st.integers(-5, 5), max_size=3))
def test_arguments_come_through_as_they_were_written(arguments):
    text = json.dumps({"tool_name": "add", "tool_args": arguments})
    (call,) = read_answer(text, NAMES, "g").calls
    assert json.loads(call.document()["function"]["arguments"]) == arguments


def nested(levels: int) -> dict:
    value: dict = {}
    for _ in range(levels - 1):
        value = {"x": value}
    return value


def test_a_whole_tool_is_bounded_and_not_only_its_schema():
    def tool(**more):
        return [{"type": "function", "function": {"name": "f", **more}}]

    for tools in (tool(parameters=nested(20)), tool(note=nested(20)), [{**tool()[0], "note": nested(21)}]):
        assert check_tools(tools) == tools
    for tools in (tool(parameters=nested(21)), tool(note=nested(21)), [{**tool()[0], "note": nested(22)}]):
        with pytest.raises(HttpError) as refused:
            check_tools(tools)
        assert refused.value.status == 400 and refused.value.param == "tools[0]"
