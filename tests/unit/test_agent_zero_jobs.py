"""Recording what newer versions of Agent Zero do: subordinates in chats of their own, jobs in the background,
calls in fields of their own, and work that ends without a hook."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_zero_host import Agent, Host, Line, UserMessage, say
from agent_zero_tools import call_subordinate_in_own_chat
from agent_zero_world import Collected, collecting


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path) as host:
        yield host


@pytest.fixture
def seen(host: Host) -> Collected:
    return collecting(host)


def script(host: Host, *answers: str) -> None:
    """The main agent gives these answers in turn, a subordinate the final answer "sub"."""
    given = iter(answers)
    host.model = lambda agent, lines: say("response", text="sub") if agent.number else next(given)


async def test_a_subordinate_in_a_chat_of_its_own_is_nested_and_stops_with_its_superior(
    host: Host, seen: Collected
) -> None:
    host.tools["call_subordinate"] = call_subordinate_in_own_chat
    reached = asyncio.Event()

    async def hang(agent: Agent, args: dict[str, Any]) -> str:
        agent.context.kill_process()  # this chat has no task of its own: nothing is stopped
        reached.set()
        await asyncio.sleep(60)
        return ""

    host.tools["hang"] = hang

    def model(agent: Agent, lines: list[Line]) -> str:
        profile = ("researcher", "developer", "")[agent.number]
        return say("call_subordinate", profile=profile, message="dig") if agent.number < 2 else say("hang")

    host.model = model
    context = host.context()
    running = asyncio.ensure_future(host.ask("Delegate", context))
    await reached.wait()
    assert host.runtime.recording.in_progress == 3 and seen.documents() == []
    context.kill_process()
    await running
    deepest, middle, main = seen.documents()
    assert [one["metadata"]["outcome"]["status"] for one in (main, middle, deepest)] == ["abandoned"] * 3
    assert deepest["metadata"]["parent_trajectory_id"] == middle["trajectory_id"]
    assert middle["metadata"]["parent_trajectory_id"] == main["trajectory_id"]
    assert main["turns"][0]["result"]["subordinate_trajectories"] == [middle["trajectory_id"]]
    assert deepest["turns"][0]["result"]["error"] == "stopped by the user (kill_process)"


async def test_jobs_in_the_background_belong_to_the_turn_that_started_them(
    host: Host, seen: Collected
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(agent: Agent, args: dict[str, Any]) -> str:
        begun.set()
        await may_end.wait()
        return f"ran {args['cmd']}"

    async def look(agent: Agent, args: dict[str, Any]) -> str:
        await begun.wait()
        may_end.set()
        await asyncio.sleep(0.05)
        return "looked"

    host.tools.update(slow=slow, look=look)
    calls = [
        {"tool_name": "call_subordinate", "tool_args": {"message": "one"}},
        {"tool_name": "slow", "tool_args": {"cmd": "make"}},
    ]
    script(host, say("parallel", action="start", tool_calls=calls), say("look"), say("response", text="ok"))
    assert await host.ask("In the background") == "ok"
    below, main = seen.documents()
    start, job, seek, last = main["turns"]
    assert start["action"]["parallel_calls"] == [{"tool_name": "slow", "tool_args": {"cmd": "make"}}]
    assert start["result"]["subordinate_trajectories"] == [below["trajectory_id"]]
    assert job["observation"]["content"] == {"same_as_turn": 1} and job["result"]["output"] == "ran make"
    assert seek["result"]["output"] == "looked" and last["result"]["output"] == "ok"
    assert below["metadata"]["parent_trajectory_id"] == main["trajectory_id"]


async def test_a_cancelled_job_is_abandoned_at_the_next_tick(host: Host, seen: Collected) -> None:
    begun = asyncio.Event()

    async def hang(agent: Agent, args: dict[str, Any]) -> str:
        begun.set()
        await asyncio.sleep(60)
        return ""

    async def wait(agent: Agent, args: dict[str, Any]) -> str:
        await begun.wait()
        return "it runs"

    host.tools.update(hang=hang, wait=wait)
    calls = [{"tool_name": "call_subordinate", "tool_args": {"message": "one"}}]
    answers = [
        say("parallel", action="start", tool_calls=calls),
        say("wait"),
        say("parallel", action="cancel"),
        say("response", text="ok"),
    ]
    script(host, *answers)
    main_model = host.model
    host.model = lambda agent, lines: say("hang") if agent.number else main_model(agent, lines)
    assert await host.ask("Start and end a job") == "ok"
    host.runtime.tick()
    main, below = seen.documents()
    assert main["metadata"]["outcome"] == {"status": "completed_successfully"}
    assert below["metadata"]["outcome"] == {"status": "abandoned"}
    assert below["turns"][0]["result"]["error"] == "cancelled by Agent Zero"
    assert main["turns"][0]["result"]["subordinate_trajectories"] == [below["trajectory_id"]]


async def test_text_beside_a_call_in_a_field_of_its_own_is_a_thought(
    host: Host, seen: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = Agent.process_tools

    async def process(
        agent: Agent, text: str
    ) -> Any:  # the loop runs the calls of an answer's own fields itself
        if text != "I look at both.":
            return await parse(agent, text)
        for cmd in ("ls", "pwd"):
            await agent.execute_tool("shell", {"cmd": cmd})
        return None

    async def shell(agent: Agent, args: dict[str, Any]) -> str:
        return f"ran {args['cmd']}"

    monkeypatch.setattr(Agent, "process_tools", process)
    host.tools["shell"] = shell
    script(host, "I look at both.", say("response", text="ok"))
    assert await host.ask("Look") == "ok"
    first, second, last = seen.documents()[0]["turns"]
    assert first["thought_process"] == ["I look at both."] and "thought_process" not in second
    assert [one["action"]["tool_args"] for one in (first, second)] == [{"cmd": "ls"}, {"cmd": "pwd"}]
    assert last["action"]["type"] == "response"


async def test_an_answer_that_is_cut_while_it_streams_is_cancelled_and_no_missing_result(
    host: Host, seen: Collected
) -> None:
    context = host.context()
    asked = 0

    def model(agent: Agent, lines: list[Line]) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            context.communicate(UserMessage("Shorter, please."))
        return say("response", text="ok")

    host.model = model
    assert await host.ask("Tell a story", context) == "ok"
    first, last = seen.documents()[0]["turns"]
    assert first["result"] == {
        "success": False,
        "error": "cancelled: the user wrote before the answer was complete",
        "interventions": ["Shorter, please."],
    }
    assert last["observation"]["type"] == "user_message" and last["result"]["success"]


async def test_a_task_that_was_cancelled_without_a_hook_is_abandoned_at_the_next_tick(
    host: Host, seen: Collected
) -> None:
    async def vanish(agent: Agent, args: dict[str, Any]) -> str:
        agent.context.task.cancel()  # type: ignore[union-attr]  # as the scheduler does
        await asyncio.sleep(10)
        return ""

    host.tools["vanish"] = vanish
    script(host, say("vanish"))
    await host.ask("Go")
    assert seen.documents() == [] and host.runtime.recording.in_progress == 1
    host.runtime.tick()
    (document,) = seen.documents()
    assert document["metadata"]["outcome"] == {"status": "abandoned"}
    assert document["turns"][0]["result"]["error"] == "cancelled by Agent Zero"
