"""The programs of ``examples/frameworks`` against a gateway: each question is one trajectory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from capture_world import close, trajectories

from onward.lm.answer_form import AnswerForm

PROGRAMS = Path(__file__).parents[2] / "examples" / "frameworks"
RUNNER = Path(__file__).parents[1] / "worlds" / "framework_programs.py"
OURS = ("langgraph", "openai_agents", "pydantic_ai", "smolagents")
"""Frameworks that install beside Onward. The others need a Python of their own, named in the environment."""
OTHERS = {name: os.environ.get(f"ONWARD_{name.upper()}_PYTHON") for name in ("autogen", "crewai")}
STRICT = ("openai_agents", "pydantic_ai")
"""Programs whose tools are strict: a real engine answers them under a grammar, and such work trains."""
ASKED = {
    "langgraph": ((61, 67), (71, 73)),
    "openai_agents": ((79, 83), (89, 97)),
    "pydantic_ai": ((43, 47), (53, 59)),
    "smolagents": ((59, 61), (73, 79)),
    "autogen": ((67, 71), (83, 89)),
    "crewai": ((47, 53), (61, 71)),
}
"""Numbers that each program multiplies. No product is in a prompt of a framework. The first is answered
right, the second wrong: by one more than the product."""


def _question(x: int, y: int) -> str:
    return f"What is {x} times {y}?"


def _said(x: int, y: int) -> str:
    wrong = {pairs[1] for pairs in ASKED.values()}
    return str(x * y + ((x, y) in wrong))


def _script(messages: Any, adapter: str | None) -> str:
    """The model of these tests: multiplies with the tool, then answers, right or wrong."""
    text = json.dumps(messages)
    ((x, y),) = {pair for pairs in ASKED.values() for pair in pairs if _question(*pair) in text}
    if str(x * y) not in text:
        return json.dumps({"tool_name": "multiply", "tool_args": {"x": x, "y": y}})
    if "final_answer" in text:
        return json.dumps({"tool_name": "final_answer", "tool_args": {"answer": _said(x, y)}})
    return _said(x, y)


async def _run(world: Any, nats_url: str, folder: Path, python: str, commands: list[list[str]]) -> list[Any]:
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{world.gateway.server.url}/v1",
        "OPENAI_API_KEY": (world.settings.run_dir / "api.key").read_text(),
        "NATS_URL": nats_url,
        "CREWAI_DISABLE_TELEMETRY": "true",
        "OTEL_SDK_DISABLED": "true",
    }
    program = await asyncio.create_subprocess_exec(
        *(python, str(RUNNER), json.dumps(commands)),
        env=environment,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(program.communicate(), 240)
    assert program.returncode == 0, errors.decode()
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("names", [OURS, *((name,) for name in OTHERS)], ids="-".join)
async def test_a_program_of_the_page_makes_one_trajectory_a_question_though_a_call_is_repeated(
    world, nats_server, tmp_path, names
):
    """The outcome is that of the program's check. Without a question each says what to give. Those that
    install beside Onward share one process."""
    python = sys.executable if names == OURS else OTHERS[names[0]]
    if not python:
        pytest.skip(f"ONWARD_{names[0].upper()}_PYTHON names no Python that has {names[0]}")
    world.engine.script = _script
    world.engine.max_context = 32_768  # prompts of smolagents are long, and a token is a byte here
    seen: set[str] = set()
    world.engine.fail = lambda adapter, session: not (session in seen or seen.add(session))
    programs = {name: str(PROGRAMS / f"{name}_agent.py") for name in names}
    asked = [[programs[name], *(_question(*pair) for pair in ASKED[name])] for name in names]
    bus_url = nats_server.url.replace("nats://", f"nats://{nats_server.token}@")
    bare = [[program] for program in programs.values()]
    done = await _run(world, bus_url, tmp_path, python, [*bare, *asked])
    for one in done[: len(names)]:
        assert one["code"] == 2 and one["out"] == ""
        assert "the following arguments are required: QUESTION" in one["errors"]
    answers = [[_said(*pair) for pair in ASKED[name]] for name in names]
    assert [one["out"].split() for one in done[len(names) :]] == answers
    found = await trajectories(world, 2 * len(names))
    for name, pair in [(one, pair) for one in names for pair in ASKED[one]]:
        (one,) = [one for one in found if _question(*pair) in json.dumps(one["turns"][0]["observation"])]
        assert _said(*pair) in json.dumps(one["turns"][-1]["action"]), name
        status = "completed_successfully" if pair == ASKED[name][0] else "failed"
        assert one["metadata"]["outcome"] == {"status": status}, name
        if name in STRICT:
            (tool,) = one["turns"][0]["observation"]["context"]["tools"]
            assert tool["function"]["strict"]
            grammar = AnswerForm([tool]).grammar("words", lambda grammar: grammar)
            assert '"additionalProperties": false' in grammar.source
    for one in found:
        calls = [turn["action"].get("tool_name") for turn in one["turns"]]
        assert calls in (["multiply", None], ["multiply", "final_answer"])
    assert len({one["session_id"] for one in found}) == 2 * len(names)
    assert len(seen) == 2 * len(names)  # each began with a call that failed


async def test_parallel_subagents_are_trajectories_of_their_own_in_the_session_of_their_task(world):
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def script(messages: Any, adapter: str | None) -> str:
        if "Divide the work" not in json.dumps(messages):
            return f"done: {messages[-1]['content']}"
        if messages[-1]["role"] == "tool":
            return "All done."
        wanted = [{"tool_name": "delegate", "tool_args": {"part": part}} for part in ("north", "south")]
        return json.dumps(wanted)

    world.engine.script = script
    world.engine.delay = 0.1
    key = (world.settings.run_dir / "api.key").read_text()
    sdk = AsyncOpenAI(
        base_url=f"{world.gateway.server.url}/v1", api_key=key, default_headers={"Onward-Session": "divided"}
    )
    model = OpenAIChatModel("onward", provider=OpenAIProvider(openai_client=sdk))

    async def delegate(part: str) -> str:
        """Gives a part of the work to a subagent."""
        return (await Agent(model).run(part)).output

    result = await Agent(model, tools=[delegate]).run("Divide the work.")
    assert result.output == "All done."
    closed = await close(world, "divided", status="completed_successfully")
    assert sorted(one["turns"] for one in closed["closed"]) == [1, 1, 3]
    found = await trajectories(world, 3)
    said = sorted(str(one["turns"][0]["observation"]["content"]) for one in found)
    assert said == ["Divide the work.", "north", "south"]
    assert {one["session_id"] for one in found} == {"divided"}
