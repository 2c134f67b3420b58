"""Chat files of Agent Zero in each form that it has written, built by hand from the rules of their writer."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from agent_zero_host import Host, say
from agent_zero_world import recorded
from commands import run_text

from onward import Recorder
from onward.contracts import Trajectory, validate
from onward.errors import ConfigError
from onward.integrations.agent_zero.importing import chat_files, import_chats, read_chat

SPACE = uuid.UUID("6d2f0a0e-6a0c-5d27-9f53-4f1ad7a8a0c1")


def message(ai: bool, content: Any, name: str, summary: str = "") -> dict[str, Any]:
    made = {"_cls": "Message", "ai": ai, "content": content, "summary": summary, "tokens": 7}
    return made | ({"id": name} if name else {})


def topic(*messages: dict[str, Any], summary: str = "") -> dict[str, Any]:
    return {"_cls": "Topic", "summary": summary, "messages": list(messages)}


def history(
    current: dict[str, Any], *topics: dict[str, Any], bulks: list[dict[str, Any]] | None = None
) -> str:
    made = {"_cls": "History", "counter": 9, "bulks": bulks or [], "topics": list(topics), "current": current}
    return json.dumps(made)


def chat(*agents: Any, **given: Any) -> dict[str, Any]:
    return {
        "id": "abcd1234",
        "name": "Files",
        "created_at": "2026-04-03T10:00:00+00:00",
        "type": "user",
        "last_message": "2026-04-03T10:05:00+00:00",
        "agents": [{"number": number, "data": {}, "history": one} for number, one in enumerate(agents)],
        "streaming_agent": 0,
        "log": {"guid": "g", "logs": [], "progress": "", "progress_no": 0},
        "data": {},
        "output_data": {},
        **given,
    }


MAIN = history(
    topic(
        message(False, {"user_message": "And now?"}, "m6"),
        message(True, "no json", "m7"),
        message(False, {"system_warning": "You have misformatted your message."}, "m8"),
        message(True, say("response", text="Nothing."), "m9"),
    ),
    topic(
        message(False, {"user_message": "Count", "attachments": ["/x/a.csv"]}, "m1"),
        message(True, say("shell:run", "Look.", cmd="ls"), "m2"),
        message(False, {"tool_name": "shell", "tool_result": "a b"}, "m3"),
        message(True, say("call_subordinate", message="Check it", profile="researcher"), "m4"),
        message(False, {"tool_name": "call_subordinate", "tool_result": "checked"}, "m5"),
        message(True, say("response", text="Two."), "m5b"),
        summary="The user counted.",
    ),
)
BELOW = history(
    topic(
        message(False, {"user_message": "Check it"}, "s1"),
        message(True, say("response", text="checked"), "s2"),
    )
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "a0" / "usr" / "chats" / "abcd1234"
    place.mkdir(parents=True)
    (place / "chat.json").write_text(json.dumps(chat(MAIN, BELOW)))
    return place


def test_a_chat_gives_a_trajectory_for_each_task_of_each_agent(folder: Path) -> None:
    first, second, below = read_chat(folder / "chat.json")
    for document in (first, second, below):
        validate(document, Trajectory)
        assert document["metadata"]["capture"] == {"source": "agent_zero_chat", "closed": "import"}
    assert first["task_context"] == {"task_id": "m1", "instructions": "Count", "attachments": ["a.csv"]}
    assert [turn["action"]["type"] for turn in first["turns"]] == [
        "tool_call",
        "subordinate_call",
        "response",
    ]
    assert first["turns"][0]["action"]["tool_name"] == "shell:run"
    assert first["turns"][0]["thought_process"] == ["Look."]
    assert [turn["result"]["output"] for turn in first["turns"]] == ["a b", "checked", "Two."]
    assert first["start_timestamp"] == "2026-04-03T10:00:00.000Z"
    assert second["turns"][0]["result"]["error"] == "unparsable: You have misformatted your message."
    assert (below["agent_id"], below["metadata"]["parent_turn"]) == ("subordinate-default-1", 2)
    assert below["metadata"]["parent_trajectory_id"] == first["trajectory_id"]
    assert below["session_id"] == first["session_id"] != second["session_id"]
    assert first["turns"][1]["result"]["subordinate_trajectories"] == [below["trajectory_id"]]


def test_ids_are_those_of_the_plugin(folder: Path) -> None:
    ids = [one["trajectory_id"] for one in read_chat(folder / "chat.json")]
    assert ids[0] == str(uuid.uuid5(SPACE, "abcd1234\x1f0\x1fm1"))
    assert ids[2] == str(uuid.uuid5(SPACE, "abcd1234\x1f1\x1fs1"))


def test_bulks_hold_older_topics_at_any_depth(tmp_path: Path) -> None:
    old = topic(message(False, {"user_message": "Old"}, "o1"), message(True, say("response", text="x"), "o2"))
    bulk = {"_cls": "Bulk", "summary": "", "records": [{"_cls": "Bulk", "summary": "s", "records": [old]}]}
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(chat(history(topic(), bulks=[bulk]))))
    (document,) = read_chat(path)
    assert document["task_context"]["instructions"] == "Old"


def test_the_form_of_version_0_8_has_no_id_and_lies_in_the_folder_itself(tmp_path: Path) -> None:
    place = tmp_path / "tmp" / "chats"
    place.mkdir(parents=True)
    old = {"agents": [{"number": 0, "data": {}, "history": json.loads(MAIN)}], "log": None}
    (place / "Xy12.json").write_text(json.dumps(old))
    assert chat_files(tmp_path) == [place / "Xy12.json"]
    first, second = read_chat(place / "Xy12.json")
    assert first["metadata"]["agent_zero"]["chat"] == "Xy12"
    assert first["start_timestamp"] == "1970-01-01T00:00:00.000Z"
    assert len(second["turns"]) == 2


def test_a_history_as_a_plain_list_is_read(tmp_path: Path) -> None:
    lines = [
        {"type": "human", "content": "Count"},
        {"type": "ai", "content": say("shell", cmd="ls")},
        {"type": "human", "content": "a b"},
        {"type": "ai", "content": say("response", text="Two.")},
        {"type": "human", "content": "Again"},
        {"type": "ai", "content": say("shell", cmd="ls")},
    ]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(chat(lines)))
    first, second = read_chat(path)
    assert [turn["result"].get("output") for turn in first["turns"]] == ["a b", "Two."]
    assert first["metadata"]["outcome"] == {"status": "completed_successfully"}
    assert second["metadata"]["outcome"] == {"status": "abandoned"}
    assert second["turns"][0]["result"]["error"] == "the chat file ends before the task does"


def test_a_long_result_is_read_from_its_file_and_from_no_other_folder(folder: Path) -> None:
    (folder / "messages").mkdir()
    (folder / "messages" / "3.txt").write_text("whole " * 200)
    (folder / "secret.txt").write_text("not this one")

    def stored(path: str) -> str:
        return history(
            topic(
                message(False, {"user_message": "Go"}, "a"),
                message(True, say("shell", cmd="x"), "b"),
                message(False, {"tool_name": "shell", "tool_result": "short", "file": path}, "c"),
            )
        )

    (folder / "chat.json").write_text(json.dumps(chat(stored("/a0/usr/chats/abcd1234/messages/3.txt"))))
    assert read_chat(folder / "chat.json")[0]["turns"][0]["result"]["output"] == "whole " * 200
    (folder / "chat.json").write_text(json.dumps(chat(stored("../secret.txt"))))
    assert read_chat(folder / "chat.json")[0]["turns"][0]["result"]["output"] == "short"


def of_responses(text: str, name: str, *items: dict[str, Any]) -> dict[str, Any]:
    """Returns an answer as it is stored with the Responses API."""
    stored = {"response_id": "r1", "output_items": list(items), "mode": "responses", "state": "provider"}
    return {**message(True, text, name), "metadata": {"responses": stored}, "sequence": 2}


def test_function_calls_and_plain_answers_of_the_responses_api_are_read(tmp_path: Path) -> None:
    thinking = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Both at once."}]}
    calls = [
        {"type": "function_call", "name": "shell", "arguments": json.dumps({"cmd": cmd}), "call_id": cmd}
        for cmd in ("ls", "pwd")
    ]
    told = {"type": "message", "content": [{"type": "output_text", "text": "I look."}]}
    main = history(
        topic(
            message(False, {"user_message": "Look around"}, "m1"),
            of_responses("I look.", "m2", thinking, told, *calls),
            message(False, {"tool_name": "shell", "tool_result": "a b"}, "m3"),
            message(False, {"tool_name": "shell", "tool_result": "/root"}, "m4"),
            of_responses("Two files in /root.", "m5"),
        ),
        topic(
            message(False, {"user_message": "And now?"}, "m6"),
            of_responses("Nothing.", "m7"),
        ),
    )
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(chat(main)))
    now, first = read_chat(path)
    listed, placed, last = first["turns"]
    assert listed["thought_process"] == ["Both at once.", "I look."]
    assert [(one["action"]["tool_args"], one["result"]["output"]) for one in (listed, placed)] == [
        ({"cmd": "ls"}, "a b"),
        ({"cmd": "pwd"}, "/root"),
    ]
    assert (last["action"]["type"], last["result"]["output"]) == ("response", "Two files in /root.")
    assert now["task_context"]["instructions"] == "And now?"
    assert [one["metadata"]["outcome"]["status"] for one in (first, now)] == ["completed_successfully"] * 2


def test_subordinates_in_chats_of_their_own_are_linked(tmp_path: Path) -> None:
    jobs = [{"tool_name": "call_subordinate", "tool_args": {"message": one}} for one in ("left ", "right")]
    main = history(
        topic(
            message(False, {"user_message": "Divide"}, "m1"),
            message(True, say("call_subordinate", message="dig"), "m2"),
            message(False, {"tool_name": "call_subordinate", "tool_result": "x", "context_id": "dig1"}, "m3"),
            message(True, say("parallel", tool_calls=jobs), "m4"),
            message(
                False,
                {
                    "tool_name": "parallel",
                    "tool_result": json.dumps({"jobs": [{"context_id": "left1"}, {"context_id": "right1"}]}),
                },
                "m5",
            ),
            message(True, say("response", text="Done."), "m6"),
        )
    )
    (tmp_path / "main1").mkdir()
    (tmp_path / "main1" / "chat.json").write_text(json.dumps(chat(main, id="main1")))
    for name, text in (("dig1", "dig"), ("left1", "left"), ("right1", "right"), ("other1", "dig")):
        below = history(
            topic(
                message(False, {"user_message": text}, f"{name}-m"),
                message(True, say("response", text="ok"), f"{name}-a"),
            )
        )
        made = chat(below, id=name, output_data={"parent_context_id": "main1", "parent_agent_number": 0})
        made["agents"][0]["number"] = 1
        (tmp_path / name).mkdir()
        (tmp_path / name / "chat.json").write_text(json.dumps(made))
    (above,) = read_chat(tmp_path / "main1" / "chat.json")
    dig, left, right = (read_chat(tmp_path / name / "chat.json")[0] for name in ("dig1", "left1", "right1"))
    for one, turn in ((dig, 1), (left, 2), (right, 2)):
        assert one["metadata"]["parent_trajectory_id"] == above["trajectory_id"]
        assert (one["metadata"]["parent_turn"], one["session_id"]) == (turn, above["session_id"])
        assert one["agent_id"].startswith("subordinate-")
    assert "parent_trajectory_id" not in read_chat(tmp_path / "other1" / "chat.json")[0]["metadata"]
    linked = [turn["result"].get("subordinate_trajectories", []) for turn in above["turns"]]
    assert linked[0] == [dig["trajectory_id"]] and linked[2] == []
    assert sorted(linked[1]) == sorted([left["trajectory_id"], right["trajectory_id"]])


@pytest.mark.parametrize("name", ["../main1", "gone", "", "below1", "broken1"])
def test_a_chat_that_names_no_chat_beside_it_is_read_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "broken1").mkdir()
    (tmp_path / "broken1" / "chat.json").write_text("{")
    (tmp_path / "below1").mkdir()
    path = tmp_path / "below1" / "chat.json"
    made = chat(MAIN, id="below1", output_data={"parent_context_id": name})
    path.write_text(json.dumps(made))
    assert "parent_trajectory_id" not in read_chat(path)[0]["metadata"]


def test_an_intervention_belongs_to_the_task_that_it_interrupts(tmp_path: Path) -> None:
    told = history(
        topic(
            message(False, {"user_intervention": "Stop."}, "c"),
            message(True, say("response", text="ok"), "d"),
        ),
        topic(message(False, {"user_message": "Go"}, "a"), message(True, say("shell", cmd="x"), "b")),
    )
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(chat(told)))
    (document,) = read_chat(path)
    assert document["turns"][0]["result"]["interventions"] == ["Stop."]


@pytest.mark.parametrize("history", ["", "{", "null", None, 7, [], {}])
def test_a_chat_without_a_readable_history_has_no_task(tmp_path: Path, history: Any) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(chat(history)))
    assert read_chat(path) == []


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("{", "is no JSON"),
        ("[]", "it has no list 'agents'"),
        ('{"agents": [1]}', "must be a list of objects"),
    ],
)
def test_a_file_that_is_no_chat_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_chat(path)
    with pytest.raises(ConfigError, match="There is no chat file in"):
        chat_files(tmp_path / "nowhere")


def test_an_import_is_redacted_and_repeats_nothing(folder: Path, tmp_path: Path) -> None:
    told = chat(history(topic(message(False, {"user_message": "Mail ann@corp.io"}, "a"))))
    (folder / "chat.json").write_text(json.dumps(told))
    with Recorder(tmp_path / "outbox.db") as recorder:
        assert import_chats([folder], recorder).imported == 1
        again = import_chats([tmp_path / "a0"], recorder)
        assert (again.files, recorder.pending()) == (1, 1)
    assert "ann@corp.io" not in json.dumps(recorded(tmp_path))


def test_the_command_imports_and_reports(folder: Path, tmp_path: Path) -> None:
    (folder.parent / "broken").mkdir()
    (folder.parent / "broken" / "chat.json").write_text("{")
    done = run_text(tmp_path, "trajectories", "import", str(tmp_path / "a0"), "--dir", str(tmp_path / "data"))
    assert done.returncode == 1
    assert (
        "3 tasks of 2 files imported; 0 known already, 0 held, 0 opted out; 3 wait for NATS." in done.stdout
    )
    assert "is no JSON" in done.stderr
    wrong = run_text(tmp_path, "trajectories", "import", "nowhere", "--dir", str(tmp_path / "data"))
    assert wrong.returncode == 2 and "There is no chat file in nowhere" in wrong.stderr


async def test_what_the_host_stores_of_a_task_is_what_the_plugin_recorded(tmp_path: Path) -> None:
    """The same task by both ways: actions, results and ids agree."""
    with Host(tmp_path / "a0") as host:
        from agent_zero_world import collecting

        feed = collecting(host)

        async def shell(agent: Any, args: dict[str, Any]) -> str:
            return "a b"

        host.tools["shell"] = shell
        answers = iter([say("shell", "Look.", cmd="ls"), "no json", say("response", text="Two.")])
        host.model = lambda agent, lines: next(answers)
        context = host.context(id="abcd1234")
        await host.ask("Count", context)
        stored = [message(one.ai, one.content, one.id) for one in context.agent0.history.all()]
        path = tmp_path / "chat.json"
        path.write_text(json.dumps(chat(history(topic(*stored)))))
        (live,) = feed.documents()
    (imported,) = read_chat(path)
    assert imported["trajectory_id"] == live["trajectory_id"]
    for ours, theirs in zip(imported["turns"], live["turns"], strict=True):
        for name in ("type", "tool_name", "tool_args", "raw_response", "message_id"):
            assert ours["action"].get(name) == theirs["action"].get(name)
        for name in ("success", "output", "error"):
            assert ours["result"].get(name) == theirs["result"].get(name)
