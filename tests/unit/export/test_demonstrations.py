"""What can be imitated, each once, in the form of the chat API and in the words that the gateway uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trajectory_store import TOOLS, reward, trajectory

from onward.errors import ConfigError
from onward.export.demonstrations import Demonstrations
from onward.export.records import Record
from onward.lm.tool_words import TOOL_RULES
from onward.training.data import conversations, files


def record(name: str, **changes: Any) -> Record:
    return Record(trajectory(name, **changes), reward(name, 0.9))


def test_each_conversation_comes_once_also_under_other_call_ids() -> None:
    made = Demonstrations("openai")
    first = made.line(record("a"))
    assert first is not None and first["messages"][2]["tool_calls"][0]["id"] == "call-a"
    assert made.line(record("b")) is None
    assert made.line(record("c", answer="It is 391!")) is not None
    assert made.left_out == {"duplicate": 1}


def test_what_was_cut_or_could_not_be_read_or_says_nothing_is_left_out() -> None:
    made = Demonstrations("text")
    cut = record("a")
    cut.trajectory["metadata"]["texts_cut"] = 1
    unread = Record(trajectory("b"), reward("b", 0.9, unparsable=True))
    silent = record("c")
    silent.trajectory["turns"] = [
        {**silent.trajectory["turns"][0], "action": {"type": "response"}, "result": {"success": False}}
    ]
    assert [made.line(one) for one in (cut, unread, silent)] == [None] * 3
    assert made.left_out == {"cut": 1, "unparsable": 1, "no_answer": 1}


def test_a_conversation_ends_with_its_last_answer() -> None:
    unfinished = record("a")
    del unfinished.trajectory["turns"][1]
    line = Demonstrations("openai").line(unfinished)
    assert line is not None and [one["role"] for one in line["messages"]] == ["system", "user", "assistant"]


def test_onward_train_reads_both_forms_as_the_same_words(tmp_path: Path) -> None:
    """Tools stand in the system text and calls are JSON: what the gateway shows such a model,
    as tests/unit/lm/test_chat.py has it."""
    forms: list[Any] = []
    for form in ("openai", "text"):
        path = tmp_path / f"{form}.jsonl"
        path.write_text(json.dumps(Demonstrations(form).line(record("a"))) + "\n")
        ((line,), excluded) = files.read([path], "sft")
        assert not excluded and line["outcome"] == 1.0
        forms.append(conversations.texts_of(line))
    assert forms[0] == forms[1]
    schema = json.dumps(TOOLS[0]["function"]["parameters"])
    said = [(one["role"], one["content"]) for one in forms[0]]
    assert said == [
        ("system", f"Be brief.\n\n{TOOL_RULES}\n- calculator: Works out an expression. Arguments: {schema}"),
        ("user", "What is 17 times 23?"),
        ("assistant", 'Let me see.\n{"tool_name": "calculator", "tool_args": {"expression": "17 * 23"}}'),
        ("tool", "391"),
        ("assistant", "It is 391."),
    ]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"messages": [{"role": "user", "content": None}]}, "a list of {role, content}"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "are not a list of"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": "x"}]}, "not a list of"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": "{"}, "tools that are not a list"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [1]}, "tools that are not a list"),
    ],
)
def test_tools_that_cannot_be_read_are_told(tmp_path: Path, record: Any, words: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=words):
        files.read([tmp_path / "x.jsonl"], "sft")
