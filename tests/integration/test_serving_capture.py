"""Agents that only point their OpenAI client at the gateway: their trajectories, word for word."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from capture_world import (
    SYSTEM,
    TOOLS,
    call,
    client,
    close,
    open_session,
    records,
    row_text,
    saying,
    told,
    tool_loop,
    trajectories,
)
from scripted_engine import BASE_DIGEST

from onward.capture import provenance


async def test_one_question_is_one_trajectory(world):
    world.engine.script = saying("It is 42.")
    answer = await client(world).chat.completions.create(
        model="onward", messages=[{"role": "user", "content": "What is 6 times 7?"}]
    )
    assert answer.choices[0].message.content == "It is 42." and answer.choices[0].finish_reason == "stop"
    ours = answer.model_dump()["onward"]
    closed = await close(world, ours["session_id"], status="completed_successfully")
    assert closed["closed"] == [
        {"trajectory_id": ours["trajectory_id"], "session_id": ours["session_id"], "turns": 1}
    ]
    (found,) = await trajectories(world, 1)
    key_hash = next(iter(world.gateway.app.state.keys._keys))
    assert {name: found[name] for name in ("trajectory_id", "session_id", "agent_id", "task_context")} == {
        "trajectory_id": ours["trajectory_id"],
        "session_id": ours["session_id"],
        "agent_id": f"key-{key_hash[:8]}",
        "task_context": {"task_id": ours["trajectory_id"], "instructions": "What is 6 times 7?"},
    }
    assert found["metadata"] == {
        "model": "tiny",
        "temperature": 1.0,
        "total_tokens": len(b"<user>What is 6 times 7?<assistant>It is 42.\0"),
        "outcome": {"status": "completed_successfully"},
        "capture": {"source": "gateway", "closed": "close"},
    }
    assert told(found) == [
        (1, "user_message", "What is 6 times 7?", "response", None, None, "It is 42.", {"success": True})
    ]
    (record,) = records(found)
    assert record == ours["sampling"] and record["model_digest"] == BASE_DIGEST
    assert provenance.verify(record, provenance.load_key(world.settings.run_dir))


PARALLEL = json.dumps([call("weather", "Oslo"), call("stock", "ACME")])
EXPECTED = [
    (
        1,
        "user_message",
        {"messages": [SYSTEM, {"role": "user", "content": "Report."}]},
        "tool_call",
        "weather",
        {"of": "Bergen"},
        json.dumps(call("weather", "Bergen")),
        {"success": True, "output": "rain in Bergen"},
    ),
    (
        2,
        "tool_result",
        "rain in Bergen",
        "tool_call",
        "weather",
        {"of": "Oslo"},
        PARALLEL,
        {"success": True, "output": "rain in Oslo"},
    ),
    (
        3,
        "tool_result",
        {"same_as_turn": 2},
        "tool_call",
        "stock",
        {"of": "ACME"},
        None,
        {"success": True, "output": "42 in ACME"},
    ),
    (
        4,
        "tool_result",
        {"messages": "see below"},
        "response",
        None,
        None,
        "Rain everywhere, ACME at 42.",
        {"success": True},
    ),
]


def expected_turns(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """EXPECTED with the ids that the gateway gave to the two parallel calls."""
    ids = [turn["action"]["tool_call_id"] for turn in document["turns"][1:3]]
    results = [
        {"role": "tool", "content": "rain in Oslo", "tool_call_id": ids[0]},
        {"role": "tool", "content": "42 in ACME", "tool_call_id": ids[1]},
    ]
    last = list(EXPECTED[3])
    last[2] = {"messages": results}
    return [*EXPECTED[:3], tuple(last)]


async def test_tools_and_parallel_calls_word_for_word(world):
    world.engine.script = saying(
        json.dumps(call("weather", "Bergen")), PARALLEL, "Rain everywhere, ACME at 42."
    )
    messages = await tool_loop(client(world), "Report.")
    assert messages[-1].content == "Rain everywhere, ACME at 42."
    await close(world, open_session(world), status="completed_successfully", completion_percentage=1.0)
    (found,) = await trajectories(world, 1)
    assert told(found) == expected_turns(found)
    first = found["turns"][0]["observation"]["context"]
    assert first == {"available_tools": ["weather", "stock"], "tools": TOOLS}
    assert all("context" not in turn["observation"] for turn in found["turns"][1:])
    assert found["turns"][1]["action"]["parallel_calls"] == [call("stock", "ACME")]
    assert found["task_context"]["instructions"] == "Report."
    # Each sampled token once, and one row, whatever the client made of the calls on their way back.
    assert [record["continues"] for record in records(found)] == [
        None,
        *[record["generation_id"] for record in records(found)[:-1]],
    ]
    (row,) = row_text(found)
    assert row == (
        json.dumps(TOOLS)
        + "<system>You are a clerk.<user>Report.<assistant>"
        + json.dumps(call("weather", "Bergen"))
        + "\0<tool>rain in Bergen<assistant>"
        + PARALLEL
        + "\0<tool>rain in Oslo<tool>42 in ACME<assistant>Rain everywhere, ACME at 42.\0"
    )


async def test_streaming_with_tools_gives_the_same_trajectory(world):
    world.engine.script = saying(
        json.dumps(call("weather", "Bergen")), PARALLEL, "Rain everywhere, ACME at 42."
    )
    world.engine.piece = 5
    agent = client(world)
    messages: list[Any] = [SYSTEM, {"role": "user", "content": "Report."}]
    reasons = []
    while True:
        stream = await agent.chat.completions.create(
            model="onward",
            messages=messages,
            tools=TOOLS,
            stream=True,
            stream_options={"include_usage": True},
        )
        content, calls, usage = "", {}, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                for part in choice.delta.tool_calls or []:
                    known = calls.setdefault(
                        part.index, {"id": part.id, "name": part.function.name, "arguments": ""}
                    )
                    known["arguments"] += part.function.arguments or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
        assert usage is not None and usage.completion_tokens > 0
        if not calls:
            break
        assert content == ""
        shown = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls.values()
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": shown})
        for each in shown:
            of = json.loads(each["function"]["arguments"])["of"]
            result = {"weather": "rain", "stock": "42"}[each["function"]["name"]] + f" in {of}"
            messages.append({"role": "tool", "tool_call_id": each["id"], "content": result})
    assert content == "Rain everywhere, ACME at 42." and reasons == ["tool_calls", "tool_calls", "stop"]
    await close(world, open_session(world))
    (found,) = await trajectories(world, 1)
    assert told(found) == expected_turns(found)
    assert len(row_text(found)) == 1 and "outcome" not in found["metadata"]


async def test_content_comes_piece_by_piece(world):
    world.engine.script = saying("one two three four")
    world.engine.piece, world.engine.pause = 4, 0.05
    stream = await client(world).chat.completions.create(
        model="onward", messages=[{"role": "user", "content": "Count."}], stream=True
    )
    pieces = [c.choices[0].delta.content async for c in stream if c.choices[0].delta.content]
    assert "".join(pieces) == "one two three four" and len(pieces) >= 3


async def test_the_ordinary_client_needs_nothing_else(world):
    """Synchronous, in a thread of its own, plain and as a stream."""

    def work(url: str, key: str) -> list[str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as agent:
            asked = [{"role": "user", "content": "Say it."}]
            plain = agent.chat.completions.create(model="onward", messages=asked, user="ann")
            stream = agent.chat.completions.create(model="onward", messages=asked, user="ann", stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            return [plain.choices[0].message.content, text]

    world.engine.script = saying("It.")
    key = (world.settings.run_dir / "api.key").read_text()
    assert await asyncio.to_thread(work, world.gateway.server.url, key) == ["It.", "It."]
    await close(world, "ann")
    one, two = await trajectories(world, 2)
    assert one["session_id"] == two["session_id"] == "ann"
    assert one["trajectory_id"] != two["trajectory_id"]
    assert one["metadata"]["user_hash"] == two["metadata"]["user_hash"] != "ann"
