"""The recording core in Agent Zero's event order: what becomes a task, a turn, an action and a result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_zero_host import (
    Agent,
    AgentContext,
    Config,
    Host,
    Kind,
    Line,
    Message,
    ModelWrapper,
    TemporaryError,
    UserMessage,
    say,
)
from agent_zero_world import Collected, collecting


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path) as host:
        yield host


@pytest.fixture
def seen(host: Host) -> Collected:
    return collecting(host)


def script(host: Host, *answers: Any, below: Any = ("sub",)) -> list[list[Line]]:
    """The main agent gives these answers in turn, each subordinate the answers ``below``. Returns the prompts
    that the model was shown."""
    shown: list[list[Line]] = []
    given: dict[int, int] = {}

    def model(agent: Agent, lines: list[Line]) -> str:
        shown.append(list(lines))
        place = given[id(agent)] = given.get(id(agent), -1) + 1
        mine = answers if agent.number == 0 else [say("response", text=one) for one in below]
        answer = mine[min(place, len(mine) - 1)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    host.model = model
    return shown


async def shell(agent: Agent, args: dict[str, Any]) -> str:
    return f"ran {args['cmd']}"


async def test_a_task_has_a_turn_for_each_call_of_the_model(host: Host, seen: Collected) -> None:
    host.tools["shell"] = shell
    script(host, say("shell", "Look first.", cmd="ls"), say("response", text="Two files."))
    assert await host.ask("How many files?", attachments=["/a/b/plan.pdf"]) == "Two files."
    (document,) = seen.documents(host="v1.7")
    assert document["task_context"]["instructions"] == "How many files?"
    assert document["task_context"]["attachments"] == ["plan.pdf"]
    assert document["metadata"]["outcome"] == {"status": "completed_successfully"}
    assert document["metadata"]["agent_zero"]["version"] == "v1.7"
    first, last = document["turns"]
    assert first["thought_process"] == ["Look first."]
    assert first["action"]["type"] == "tool_call"
    assert (first["action"]["tool_name"], first["action"]["tool_args"]) == ("shell", {"cmd": "ls"})
    assert first["result"]["success"] and first["result"]["output"] == "ran ls"
    assert last["action"]["type"] == "response" and last["observation"]["type"] == "tool_result"
    assert "ran ls" in last["observation"]["content"]


async def test_a_prompt_is_stored_once_and_only_what_is_new_afterwards(host: Host, seen: Collected) -> None:
    host.tools["shell"] = shell
    shown = script(host, *(say("shell", cmd=str(n)) for n in range(3)), say("response", text="ok"))
    await host.ask("Go")
    (document,) = seen.documents()
    first = document["turns"][0]["observation"]["content"]["messages"]
    assert [one["content"] for one in first] == [line.content for line in shown[0]]
    for number in (1, 2, 3):  # exactly the last message of what the model was shown
        assert document["turns"][number]["observation"]["content"] == shown[number][-1].content


async def test_trap_a_history_that_is_compressed_in_place_is_not_the_source(
    host: Host, seen: Collected
) -> None:
    async def compress(agent: Agent, args: dict[str, Any]) -> str:
        agent.history.topics.clear()
        agent.history.current.messages[:] = [Message(False, "Summary: nothing of importance.")]
        return "compressed"

    host.tools["compress"] = compress
    shown = script(host, say("compress"), say("response", text="ok"))
    await host.ask("A long story " * 50)
    (document,) = seen.documents()
    before, after = document["turns"]
    assert "A long story" in before["observation"]["content"]["messages"][1]["content"]
    assert after["observation"]["context"] == {"memory_state": {"history_rewritten": True}}
    assert [one["content"] for one in after["observation"]["content"]["messages"]] == [
        line.content for line in shown[1]
    ]


async def test_trap_b_the_response_tool_stores_no_result_and_the_final_text_is_the_output(
    host: Host, seen: Collected
) -> None:
    script(host, say("response", text="All done."))
    await host.ask("Do it")
    (document,) = seen.documents()
    assert document["turns"][-1]["result"]["output"] == "All done."


async def test_trap_c_an_interrupted_tool_has_its_progress_as_result(host: Host, seen: Collected) -> None:
    context = host.context()

    async def slow(agent: Agent, args: dict[str, Any]) -> str:
        agent.loop_data.current_tool.progress = "half of it"
        context.communicate(UserMessage("Stop that."))
        return "all of it"

    host.tools["slow"] = slow
    script(host, say("slow"), say("response", text="stopped"))
    assert await host.ask("Work", context) == "stopped"
    (document,) = seen.documents()
    first, last = document["turns"]
    assert first["result"]["output"] == "half of it" and not first["result"]["success"]
    assert first["result"]["error"].startswith("interrupted")
    assert first["result"]["interventions"] == ["Stop that."]
    assert last["observation"]["type"] == "user_message" and "Stop that." in last["observation"]["content"]


async def test_trap_d_a_long_result_is_whole(host: Host, seen: Collected) -> None:
    async def long(agent: Agent, args: dict[str, Any]) -> str:
        return "x" * 60_000

    host.tools["long"] = long
    script(host, say("long"), say("response", text="ok"))
    await host.ask("Print much")
    assert seen.documents()[0]["turns"][0]["result"]["output"] == "x" * 60_000


async def test_arguments_are_those_before_the_host_puts_secrets_in(host: Host, seen: Collected) -> None:
    place = host.root / "extensions" / "python" / "tool_execute_before"
    place.mkdir(parents=True)
    (place / "_10_unmask_secrets.py").write_text(
        "from helpers.extension import Extension\n"
        "class Unmask(Extension):\n"
        "    async def execute(self, tool_args=None, **_):\n"
        "        tool_args['login']['password'] = 'open sesame'\n"
    )
    used = []

    async def login(agent: Agent, args: dict[str, Any]) -> str:
        used.append(args["login"]["password"])
        return "in"

    host.tools["login"] = login
    script(host, say("login", login={"password": "§§secret(DOOR)"}), say("response", text="ok"))
    await host.ask("Enter")
    assert used == ["open sesame"]
    assert seen.documents()[0]["turns"][0]["action"]["tool_args"] == {"login": {"password": "§§secret(DOOR)"}}


async def test_subordinates_are_nested_and_linked_to_the_turn_of_their_superior(
    host: Host, seen: Collected
) -> None:
    def model(agent: Agent, lines: list[Line]) -> str:
        rounds = agent.loop_data.iteration
        if agent.number == 2 or rounds == 1:
            return say("response", text=f"from {agent.number}")
        profile = "developer" if agent.number else "researcher"
        return say("call_subordinate", profile=profile, message=f"task {agent.number}")

    host.model = model
    assert await host.ask("Delegate") == "from 0"
    deepest, middle, main = seen.documents()
    assert [one["agent_id"] for one in (main, middle, deepest)] == [
        "agent-zero-main", "subordinate-researcher-1", "subordinate-developer-2"
    ]  # fmt: skip
    assert (middle["subordinate_profile"], deepest["subordinate_profile"]) == ("researcher", "developer")
    assert middle["metadata"]["parent_trajectory_id"] == main["trajectory_id"]
    assert deepest["metadata"]["parent_trajectory_id"] == middle["trajectory_id"]
    assert main["turns"][0]["result"]["subordinate_trajectories"] == [middle["trajectory_id"]]
    assert main["turns"][0]["action"]["type"] == "subordinate_call"
    assert main["turns"][1]["observation"]["type"] == "subordinate_response"
    assert {one["session_id"] for one in (main, middle, deepest)} == {f"a0-{main['trajectory_id']}"}


async def test_parallel_subordinates_and_tools_belong_to_the_call_that_started_them(
    host: Host, seen: Collected
) -> None:
    host.tools["shell"] = shell
    calls = [
        {"tool_name": "call_subordinate", "tool_args": {"message": "one", "profile": "hacker"}},
        {"tool_name": "call_subordinate", "tool_args": {"message": "two", "profile": "hacker"}},
        {"tool_name": "shell", "tool_args": {"cmd": "ls"}},
    ]
    script(host, say("parallel", tool_calls=calls), say("response", text="ok"))
    await host.ask("All at once")
    first, second, main = seen.documents()
    assert {first["task_context"]["instructions"], second["task_context"]["instructions"]} == {"one", "two"}
    assert [one["metadata"]["parent_trajectory_id"] for one in (first, second)] == [main["trajectory_id"]] * 2
    parallel, inner, last = main["turns"]
    assert sorted(parallel["result"]["subordinate_trajectories"]) == sorted(
        [first["trajectory_id"], second["trajectory_id"]]
    )
    assert parallel["action"]["parallel_calls"] == [{"tool_name": "shell", "tool_args": {"cmd": "ls"}}]
    assert inner["observation"]["content"] == {"same_as_turn": 1} and inner["result"]["output"] == "ran ls"
    assert last["action"]["type"] == "response"


async def test_a_tool_that_asks_the_model_makes_no_turn(host: Host, seen: Collected) -> None:
    async def translate(agent: Agent, args: dict[str, Any]) -> str:
        text, _ = await agent.call_chat_model([Line("human", "Translate: oak")])
        return text

    host.tools["translate"] = translate
    script(host, say("translate"), "Eiche", say("response", text="ok"))
    await host.ask("Translate oak")
    first, last = seen.documents()[0]["turns"]
    assert first["result"]["output"] == "Eiche" and first["action"]["model_further_calls"] == 1
    assert last["result"]["output"] == "ok"


async def test_answers_that_cannot_be_used_are_failures_with_their_reason(
    host: Host, seen: Collected
) -> None:
    script(host, "no call", say("magic", wand=1), say("magic", wand=1), say("response", text="ok"))
    await host.ask("Try")
    errors = [turn["result"].get("error") for turn in seen.documents()[0]["turns"]]
    assert errors == [
        "unparsable: You have misformatted your message.",
        "Tool magic not found.",
        "repeated: the same answer as before",
        None,
    ]


async def test_a_failed_call_of_the_model_is_a_turn_and_the_retry_the_next(
    host: Host, seen: Collected
) -> None:
    script(host, TemporaryError("overloaded"), say("response", text="ok"))
    assert await host.ask("Try") == "ok"
    first, last = seen.documents()[0]["turns"]
    assert first["result"] == {
        "success": False,
        "error": "message_loop: TemporaryError: overloaded",
        "warnings": ["overloaded"],
        "errors": ["message_loop: TemporaryError: overloaded"],
    }
    assert last["result"]["success"]


async def test_a_tool_that_raises_ends_a_task_as_failed(host: Host, seen: Collected) -> None:
    async def broken(agent: Agent, args: dict[str, Any]) -> str:
        raise ValueError("no such table")

    host.tools["broken"] = broken
    script(host, say("broken"))
    await host.ask("Query")
    (document,) = seen.documents()
    assert document["metadata"]["outcome"] == {"status": "failed"}
    assert document["turns"][0]["result"]["error"] == "ValueError: no such table"


@pytest.mark.parametrize("how", ["kill_process", "reset", "nudge", "remove"])
async def test_a_task_that_the_user_stops_is_abandoned(host: Host, seen: Collected, how: str) -> None:
    reached = asyncio.Event()

    async def hang(agent: Agent, args: dict[str, Any]) -> str:
        reached.set()
        await asyncio.sleep(60)
        return ""

    host.tools["hang"] = hang
    script(host, say("hang"), say("response", text="again"))
    context = host.context()
    running = asyncio.ensure_future(host.ask("Wait", context))
    await reached.wait()
    AgentContext.remove(context.id) if how == "remove" else getattr(context, how)()
    await running
    if how == "nudge":
        assert context.task is not None
        await context.task
    document, *later = seen.documents()
    assert document["metadata"]["outcome"] == {"status": "abandoned"}
    assert document["metadata"]["capture"]["closed"] == how
    assert document["turns"][0]["result"]["error"] == f"stopped by the user ({how})"
    assert len(later) == (1 if how == "nudge" else 0)


async def test_an_answer_that_an_intervention_cuts_is_kept(host: Host, seen: Collected) -> None:
    context = host.context()
    asked = 0

    async def model(agent: Agent) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            context.communicate(UserMessage("Shorter, please."))
            agent.handle_intervention("Once upon a")  # as Agent Zero does when the answer has just ended
        return say("response", text="ok")

    host.model = lambda agent, lines: model(agent)
    assert await host.ask("Tell a story", context) == "ok"
    first, last = seen.documents()[0]["turns"]
    assert first["action"]["raw_response"] == "Once upon a"
    assert first["result"]["error"].startswith("cancelled")
    assert first["result"]["interventions"] == ["Shorter, please."]
    assert "errors" not in first["result"] and last["result"]["success"]


async def test_a_run_of_the_scheduler_is_a_task(host: Host, seen: Collected) -> None:
    context = host.context(Kind.TASK)
    context.agent0.hist_add_user_message(UserMessage("Every night"))
    assert await context.agent0.monologue() == "done"  # without a chain, and without a task of the context
    (document,) = seen.documents()
    assert document["metadata"]["agent_zero"]["kind"] == "task"
    assert document["task_context"]["instructions"] == "Every night"


async def test_background_contexts_are_skipped(host: Host, seen: Collected) -> None:
    await host.ask("Summarise the memory", host.context(Kind.BACKGROUND))
    assert seen.events == []


async def test_after_a_restart_the_superior_goes_on_as_a_task_of_its_own(host: Host, seen: Collected) -> None:
    context = host.context()
    below = Agent(1, Config("researcher"), context)
    below.data["_superior"] = context.agent0
    context.streaming = below  # as read from chat.json: the stack of calls is gone
    script(host, say("response", text="main"))
    assert await host.ask("Go on", context) == "main"
    first, second = seen.documents()
    assert (first["agent_id"], second["agent_id"]) == ("subordinate-researcher-1", "agent-zero-main")
    assert second["task_context"]["instructions"] == "sub"
    assert second["turns"][0]["result"]["success"]


async def test_ids_follow_from_the_message_and_a_second_run_has_another(host: Host, seen: Collected) -> None:
    import uuid

    context = host.context(id="chat0001")
    await host.ask("Hi", context, id="11111111-1111-1111-1111-111111111111")
    await context.agent0.monologue()
    first, second = seen.documents()
    space = uuid.UUID("6d2f0a0e-6a0c-5d27-9f53-4f1ad7a8a0c1")
    name = "chat0001\x1f0\x1f11111111-1111-1111-1111-111111111111"
    assert first["trajectory_id"] == str(uuid.uuid5(space, name))
    assert second["trajectory_id"] != first["trajectory_id"]


async def test_an_answer_is_found_by_the_id_of_its_message(host: Host, seen: Collected) -> None:
    host.tools["shell"] = shell
    script(host, say("shell", cmd="ls"), say("response", text="ok"))
    context = host.context()
    await host.ask("Hi", context)
    (document,) = seen.documents()
    answers = [one.id for one in context.agent0.history.all() if one.ai]
    assert host.runtime.link(context.id, answers[-1]) == {
        "trajectory_id": document["trajectory_id"],
        "turn_id": 2,
        "session_id": document["session_id"],
    }
    assert document["turns"][1]["action"]["message_id"] == answers[-1]
    assert host.runtime.link(context.id, "other") is None


async def test_calls_to_our_gateway_name_the_session_and_others_are_left_alone(
    host: Host, seen: Collected
) -> None:
    host.runtime.recording.gateway_url = "http://127.0.0.1:3000"
    ours = {"api_base": "http://127.0.0.1:3000/v1", "extra_headers": {"X-Own": "1"}}
    shared = ModelWrapper("openai/onward", dict(ours))
    host.new_model = lambda: shared
    await host.ask("Hi")
    host.new_model = lambda: ModelWrapper("openai/gpt", {"api_base": "https://api.example.com/v1"})
    await host.ask("Hi")
    first, second = seen.documents(model="agent-zero-rl-v7")
    assert ours["extra_headers"] == {"X-Own": "1"} and shared.kwargs == ours  # a parallel agent may use it
    assert host.models[0].kwargs["extra_headers"] == {
        "X-Own": "1",
        "Onward-Session": first["session_id"],
        "Onward-Capture": "off",
        "Onward-Records": first["trajectory_id"],
    }
    assert host.models[1].kwargs == {"api_base": "https://api.example.com/v1"}
    assert (first["metadata"]["model"], second["metadata"]["model"]) == ("agent-zero-rl-v7", "openai/gpt")


async def test_reasoning_comes_before_the_written_thoughts(host: Host, seen: Collected) -> None:
    host.reasoning = "Hidden thinking."
    script(host, say("response", "Written.", text="ok"))
    await host.ask("Hi")
    assert seen.documents()[0]["turns"][0]["thought_process"] == ["Hidden thinking.", "Written."]


async def test_a_task_that_ends_before_its_model_was_asked_has_one_turn(host: Host, seen: Collected) -> None:
    context = host.context()
    host.extensions.roots.append(_raising(host.root / "broken", "before_main_llm_call"))
    await host.ask("Hi", context)
    (document,) = seen.documents()
    assert document["metadata"]["outcome"] == {"status": "failed"}
    assert document["turns"][0]["observation"]["content"] == "Hi"
    assert document["turns"][0]["result"]["error"] == "RuntimeError: another plugin"


async def test_a_silent_task_is_abandoned_after_hours(
    host: Host, seen: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    from usr.plugins.onward.helpers import recording  # type: ignore

    async def wait(agent: Agent, args: dict[str, Any]) -> str:
        host.runtime.tick()
        assert seen.documents() == []
        monkeypatch.setattr(recording, "SILENT_SECONDS", -1.0)
        host.runtime.tick()
        return "late"

    host.tools["wait"] = wait
    script(host, say("wait"), say("response", text="ok"))
    assert await host.ask("Go") == "ok"
    (document,) = seen.documents()
    assert document["metadata"]["outcome"] == {"status": "abandoned"}
    assert document["turns"][0]["result"]["error"] == "no event of this task came for six hours"


async def test_a_task_above_its_limit_leaves_whole_values_out(host: Host, seen: Collected) -> None:
    host.runtime.recording.limit = 20_000

    async def long(agent: Agent, args: dict[str, Any]) -> str:
        return "y" * 9_000

    host.tools["long"] = long
    script(host, *(say("long", n=n) for n in range(4)), say("response", text="ok"))
    await host.ask("Print")
    outputs = [turn["result"]["output"] for turn in seen.documents()[0]["turns"]]
    assert outputs[0] == "y" * 9_000 and outputs[-1] == "ok"
    assert outputs[3] == "[left out: the task is larger than max_trajectory_mb]"


async def test_pause_forgets_what_runs_and_takes_nothing_new(host: Host, seen: Collected) -> None:
    async def switch(agent: Agent, args: dict[str, Any]) -> str:
        host.runtime.pause(True)
        return "off"

    host.tools["switch"] = switch
    script(host, say("switch"), say("response", text="ok"))
    await host.ask("Switch off")
    await host.ask("Private")
    assert [event["op"] for event in seen.events] == ["open", "turn", "drop"]
    assert host.runtime.status()["state"] == "paused"
    host.runtime.pause(False)
    script(host, say("response", text="ok"))
    await host.ask("Public")
    assert [one["task_context"]["instructions"] for one in seen.documents()] == ["Public"]


async def test_state_survives_a_trimmed_cache_and_reloaded_helpers(host: Host, seen: Collected) -> None:
    async def reload(agent: Agent, args: dict[str, Any]) -> str:
        host.extensions.trim()
        host.purge()
        return "reloaded"

    host.tools["reload"] = reload
    script(host, say("reload"), say("response", text="ok"))
    assert await host.ask("Go") == "ok"
    (document,) = seen.documents()
    assert [turn["result"]["output"] for turn in document["turns"]] == ["reloaded", "ok"]


POINTS = (
    *("start", "end", "call_model", "answer", "message_of_agent", "tool_begins", "tool_ends"),
    *("result_stored", "warning", "error", "user_message", "abort"),
)


@pytest.mark.parametrize("broken", POINTS)
async def test_an_exception_in_each_hook_leaves_the_agent_as_it_is(
    host: Host, seen: Collected, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    runtime = host.runtime
    monkeypatch.setattr(runtime.recording, broken, fail)
    context = host.context()
    answers, prompts = await _eventful(host, context)
    assert runtime.breaker.errors > 0
    assert answers == ["ok", "ValueError", "stopped"]
    for name in [name for name in dir(runtime.recording) if name in POINTS]:
        monkeypatch.setattr(runtime.recording, name, lambda *_: None)
    assert (await _eventful(host, host.context()))[1] == prompts


async def test_twenty_errors_end_the_recording_and_not_the_agent(
    host: Host, seen: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(host.runtime.recording, "tool_begins", fail)
    for _ in range(25):
        assert await host.ask("Hi") == "done"
    status = host.runtime.status()
    assert status["errors"] == 20 and status["state"] == "disabled"
    assert status["reason"] == "20 errors, the last one a KeyError in tool_begins"


async def test_slow_hooks_end_the_recording(host: Host, seen: Collected) -> None:
    breaker = host.runtime.breaker
    for _ in range(49):
        breaker.note_time(20.0)
    assert not breaker.is_open
    breaker.note_time(20.0)
    assert breaker.is_open and breaker.reason.startswith("hooks took 20.0 ms each")


async def test_a_missing_helper_leaves_the_agent_as_it_is(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        (host.plugin / "helpers" / "recording.py").write_text("this is no Python")
        assert await host.ask("Hi") == "done"


async def _eventful(host: Host, context: AgentContext) -> tuple[list[Any], list[str]]:
    """Runs a task with every event; returns what the agent answered and what its model was shown."""
    prompts: list[str] = []
    used = 0

    async def broken(agent: Agent, args: dict[str, Any]) -> str:
        raise ValueError("broken")

    async def write(agent: Agent, args: dict[str, Any]) -> str:
        context.communicate(UserMessage("Wait."))
        return "written"

    async def stop(agent: Agent, args: dict[str, Any]) -> str:
        context.kill_process()
        await asyncio.sleep(10)
        return ""

    host.tools |= {"shell": shell, "broken": broken, "write": write, "stop": stop}
    answers = [
        "none",
        say("shell", cmd="a"),
        say("write"),
        say("response", text="ok"),
        say("broken"),
        say("stop"),
    ]

    def model(agent: Agent, lines: list[Line]) -> str:
        nonlocal used
        prompts.append(json.dumps([line.content for line in lines]))
        used += 1
        return answers[used - 1]

    host.model = model
    told: list[Any] = [await host.ask("Go", context)]
    failed = await host.ask("Break", context)
    told.append(type(failed.args[0]).__name__)
    told.append("stopped" if isinstance(await host.ask("Hang", context), asyncio.CancelledError) else "?")
    return told, prompts


def _raising(folder: Path, point: str) -> Path:
    place = folder / "extensions" / "python" / point
    place.mkdir(parents=True)
    (place / "_50_other.py").write_text(
        "from helpers.extension import Extension\n"
        "class Other(Extension):\n"
        "    async def execute(self, **_):\n"
        "        raise RuntimeError('another plugin')\n"
    )
    return folder
