"""The plugin in Agent Zero's own loop: a checkout plays scripted tasks, each of which is one trajectory.

Needs two variables: ``AGENT_ZERO_SOURCE`` names a checkout, and ``AGENT_ZERO_PYTHON`` an interpreter that has
its packages. The model alone is scripted; loop, history, extension mechanism and tools are Agent Zero's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent_zero_real
import pytest
from agent_zero_host import Agent, Host, Line
from agent_zero_world import collecting, recorded

from onward.contracts import Trajectory, validate
from onward.integrations.agent_zero import install
from onward.integrations.agent_zero.check import check
from onward.integrations.agent_zero.importing import read_chat

SOURCE, PYTHON = os.environ.get("AGENT_ZERO_SOURCE", ""), os.environ.get("AGENT_ZERO_PYTHON", "")
OWN = ("usr", "agents", ".git")
"""Folders of the checkout that the test's Agent Zero does not share with it."""
ORDER_OF_VERSIONS = ("reasoning_stream_end", "response_stream_end")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SOURCE and PYTHON),
        reason="AGENT_ZERO_SOURCE and AGENT_ZERO_PYTHON name no checkout and interpreter",
    ),
]


@dataclass
class Played:
    """What Agent Zero did, and what was recorded of it."""

    root: Path
    told: dict[str, Any]
    documents: list[dict[str, Any]]

    def of(self, task: str) -> dict[str, Any]:
        """Returns the one trajectory of a task."""
        (found,) = [one for one in self.documents if one["task_context"]["instructions"] == task]
        return found

    def require(self, scenario: str) -> None:
        """Skips a test whose scenario this version cannot play."""
        if scenario not in self.told["played"]:
            pytest.skip(f"this version has no {agent_zero_real.NEEDS[scenario]}")

    def answer(self, task: str) -> str:
        return str(self.told["played"][task]["answer"])


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    root = tmp_path_factory.mktemp("agent-zero")
    source = Path(SOURCE).resolve()
    for path in source.iterdir():
        if path.name not in OWN:
            (root / path.name).symlink_to(path)
    shutil.copytree(source / "agents", root / "agents")
    (root / "usr" / "plugins").mkdir(parents=True)
    (root / "usr" / "chats").mkdir()
    install.install(root)
    agent_zero_real.prepare(root)
    run = subprocess.run(
        [PYTHON, agent_zero_real.__file__, str(root)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    documents = recorded(root / install.PLUGIN / "data")
    for document in documents:
        validate(document, Trajectory)
    yield Played(root, json.loads(run.stdout.splitlines()[-1]), documents)


def results(document: dict[str, Any]) -> list[Any]:
    """Returns the output of each turn, or its error."""
    told = [turn["result"] for turn in document["turns"]]
    return [one["output"] if one["success"] else one["error"] for one in told]


def calls(document: dict[str, Any]) -> list[Any]:
    """Returns tool and arguments of each turn that called one."""
    actions = [turn["action"] for turn in document["turns"]]
    return [(one["tool_name"], one["tool_args"]) for one in actions if "tool_name" in one]


def status(document: dict[str, Any]) -> str:
    return str(document["metadata"]["outcome"]["status"])


def test_each_run_of_the_loop_is_one_trajectory(played: Played) -> None:
    tasks = [one["task_context"]["instructions"] for one in played.documents]
    scenarios = list(played.told["played"])
    below = [task for name in scenarios for task in agent_zero_real.BELOW.get(name, ())]
    assert sorted(tasks) == sorted(scenarios + below)
    figures = played.told["status"]
    assert (figures["errors"], figures["dropped"], figures["open"]) == (0, 0, 0)
    assert figures["recorded"] == len(tasks)


def test_a_task_has_thoughts_calls_arguments_and_results(played: Played) -> None:
    document = played.of("tools")
    assert played.answer("tools") == "Two files." and status(document) == "completed_successfully"
    assert document["task_context"]["attachments"] == ["plan.pdf"]
    assert document["metadata"]["model"] == "openai/scripted"
    assert document["metadata"]["agent_zero"]["chat"] == played.told["played"]["tools"]["chat"]
    first, second, last = document["turns"]
    assert first["thought_process"] == ["Look first."]
    assert (first["action"]["tool_name"], first["action"]["tool_args"]) == ("shell", {"cmd": "ls"})
    assert results(document) == ["ran ls", "ran pwd", "Two files."]
    assert [one["observation"]["type"] for one in (second, last)] == ["tool_result"] * 2
    assert "ran ls" in second["observation"]["content"] and "context" not in last["observation"]


def test_subordinates_are_nested_twice_and_linked(played: Played) -> None:
    main, middle, deepest = (played.of(task) for task in ("nested", "nested 1", "nested 2"))
    assert played.answer("nested") == "from 0"
    assert [one["agent_id"] for one in (main, middle, deepest)] == [
        "agent-zero-main", "subordinate-researcher-1", "subordinate-developer-2"
    ]  # fmt: skip
    assert middle["metadata"]["parent_trajectory_id"] == main["trajectory_id"]
    assert deepest["metadata"]["parent_trajectory_id"] == middle["trajectory_id"]
    assert main["turns"][0]["result"]["subordinate_trajectories"] == [middle["trajectory_id"]]
    assert middle["turns"][0]["result"]["subordinate_trajectories"] == [deepest["trajectory_id"]]
    assert {one["session_id"] for one in (main, middle, deepest)} == {f"a0-{main['trajectory_id']}"}
    assert main["turns"][1]["observation"]["type"] == "subordinate_response"


def test_parallel_calls_belong_to_the_turn_that_started_them(played: Played) -> None:
    played.require("parallel")
    main, one, two = (played.of(task) for task in ("parallel", "one", "two"))
    start, inner, _ = main["turns"]
    assert sorted(start["result"]["subordinate_trajectories"]) == sorted(
        [one["trajectory_id"], two["trajectory_id"]]
    )
    assert start["action"]["parallel_calls"] == [{"tool_name": "shell", "tool_args": {"cmd": "ls"}}]
    assert inner["result"]["output"] == "ran ls"
    assert [child["metadata"]["parent_turn"] for child in (one, two)] == [1, 1]


def test_a_cancelled_job_is_abandoned_and_its_superior_is_not(played: Played) -> None:
    played.require("cancelled job")
    main, job = played.of("cancelled job"), played.of("slow job")
    assert (status(main), status(job)) == ("completed_successfully", "abandoned")
    assert job["metadata"]["parent_trajectory_id"] == main["trajectory_id"]
    assert (job["metadata"]["parent_turn"], results(job)) == (1, ["cancelled by Agent Zero"])


def test_an_intervention_ends_the_tool_or_the_answer_and_not_the_task(played: Played) -> None:
    tool, answer = played.of("interrupted tool"), played.of("interrupted answer")
    assert [status(one) for one in (tool, answer)] == ["completed_successfully"] * 2
    first = tool["turns"][0]["result"]
    assert (first["output"], first["interventions"]) == ("half of it", ["Stop that."])
    assert first["error"].startswith("interrupted")
    assert answer["turns"][0]["result"]["error"].startswith("cancelled: the user wrote")
    assert [one["turns"][1]["observation"]["type"] for one in (tool, answer)] == ["user_message"] * 2


def test_what_went_wrong_is_a_failure_with_its_reason(played: Played) -> None:
    assert results(played.of("repairable"))[0] == "RepairableException: no such file"
    assert results(played.of("critical")) == ["RuntimeError: the disk is gone"]
    assert status(played.of("critical")) == "failed"
    for task in ("unknown", "misformat", "repeated"):
        document = played.of(task)
        bad = document["turns"][-2]["result"]
        assert not bad["success"] and bad["error"] and status(document) == "completed_successfully"
    assert results(played.of("misformat"))[0].startswith("unparsable")
    assert results(played.of("repeated"))[1].startswith("repeated")


def test_a_secret_is_its_placeholder(played: Played) -> None:
    document = played.of("secret")
    assert document["turns"][0]["action"]["tool_args"]["key"] == "§§secret(DOOR)"
    assert agent_zero_real.SECRET not in json.dumps(played.documents)


def test_a_task_that_is_stopped_is_abandoned_with_its_subordinates(played: Played) -> None:
    for task, how in (("killed", "kill_process"), ("reset", "reset"), ("killed below", "kill_process")):
        assert (status(played.of(task)), results(played.of(task))) == (
            "abandoned",
            [f"stopped by the user ({how})"],
        )
    assert results(played.of("slow below")) == ["stopped by the user (kill_process)"]


def test_calls_in_fields_of_their_own_are_the_calls_of_one_turn(played: Played) -> None:
    played.require("native")
    document = played.of("native")
    first, second, third, last = document["turns"]
    assert results(document) == ["ran ls", "ran pwd", "ran id", "Done without JSON."]
    assert first["thought_process"] == ["Both at once."]
    assert second["observation"]["content"] == {"same_as_turn": 1}
    assert third["thought_process"] == ["I look again."]
    assert (last["action"]["type"], last["action"]["tool_args"]) == (
        "response",
        {"text": "Done without JSON."},
    )


def test_a_saved_chat_is_imported_as_what_was_recorded(played: Played) -> None:
    compared = 0
    for task in (
        "tools",
        "native",
        "interrupted tool",
        "interrupted answer",
        "misformat",
        "unknown",
        "repairable",
    ):
        if task not in played.told["played"]:
            continue
        chat = played.root / "usr" / "chats" / played.told["played"][task]["chat"] / "chat.json"
        (imported,) = read_chat(chat)
        document = played.of(task)
        assert imported["trajectory_id"] == document["trajectory_id"]
        assert calls(imported) == calls(document), task
        assert imported["metadata"]["outcome"] == document["metadata"]["outcome"]
        compared += 1
    assert compared >= 6


def test_imported_subordinates_have_the_links_of_the_recorded_ones(played: Played) -> None:
    chats = (played.root / "usr" / "chats").glob("*/chat.json")
    imported = {one["trajectory_id"]: one for path in chats for one in read_chat(path)}
    for task in ("nested 1", "nested 2", "one", "two"):
        if task in ("one", "two") and "parallel" not in played.told["played"]:
            continue
        document = played.of(task)
        other = imported[document["trajectory_id"]]
        assert other["metadata"]["parent_trajectory_id"] == document["metadata"]["parent_trajectory_id"]
        assert other["session_id"] == document["session_id"]


def test_the_dispatcher_of_the_api_asks_for_login_token_and_key(played: Played) -> None:
    assert played.told["api"] == {
        "no login": [302, None],
        "no token": [403, None],
        "vote": [200, True],
        "no vote": [200, False],
        "signal": [200, True],
        "status": [200, True],
        "approvals": [200, True],
        "no key": [401, None],
        "wrong key": [401, None],
        "key": [200, True],
    }


async def test_the_stub_keeps_the_order_of_the_real_loop(played: Played, tmp_path: Path) -> None:
    async def shell(agent: Agent, args: dict[str, Any]) -> str:
        return f"ran {args['cmd']}"

    answers = list(agent_zero_real.SCRIPTS["tools"])

    def model(agent: Agent, lines: list[Line]) -> str:
        return str(answers[agent.loop_data.iteration])

    with Host(tmp_path) as host:
        collecting(host)
        host.tools["shell"], host.model = shell, model
        assert await host.ask("tools") == "Two files."
        ours = [point for point in host.extensions.called if point not in ORDER_OF_VERSIONS]
    real = [point for point in played.told["order"] if point in set(ours)]
    assert real == ours


async def test_the_check_finds_all_hooks_in_the_checkout(played: Played) -> None:
    (hooks,) = [one for one in await check(played.root, gateway="http://127.0.0.1:9") if one.name == "hooks"]
    assert hooks.passed, hooks.message
