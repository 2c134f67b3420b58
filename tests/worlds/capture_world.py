"""What the tests of the gateway's capture share: an agent with tools, and the trajectories on the stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from serving_world import World, eventually

from onward.clock import ManualClock
from onward.contracts import Trajectory, decode, to_document
from onward.lm.tokens import Call, rows_from_calls

SYSTEM = {"role": "system", "content": "You are a clerk."}


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"of": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": "Looks.", "parameters": parameters}}


TOOLS = [tool("weather"), tool("stock")]


def call(name: str, of: str) -> dict[str, Any]:
    return {"tool_name": name, "tool_args": {"of": of}}


def saying(*texts: str) -> Callable[..., str]:
    """A script that says these texts, by how many answers the conversation has already."""
    return lambda messages, adapter: texts[sum(m["role"] == "assistant" for m in messages)]


def client(world: World) -> openai.AsyncOpenAI:
    key = (world.settings.run_dir / "api.key").read_text()
    return openai.AsyncOpenAI(base_url=f"{world.gateway.server.url}/v1", api_key=key, max_retries=0)


async def messages_of(world: World, stream: str) -> list[bytes]:
    info = await world.bus.js.stream_info(stream)
    found = [
        await world.bus.js.get_msg(stream, seq=number)
        for number in range(max(1, info.state.first_seq), info.state.last_seq + 1)
    ]
    return [message.data or b"" for message in found]


async def trajectories(world: World, count: int) -> list[dict[str, Any]]:
    """What is on the stream once ``count`` are there, each valid under the contract."""

    async def there() -> list[bytes] | None:
        found = await messages_of(world, "RL_TRAJECTORIES")
        return found if len(found) >= count else None

    found = await eventually(there)
    assert len(found) == count
    return [to_document(decode(data, Trajectory)) for data in found]


async def close(world: World, session: str, **body: Any) -> dict[str, Any]:
    answer = await world.client.post(f"/v1/sessions/{session}/close", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def told(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The turns without times and tokens."""
    return [
        (
            turn["turn_id"],
            turn["observation"]["type"],
            turn["observation"]["content"],
            turn["action"]["type"],
            turn["action"].get("tool_name"),
            turn["action"].get("tool_args"),
            turn["action"].get("raw_response"),
            turn["result"],
        )
        for turn in document["turns"]
    ]


def records(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [turn["action"]["sampling"] for turn in document["turns"] if "sampling" in turn["action"]]


def row_text(document: dict[str, Any]) -> list[str]:
    """The token rows that training would make of it, as text: the scripted engine's tokens are bytes."""
    names = ("prompt_ids", "token_ids", "logprobs", "temperature", "generation_id", "continues")
    rows = rows_from_calls([Call(**{name: record[name] for name in names}) for record in records(document)])
    return [bytes(row.ids).decode() for row in rows]


def open_session(world: World) -> str:
    (only,) = world.gateway.capture._open
    return only.session_id


async def tool_loop(agent: openai.AsyncOpenAI, question: str, **more: Any) -> list[Any]:
    """The plainest of agents: asks, calls what it is told to, until there is an answer."""
    messages: list[Any] = [SYSTEM, {"role": "user", "content": question}]
    while True:
        answer = await agent.chat.completions.create(model="onward", messages=messages, tools=TOOLS, **more)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return messages
        for wanted in message.tool_calls:
            of = json.loads(wanted.function.arguments)["of"]
            result = {"weather": "rain", "stock": "42"}[wanted.function.name] + f" in {of}"
            messages.append({"role": "tool", "tool_call_id": wanted.id, "content": result})


async def moving(clock: ManualClock, work: Any) -> Any:
    """The result of ``work`` while the clock goes on in small steps."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await clock.advance(0.05)
        await asyncio.sleep(0.01)
    return task.result()


class Gate:
    """Stops the engine before its answer, and a close while it waits for that."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.waits, self.opens = asyncio.Event(), asyncio.Event(), asyncio.Event()
        closer = world.gateway.capture.closer
        generate, at_rest = world.engine.generate, closer._at_rest

        async def stopped(*args: Any, **how: Any) -> Any:
            self.asked.set()
            await self.opens.wait()
            return await generate(*args, **how)

        async def waiting(*args: Any) -> Any:
            self.waits.set()
            return await at_rest(*args)

        monkeypatch.setattr(world.engine, "generate", stopped)
        monkeypatch.setattr(closer, "_at_rest", waiting)


async def eventually_in(path: Path, text: bytes) -> None:
    """Until the journal holds ``text``: in its file or in the log beside it."""

    async def there() -> bool:
        return any(text in file.read_bytes() for file in path.parent.glob(path.name + "*"))

    await eventually(there)
