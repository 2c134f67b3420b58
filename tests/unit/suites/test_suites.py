"""Suites by name, and each kind of them against a scripted engine behind a real loopback endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_engine import ScriptedEngine

from onward.envs import desk
from onward.errors import ConfigError, EngineError, NotFoundError
from onward.suites.desk import DeskSuite
from onward.suites.finding import FACTORIES, Sources, find
from onward.suites.policy_server import serve_policy
from onward.suites.recorded.judging import judge
from onward.suites.recorded.replay import UNKNOWN_CALL, ReplaySuite
from onward.suites.recorded.suite import parse
from onward.suites.recorded.tasks import Call, RecordedTask
from onward.suites.suite import Endpoint, ItemResult, Suite

ITEM = RecordedTask("i", "k", [{"role": "user", "content": "?"}], final="It is 6.")


def said(tool: str, **arguments: Any) -> str:
    return json.dumps({"tool_name": tool, "tool_args": arguments})


async def run(suite: Suite, script: Any) -> list[ItemResult]:
    async with serve_policy(ScriptedEngine(script), None, max_tokens=200) as policy:
        return await suite.run(policy, seed=0)


@pytest.mark.parametrize("name", ["nothing", "env", "recorded:", "desk:1", "http://x", ""])
async def test_a_name_of_no_form_is_refused_with_the_forms(name: str) -> None:
    with pytest.raises(ConfigError, match="expected desk, recorded:…, env:…"):
        await find(name, Sources())


async def test_a_function_that_does_not_exist_is_named() -> None:
    with pytest.raises(NotFoundError, match="json:no_such"):
        await find("json:no_such", Sources())


def test_every_name_of_the_seam_has_a_factory() -> None:
    assert set(FACTORIES) == {
        "desk", "recorded", "env", "file", "inspect", "code_generation", "data_analysis",
        "research_synthesis", "tool_usage", "safety", "refusal", "over_refusal", "toxicity", "bias",
        "jailbreak",
    }  # fmt: skip


async def test_the_endpoint_answers_with_one_key_and_is_closed_afterwards() -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    async with serve_policy(ScriptedEngine(), None) as policy, httpx.AsyncClient(trust_env=False) as http:
        path = f"{policy.base_url}/chat/completions"
        assert (await http.post(path, json=body)).status_code == 401
        headers = {"Authorization": f"Bearer {policy.key}"}
        answer = await http.post(path, json=body, headers=headers)
        assert answer.json()["choices"][0]["message"]["content"] == "base: hello"
        assert policy.key not in repr(policy)
        other = await http.post(path, json={**body, "model": "gpt"}, headers=headers)
        assert other.status_code == 404
        streamed = await http.post(path, json={**body, "stream": True}, headers=headers)
        assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "stream")
    async with httpx.AsyncClient(trust_env=False) as http:
        with pytest.raises(httpx.ConnectError):
            await http.post(path, json=body)


async def test_an_engine_that_fails_ends_the_run_and_is_no_wrong_answer() -> None:
    engine = ScriptedEngine()
    engine.fail = lambda adapter, session: True
    async with serve_policy(engine, None) as policy:
        with pytest.raises(EngineError, match="on purpose"):
            await DeskSuite(2).run(policy, seed=0)


async def test_the_desk_by_its_endpoint_is_solved_by_the_reference_alone() -> None:
    tasks = {task.instructions: task for task in desk.tasks("validation", 12)}

    def solve(messages: Any, adapter: str | None) -> str:
        turn = sum(message["role"] == "assistant" for message in messages)
        return desk.solve(tasks[messages[1]["content"]])[turn]

    solved = await run(DeskSuite(12), solve)
    assert [one.item_id for one in solved] == [task.task_id for task in tasks.values()]
    assert all(one.success and one.score == 1.0 for one in solved)
    assert not any(one.success for one in await run(DeskSuite(12), lambda messages, adapter: "hello"))


async def test_an_environment_is_played_on_its_held_out_tasks() -> None:
    suite = await find("env:maze", Sources(items=3))
    found = await run(suite, lambda messages, adapter: "Action: up")
    assert [one.item_id for one in found] == [f"maze-test-0-{n}" for n in range(3)]
    assert not any(one.success for one in found) and found[0].transcript
    assert len(suite.digest()) == 64


def counted(policy: Endpoint, seed: int) -> list[Mapping[str, Any]]:
    """A user's suite: asks in its own thread, as any client of the API does."""
    answer = httpx.post(
        f"{policy.base_url}/chat/completions",
        json={"model": policy.model, "messages": [{"role": "user", "content": "count"}]},
        headers={"Authorization": f"Bearer {policy.key}"},
        trust_env=False,
    )
    text = answer.json()["choices"][0]["message"]["content"]
    return [{"item_id": "one", "score": float(text == "base: count"), "success": text == "base: count"}]


async def test_a_function_of_the_user_is_a_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = await find(f"{__name__}:counted", Sources())
    async with serve_policy(ScriptedEngine(), None) as policy:
        (found,) = await suite.run(policy, seed=0)
    assert (found.item_id, found.score, found.success) == ("one", 1.0, True)


def broken(policy: Endpoint, seed: int) -> list[Mapping[str, Any]]:
    raise KeyError("choices")


def damaged(policy: Endpoint, seed: int) -> list[Mapping[str, Any]]:
    return [{"item_id": "one", "score": 1.0, "success": True}, {"id": 3}]


async def test_a_function_that_raises_is_one_sentence_with_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        await run(await find(f"{__name__}:broken", Sources()), None)
    line = broken.__code__.co_firstlineno + 1
    assert str(caught.value) == (
        f"{__name__}:broken raised KeyError: 'choices' ({Path(__file__).name}, line {line}): "
        "correct the function."
    )
    assert isinstance(caught.value.__cause__, KeyError)


async def test_a_result_that_cannot_be_used_is_named_by_its_number() -> None:
    with pytest.raises(ConfigError, match=f"^Result 2 of {__name__}:damaged cannot be used: give item_id"):
        await run(await find(f"{__name__}:damaged", Sources()), None)


async def test_a_module_that_is_not_found_says_how_to_name_a_file() -> None:
    with pytest.raises(
        NotFoundError,
        match=r"needs the module 'no_such', which is neither in .* in the folder of no_such\.py",
    ):
        await find("no_such:judge", Sources())


@pytest.mark.parametrize(
    ("changes", "final", "solved"),
    [
        ({}, "it is 6", True),
        ({}, "It is 7.", False),
        ({"expected": ["6", "six"]}, " Six! ", True),
        ({"expected": ["6"]}, "It is 6.", False),
        ({"checks": [{"contains": "6"}, {"not_contains": "sorry"}]}, "that makes 6", True),
        ({"checks": [{"contains": "6"}, {"not_contains": "sorry"}]}, "sorry, 6", False),
        ({"checks": [{"matches": r"^\d+$"}]}, "66", True),
        ({"checks": [{"unknown": 1}]}, "It is 6.", False),
    ],
)
def test_the_end_of_a_task_is_judged(changes: dict[str, Any], final: str, solved: bool) -> None:
    task = RecordedTask(**{**ITEM.document(), **changes})
    assert judge(task, final, [], [])[0] is solved


async def test_calls_are_answered_from_the_record_whatever_the_order_of_arguments() -> None:
    item = RecordedTask(
        "i", "k", [{"role": "user", "content": "?"}], final="6", answers=2,
        calls=[Call("add", {"a": 2, "b": 4}, "six")],
    )  # fmt: skip

    def script(messages: Any, adapter: str | None) -> str:
        last = messages[-1]["content"]
        if last == "?":
            return said("add", b=9, a=2)
        return said("add", b=4, a=2) if last == UNKNOWN_CALL else "6" if last == "six" else "?"

    (found,) = await run(ReplaySuite("r", [item]), script)
    assert found.success and found.note == "the recorded answer; 1 calls without a recorded result"


async def test_a_policy_that_only_calls_comes_to_an_end() -> None:
    item = RecordedTask("i", "k", [{"role": "user", "content": "?"}], final="6", calls=[Call("add", {}, "0")])
    (found,) = await run(ReplaySuite("r", [item]), lambda messages, adapter: said("add"))
    assert not found.success and sum(m["role"] == "assistant" for m in found.transcript) == 4


async def test_a_rubric_judges_and_one_that_fails_leaves_the_item_unscored() -> None:
    def rubric(task: dict[str, Any], transcript: list[dict[str, Any]]) -> tuple[float, str]:
        return (0.75, "good") if transcript[-1]["content"] == "fine" else (1 / 0, "")

    (found,) = await run(ReplaySuite("r", [ITEM], rubric), lambda messages, adapter: "fine")
    assert (found.score, found.success, found.note) == (0.75, True, "good")
    (found,) = await run(ReplaySuite("r", [ITEM], rubric), lambda messages, adapter: "other")
    assert (found.score, found.success) == (None, False) and "ZeroDivisionError" in found.note


@pytest.mark.parametrize("rule", ["agent", "agent=", "days=soon", "color=red", "agent=a,agent=b"])
def test_a_rule_that_is_not_understood_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match="recorded:"):
        parse(rule)


async def test_items_of_a_file_are_asked_and_judged(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(
        '{"item_id": "a", "prompt": "2+4?", "expected": "6"}\n{"prompt": "x", "expected": ["y"]}\n'
    )
    found = await run(await find(f"file:{file}", Sources()), lambda messages, adapter: "6")
    assert [(one.item_id, one.success) for one in found] == [("a", True), ("2", False)]
    file.write_text('{"item_id": "a", "prompt": "2+4?"}\n')
    with pytest.raises(ConfigError, match="neither 'expected' nor 'checks'"):
        await find(f"file:{file}", Sources())
    file.write_text("[]\n")
    with pytest.raises(ConfigError, match="line 1 is no item"):
        await find(f"file:{file}", Sources())
