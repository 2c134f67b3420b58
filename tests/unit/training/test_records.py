"""Records of other people's files: every variant of OpenAI's format, and what cannot be learnt from."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from scored_trajectories import sampling, task

from onward.errors import ConfigError
from onward.training.data import conversations, dataset, files
from onward.training.data.report import DataReport

ASK = {"role": "user", "content": "weather?"}
SCHEMA = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
SAID = {"role": "assistant", "content": "21 degrees."}


def _read(folder: Path, *records: Any, algorithm: str = "sft", **options: Any) -> Any:
    path = folder / "data.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in records) + "\n")
    return files.read([path], algorithm, **options)


def _talk(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [ASK, *messages], **more}


@pytest.mark.parametrize(
    "call",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL], "refusal": None, "audio": None},
        {"role": "assistant", "content": [], "tool_calls": [{"function": CALL["function"]}]},
        {"role": "assistant", "content": None, "function_call": CALL["function"]},
        {"role": "assistant", "content": "", "tool_calls": [
            {**CALL, "function": {"name": "weather", "arguments": {"city": "Rome"}}}]},
    ],
)  # fmt: skip
def test_a_call_is_read_in_every_form(tmp_path: Path, call: dict[str, Any]) -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "21"}]}
    (line,), excluded = _read(tmp_path, _talk(call, result, SAID, tools=[SCHEMA]))
    assert not excluded and line["tools"] == [SCHEMA]
    assert line["messages"][1]["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": {"city": "Rome"},
    }
    texts = [one["content"] for one in conversations.texts_of(line)]
    assert texts[2] == '{"tool_name": "weather", "tool_args": {"city": "Rome"}}' and texts[3] == "21"


@pytest.mark.parametrize("tools", [{"tools": [SCHEMA]}, {"tools": json.dumps([SCHEMA])},
                                   {"functions": [SCHEMA["function"]]}])  # fmt: skip
def test_offered_tools_stay_with_the_line(tmp_path: Path, tools: dict[str, Any]) -> None:
    (line,), _ = _read(tmp_path, _talk(SAID, **tools, parallel_tool_calls=False))
    assert line["tools"] == [SCHEMA]


def test_older_roles_text_parts_and_refusals_are_read(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "It "}, {"type": "output_text", "text": "is"}]
    record = {"messages": [
        {"role": "developer", "content": "Be brief."}, ASK, {"role": "assistant", "content": parts},
        {"role": "function", "name": "f", "content": "x"},
        {"role": "assistant", "content": None, "refusal": "I cannot."}]}  # fmt: skip
    (line,), _ = _read(tmp_path, record)
    assert [(one["role"], one["content"]) for one in line["messages"]] == [
        ("system", "Be brief."), ("user", "weather?"), ("assistant", "It is"), ("tool", "x"),
        ("assistant", "I cannot."),
    ]  # fmt: skip


def test_openais_form_of_a_preference_and_a_prompt_with_completion_are_read(tmp_path: Path) -> None:
    pair = {"input": {"messages": [ASK], "tools": [SCHEMA]}, "preferred_output": [SAID],
            "non_preferred_output": [{"role": "assistant", "content": "no idea"}]}  # fmt: skip
    lines, excluded = _read(tmp_path, pair, algorithm="dpo")
    assert not excluded and [line["outcome"] for line in lines] == [1.0, 0.0]
    assert lines[0]["group_key"] == lines[1]["group_key"] and lines[1]["tools"] == [SCHEMA]
    (line,), _ = _read(tmp_path, {"prompt": "weather?", "completion": "21 degrees."})
    assert line["messages"] == [ASK, SAID]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (_talk({"role": "assistant", "content": " "}), "empty_answer"),
        (_talk({"role": "assistant", "content": None}), "empty_answer"),
        (_talk(), "no_answer"),
        (_talk(SAID, SAID), "answers_in_a_row"),
        (json.dumps(_talk(SAID, reward=float("nan"))), "not_finite"),
        (_talk({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, SAID),
         "not_text"),
        ({"prompt": "a", "completion": ""}, "empty_answer"),
    ],
)  # fmt: skip
def test_a_record_that_teaches_nothing_is_left_out_under_a_name_with_its_place(
    tmp_path: Path, record: Any, reason: str
) -> None:
    lines, excluded = _read(tmp_path, _talk(SAID), record, _talk(SAID))
    assert len(lines) == 2 and excluded == {reason: 1}
    assert excluded.text == f"1 {reason} ({tmp_path / 'data.jsonl'}, record 2)"


def test_an_empty_side_leaves_out_the_whole_pair(tmp_path: Path) -> None:
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    lines, excluded = _read(tmp_path, good, {**good, "rejected": ""}, algorithm="dpo")
    assert len(lines) == 2 and excluded == {"empty_answer": 1}


def test_a_log_prob_that_is_no_number_leaves_out_its_trajectory(tmp_path: Path) -> None:
    def one(name: str, **changes: Any) -> dict[str, Any]:
        outcome = {"metadata": {"outcome": {"status": "failed"}}}
        return {**dict(task(name, sampling(**changes)).trajectory), **outcome}

    bad = one("b")
    drawn = next(turn["action"]["sampling"] for turn in bad["turns"] if turn["action"].get("sampling"))
    drawn["logprobs"] = [float("nan")] * len(drawn["logprobs"])
    lines, excluded = _read(tmp_path, one("a"), bad, algorithm="reinforce")
    assert [line["trajectory_id"] for line in lines] == ["a"] and excluded == {"not_finite": 1}


def test_a_mistyped_field_is_refused_and_another_unknown_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"record 1, has the field 'rewards'.*rename it to 'reward'"):
        _read(tmp_path, _talk(SAID, rewards=1.0))
    lines, excluded = _read(tmp_path, _talk(SAID), _talk(SAID, source="forum"), _talk(SAID, source="mail"))
    assert len(lines) == 3 and not excluded
    assert excluded.unread == {"source": f"{tmp_path / 'data.jsonl'}, record 2"}


@pytest.mark.parametrize("name", ["idx", "uid", "_id", "ids", "tool", "grp"])
def test_a_short_unknown_field_is_named_and_never_taken_for_a_mistyped_one(tmp_path: Path, name: str) -> None:
    lines, report = _read(tmp_path, _talk(SAID, **{name: 7}))
    assert len(lines) == 1 and report.unread == {name: f"{tmp_path / 'data.jsonl'}, record 1"}


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, DataReport.copy, lambda report: pickle.loads(pickle.dumps(report))],
    ids=["copy", "deepcopy", "method", "pickle"],
)
def test_a_copy_of_a_report_has_counts_places_and_fields_of_its_own(copied: Any) -> None:
    report = DataReport()
    report.leave_out("unscored", "a.jsonl, record 1")
    report.unread["source"] = "a.jsonl, record 2"
    again = copied(report)
    assert type(again) is DataReport and again == {"unscored": 1} and again.text == report.text
    assert again.unread == report.unread
    again.leave_out("unscored", "a.jsonl, record 3")
    assert report.text == "1 unscored (a.jsonl, record 1)"


def test_a_line_of_a_dataset_must_have_what_a_job_writes(tmp_path: Path) -> None:
    line = {"trajectory_id": "a", "task_type": "t", "group_key": None, "outcome": 0.0, "success": False,
            "unparsable": False, "raw_total": 0.0, "messages": [ASK, SAID]}  # fmt: skip
    (read,), _ = _read(tmp_path, line)
    assert read["outcome"] == 0.0, "a frozen line of text is no demonstration"
    del line["raw_total"]
    with pytest.raises(ConfigError, match="record 1, is a line of a dataset without raw_total"):
        _read(tmp_path, line)


@pytest.mark.parametrize("ids", [None, "12", [1, "2"], [1.0], [-1], [True]])
@pytest.mark.parametrize("name", ["prompt_ids", "token_ids"])
def test_a_call_whose_ids_are_no_ids_is_refused_with_its_place(tmp_path: Path, name: str, ids: Any) -> None:
    call = {"generation_id": "g", "continues": None, "prompt_ids": [1], "token_ids": [2], "logprobs": None,
            "temperature": 1.0}  # fmt: skip
    line = {"trajectory_id": "a", "task_type": "t", "group_key": None, "outcome": 0.0, "success": False,
            "unparsable": False, "raw_total": 0.0, "calls": [call]}  # fmt: skip
    (read,), _ = _read(tmp_path, line)
    assert read["calls"] == [call]
    call[name] = ids
    with pytest.raises(ConfigError, match=f"record 1, has a call whose {name} are no list of token ids"):
        _read(tmp_path, line)


def test_other_line_separators_and_a_byte_order_mark_are_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    record = _talk({"role": "assistant", "content": "one\u2028two"})
    path.write_text("\ufeff" + json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    (line,), _ = files.read([path], "sft")
    assert line["messages"][1]["content"] == "one\u2028two"


def test_without_an_outcome_a_graded_reward_is_no_failure(tmp_path: Path) -> None:
    records = [_talk(SAID, reward=0.1 * n, group="g") for n in range(4)]
    lines, _ = _read(tmp_path, *records, _talk(SAID, reward=0.2, group="g", success=False), algorithm="dpo")
    assert [line["success"] for line in lines] == [None, None, None, None, False]


def test_a_group_of_one_is_named_with_its_place(tmp_path: Path) -> None:
    records = [_talk(SAID, reward=n, group="a") for n in range(2)] + [_talk(SAID, reward=1, group="b")]
    lines, excluded = _read(tmp_path, *records, algorithm="rloo", behaviour="recompute")
    assert len(dataset.select_lines(lines, "rloo", excluded)) == 2
    assert excluded.text == f"1 group_of_one ({tmp_path / 'data.jsonl'}, record 3)"
