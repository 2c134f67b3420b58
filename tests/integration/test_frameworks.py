"""The programs of ``examples/frameworks`` against a gateway: each question is one trajectory."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from capture_world import close, trajectories

PROGRAMS = Path(__file__).parents[2] / "examples" / "frameworks"
OURS = ("langgraph", "openai_agents", "pydantic_ai", "smolagents")
"""Frameworks that install beside Onward. The others need a Python of their own, named in the environment."""
OTHERS = {name: os.environ.get(f"ONWARD_{name.upper()}_PYTHON") for name in ("autogen", "crewai")}
ASKED = {"What is 6 times 7?": (6, 7, "42"), "What is 8 times 9?": (8, 9, "72")}


def _python(name: str) -> str:
    if name in OURS:
        return sys.executable
    found = OTHERS[name]
    if not found:
        pytest.skip(f"ONWARD_{name.upper()}_PYTHON names no Python that has {name}")
    return found


def _script(messages: Any, adapter: str | None) -> str:
    """The model of these tests: multiplies with the tool, then answers with its result."""
    text = json.dumps(messages)
    (question,) = (question for question in ASKED if question in text)
    x, y, product = ASKED[question]
    if not any(message["role"] == "tool" or "42" in text or "72" in text for message in messages):
        return json.dumps({"tool_name": "multiply", "tool_args": {"x": x, "y": y}})
    if "final_answer" in text:
        return json.dumps({"tool_name": "final_answer", "tool_args": {"answer": product}})
    return product


def _in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trajectories by the first question that their first turn contains."""
    texts = {id(one): json.dumps(one["turns"][0]["observation"]) for one in found}
    return [one for question in ASKED for one in found if question in texts[id(one)]]


@pytest.mark.parametrize("name", [*OURS, *OTHERS])
async def test_a_program_of_the_page_makes_one_trajectory_a_question_though_a_call_is_repeated(
    world, nats_server, tmp_path, name
):
    world.engine.script = _script
    world.engine.max_context = 32_768  # prompts of smolagents are long, and a token is a byte here
    failures = iter((True,))
    world.engine.fail = lambda adapter, session: next(failures, False)
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{world.gateway.server.url}/v1",
        "OPENAI_API_KEY": (world.settings.run_dir / "api.key").read_text(),
        "NATS_URL": nats_server.url.replace("nats://", f"nats://{nats_server.token}@"),
        "CREWAI_DISABLE_TELEMETRY": "true",
        "OTEL_SDK_DISABLED": "true",
    }
    program = await asyncio.create_subprocess_exec(
        *(_python(name), str(PROGRAMS / f"{name}_agent.py"), *ASKED),
        env=environment,
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(program.communicate(), 120)
    assert program.returncode == 0, errors.decode()
    assert out.decode().split() == ["42", "72"]
    found = await trajectories(world, 2)
    for (_, _, product), one in zip(ASKED.values(), _in_order(found), strict=True):
        assert product in json.dumps(one["turns"][-1]["action"])
    for one in found:
        assert one["metadata"]["outcome"] == {"status": "completed_successfully"}
        calls = [turn["action"].get("tool_name") for turn in one["turns"]]
        assert calls in (["multiply", None], ["multiply", "final_answer"])
    assert len({one["session_id"] for one in found}) == 2


def test_a_program_without_a_question_says_what_to_give() -> None:
    """One program is run; that the others begin alike is compared, since an import takes seconds."""
    programs = {name: (PROGRAMS / f"{name}_agent.py").read_text() for name in (*OURS, *OTHERS)}
    ends = {text[text.index("if __name__") :] for text in programs.values()}
    assert len(ends) == 1
    done = subprocess.run(
        [sys.executable, PROGRAMS / "openai_agents_agent.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "the following arguments are required: QUESTION" in done.stderr


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
