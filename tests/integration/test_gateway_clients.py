"""Clients that people use, unchanged, against the gateway with a real engine: LangChain, LangGraph, OpenAI's
Agents SDK and PydanticAI. The model is random, so what is checked is the form of what they get."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=6)
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=120)


@pytest.fixture(scope="module")
def at(engine_gateway):
    """Address and key of the gateway."""
    world = engine_gateway
    return f"{world.gateway.server.url}/v1", (world.settings.run_dir / "api.key").read_text()


def langchain(at, **more: Any) -> Any:
    from langchain_openai import ChatOpenAI

    url, key = at
    return ChatOpenAI(model="gpt-4o", base_url=url, api_key=key, max_retries=0, max_tokens=2000, **more)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("strict", [True, None])
async def test_langchains_structured_output_is_an_object_of_the_class(at, method, strict):
    model = langchain(at, temperature=1.5).with_structured_output(Person, method=method, strict=strict)
    found = await model.ainvoke("Who is it?")
    assert isinstance(found, Person)


async def test_langchains_json_mode_is_json(at):
    model = langchain(at, seed=3).with_structured_output(None, method="json_mode", include_raw=True)
    found = await model.ainvoke("Answer in JSON.")
    assert isinstance(found["parsed"], dict) or found["raw"].response_metadata["finish_reason"] == "length"


@pytest.mark.parametrize("choice", ["any", "Person"])
async def test_langchains_forced_tool_is_called(at, choice):
    bound = langchain(at).bind_tools([Person], tool_choice=choice, parallel_tool_calls=False)
    answer = await bound.ainvoke("Who is it?")
    (call,) = answer.tool_calls
    assert call["name"] == "Person" and Person(**call["args"])


async def test_a_react_agents_stop_ends_its_thought_in_calls_and_streams(at):
    free = await langchain(at, seed=6).bind(max_tokens=50).ainvoke("Thought:")
    stop = free.content[15:17]
    bound = langchain(at, seed=6).bind(stop=[stop], max_tokens=50)
    cut = await bound.ainvoke("Thought:")
    assert cut.content == free.content[: free.content.find(stop)]
    assert "".join([piece.content async for piece in bound.astream("Thought:")]) == cut.content


async def test_a_langgraph_react_agent_plays_a_tool_and_ends(at):
    from langgraph.prebuilt import create_react_agent

    def find(kind: Literal["cat", "dog"]) -> str:
        """Finds one."""
        return f"a {kind}"

    model = langchain(at)
    turns = iter((model.bind_tools([find], tool_choice="any"), model.bind_tools([find], tool_choice="none")))
    agent = create_react_agent(lambda state, runtime: next(turns), [find])
    said = (await agent.ainvoke({"messages": [("user", "Find one.")]}))["messages"]
    results = [one.content for one in said if one.type == "tool"]
    assert results and set(results) <= {"a cat", "a dog"} and said[-1].type == "ai"


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_agents_sdk_calls_a_tool_and_returns_its_output_type(at, api, streamed):
    import agents

    url, key = at
    client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)
    kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
    called = []

    @agents.function_tool
    def find(kind: Literal["cat", "dog"]) -> str:
        """Finds one."""
        called.append(kind)
        return f"a {kind}"

    agent = agents.Agent(
        name="finder", instructions="Find one.", model=kind("gpt-4o", client), tools=[find],
        output_type=Person,
        model_settings=agents.ModelSettings(
            tool_choice="required", parallel_tool_calls=False, max_tokens=2000
        ),
    )  # fmt: skip
    # After the first call the SDK takes the choice back; then text has to be a Person, or another call.
    config = agents.RunConfig(tracing_disabled=True)
    try:
        if streamed:
            result = agents.Runner.run_streamed(agent, "Who?", run_config=config, max_turns=4)
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, "Who?", run_config=config, max_turns=4)
        assert isinstance(result.final_output, Person)
    except agents.MaxTurnsExceeded:
        pass  # a random model may call the tool forever
    finally:
        await client.close()
    assert called and set(called) <= {"cat", "dog"}


@pytest.mark.parametrize("output", ["tool", "native"])
async def test_pydantic_ai_returns_its_output_type(at, output):
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    url, key = at
    client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)
    model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=client))
    kind: Any = Person if output == "tool" else NativeOutput(Person)
    agent: Any = Agent(model, output_type=kind, model_settings={"max_tokens": 2000, "temperature": 1.2})
    result = await agent.run("Who is it?")
    assert isinstance(result.output, Person)
    await client.close()
