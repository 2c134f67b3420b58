"""Attempts in files: AgentGym's form, chat messages, and what is missing in a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onward.envs import recorded
from onward.errors import ConfigError

AGENT_TRAJ = {
    "item_id": "textcraft_17",
    "conversations": [
        {"from": "human", "loss": None, "value": "You craft things."},
        {"from": "gpt", "loss": False, "value": "OK."},
        {"from": "human", "loss": None, "value": "Goal: craft stick."},
        {"from": "gpt", "loss": True, "value": "Thought: wood.\nAction: get 1 log"},
        {"from": "human", "loss": None, "value": "Got 1 log"},
        {"from": "gpt", "loss": True, "value": "Action: craft 4 stick using 1 log"},
    ],
}
CHAT = {
    "task_id": "textcraft-all-0-3",
    "messages": [{"role": "user", "content": "Goal"}, {"role": "assistant", "content": "Action: get 1 log"}],
}


def read(tmp_path: Path, text: str) -> dict[int, list[str]]:
    path = tmp_path / "attempts.json"
    path.write_bytes(text.encode())
    return recorded.read([path])


def test_answers_are_read_by_task_and_the_agreement_to_the_instructions_is_none(tmp_path: Path) -> None:
    expected = {
        17: ["Thought: wood.\nAction: get 1 log", "Action: craft 4 stick using 1 log"],
        3: ["Action: get 1 log"],
    }
    assert read(tmp_path, json.dumps([AGENT_TRAJ, CHAT])) == expected
    assert read(tmp_path, f"{json.dumps(AGENT_TRAJ)}\n\n{json.dumps(CHAT)}\n") == expected


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\u2029", "\x0b", "\x1c"])
def test_other_line_separators_and_a_byte_order_mark_are_no_harm(tmp_path: Path, separator: str) -> None:
    said = f"Action: get{separator}1 log"
    record = {"task": 3, "messages": [{"role": "assistant", "content": said}]}
    lines = "".join(json.dumps(one, ensure_ascii=False) + "\r\n" for one in (record, AGENT_TRAJ))
    found = read(tmp_path, "\ufeff" + lines)
    assert found[3] == [said] and 17 in found
    assert read(tmp_path, "\ufeff" + json.dumps([record], ensure_ascii=False)) == {3: [said]}


def test_the_first_attempt_at_a_task_counts(tmp_path: Path) -> None:
    again = {"task": 3, "messages": [{"role": "assistant", "content": "Action: inventory"}]}
    assert read(tmp_path, json.dumps([CHAT, again])) == {3: ["Action: get 1 log"]}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"messages": []}, "record 1 does not say which task"),
        ({"item_id": "textcraft", "messages": []}, "record 1 does not say which task"),
        ({"item_id": "a_1"}, "record 1 has neither conversations nor messages"),
        (
            {"item_id": "a_1", "messages": [{"role": "assistant", "content": None}]},
            "an answer that is no text",
        ),
        ({"item_id": "a_1", "messages": []}, "no attempt with an answer"),
        ([7], "record 1 does not say which task"),
    ],
)
def test_a_record_that_cannot_be_played_is_told_with_its_place(
    tmp_path: Path, record: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, json.dumps(record))


def test_a_line_that_is_not_json_is_told_with_its_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2 is not JSON"):
        read(tmp_path, json.dumps(CHAT) + "\n{broken\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        recorded.read([tmp_path / "none.json"])
