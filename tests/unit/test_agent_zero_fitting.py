"""Tasks above the size of a message, Agent Zero's secrets, and what is new in a prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_zero_world import recorded

from onward import Recorder
from onward.integrations.agent_zero.plugin.helpers.prompt import new_lines
from onward.integrations.agent_zero.worker.fitting import NOTE, fit
from onward.integrations.agent_zero.worker.secrets import Secrets


def document(results: list[str], sampling: dict[str, Any] | None = None) -> dict[str, Any]:
    turns = []
    for number, text in enumerate(results, start=1):
        action: dict[str, Any] = {"type": "tool_call", "tool_name": "shell", "tool_args": {"n": number}}
        if sampling:
            action["sampling"] = dict(sampling)
        turns.append(
            {
                "turn_id": number,
                "timestamp": "2026-04-03T10:00:00.000Z",
                "observation": {"type": "user_message", "content": "Go"},
                "action": action,
                "result": {"success": True, "output": text},
            }
        )
    return {
        "trajectory_id": "t",
        "session_id": "s",
        "agent_id": "a",
        "start_timestamp": "2026-04-03T10:00:00.000Z",
        "end_timestamp": "2026-04-03T10:00:00.000Z",
        "turns": turns,
        "task_context": {"task_id": "t", "instructions": "Go"},
        "metadata": {"model": "m"},
    }


def test_a_task_above_a_message_loses_whole_results_and_is_recorded(tmp_path: Path) -> None:
    large = document([f"{number:02} " * 15_000 for number in range(30)])  # 45 kB each
    left_out = fit(large, has_store=False)
    outputs = [turn["result"]["output"] for turn in large["turns"]]
    assert left_out == outputs.count(NOTE) == large["metadata"]["texts_left_out"]
    assert all(output == NOTE or len(output) == 45_000 for output in outputs)
    assert 10 <= len(outputs) - left_out <= 23  # of the 23 that a MiB takes
    with Recorder(tmp_path / "outbox.db") as recorder:
        recorder.accept(large)
        assert recorder.stats().recorded == 1
    assert len(recorded(tmp_path)[0]["turns"]) == 30


def test_with_a_store_nothing_is_left_out() -> None:
    large = document(["x" * 60_000] * 30)
    assert fit(large, has_store=True) == 0 and "texts_left_out" not in large["metadata"]


def test_records_of_tokens_go_before_texts_do() -> None:
    sampling = {"prompt_ids": list(range(1000, 13_000)), "token_ids": [1], "logprobs": [-0.123456789]}
    large = document(["x" * 100] * 20, sampling)
    assert fit(large, has_store=False) == 0
    assert large["metadata"]["records_left_out"] is True
    assert not any("sampling" in turn["action"] for turn in large["turns"])
    small = document(["x" * 100] * 2, sampling)
    fit(small, has_store=False)
    assert all("sampling" in turn["action"] for turn in small["turns"])


def test_a_task_of_too_many_turns_keeps_its_beginning_and_end() -> None:
    long = document([str(number) for number in range(2500)])
    fit(long, has_store=True)
    assert long["metadata"]["turns_left_out"] == 500
    assert [turn["turn_id"] for turn in long["turns"]] == list(range(1, 2001))
    assert (long["turns"][0]["result"]["output"], long["turns"][-1]["result"]["output"]) == ("0", "2499")


def test_the_secrets_of_agent_zero_are_read_from_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "usr" / "projects" / "shop" / ".a0proj"
    project.mkdir(parents=True)
    words = [f"{name}-value-7{name}" for name in ("alpha", "bravo", "charlie", "delta")]
    (tmp_path / "usr" / "secrets.env").write_text(
        f"ONE={words[0]}\nexport TWO='{words[1]}'\n# OFF=commented-out\nSHORT=abc\nEMPTY=\n"
    )
    (project / "secrets.env").write_text(f'THREE="{words[2]}" \n')
    (tmp_path / "usr" / ".env").write_text(f"OPENAI_API_KEY={words[3]}\nTIMEZONE=Europe/Berlin\n")
    secrets = Secrets(tmp_path)
    found = secrets.values()
    assert set(words) <= set(found)
    assert not {"commented-out", "abc", "Europe/Berlin"} & set(found)
    assert secrets.named_value("ONE") == words[0] and secrets.named_value("THREE") is None
    monkeypatch.setenv("ONE", "from the environment")
    assert secrets.named_value("ONE") == "from the environment"
    assert not secrets.has_changed()
    (project / "secrets.env").write_text("THREE=another-value\n")
    assert secrets.has_changed()


S, U, A = "system", "user", "assistant"


@pytest.mark.parametrize(
    "before, now, new, is_break",
    [
        ([], [(S, "s"), (U, "go")], [(S, "s"), (U, "go")], False),
        # extras behind the last message are gone in the next call
        ([(S, "s"), (U, "go\n{1}")], [(S, "s"), (U, "go"), (A, "x"), (U, "r\n{2}")], [(U, "r\n{2}")], False),
        # the same prompt again: a retry
        ([(S, "s"), (U, "go")], [(S, "s"), (U, "go")], [], False),
        # a warning was appended to the message that had no answer
        (
            [(S, "s"), (U, "a long question")],
            [(S, "s"), (U, "a long question\nw")],
            [(U, "a long question\nw")],
            False,
        ),
        # the system text changed
        ([(S, "s"), (U, "go")], [(S, "t"), (U, "go"), (A, "x"), (U, "r")], [(S, "t"), (U, "r")], False),
        # text was added to an earlier message and the conversation went on
        (
            [(S, "s"), (U, "a long question")],
            [(S, "s"), (U, "a long question\nmore"), (A, "x"), (U, "r")],
            [(U, "a long question\nmore"), (U, "r")],
            False,
        ),
        # an earlier message was rewritten, or the history is shorter
        ([(S, "s"), (U, "a"), (A, "b"), (U, "c")], [(S, "s"), (U, "z"), (A, "b"), (U, "c")], None, True),
        ([(S, "s"), (U, "a"), (A, "b"), (U, "c")], [(S, "s"), (U, "summary")], None, True),
        # pictures: lists of parts are compared by value
        ([(S, "s"), (U, [{"t": 1}])], [(S, "s"), (U, [{"t": 1}]), (A, "x"), (U, "r")], [(U, "r")], False),
    ],
)
def test_only_what_the_model_has_not_seen_is_new(before: Any, now: Any, new: Any, is_break: bool) -> None:
    assert new_lines(before, now) == (now if new is None else new, is_break)
    assert json.dumps(now)  # nothing was changed in place
