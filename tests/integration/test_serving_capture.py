"""Agents that only point their OpenAI client at the gateway: the trajectories that come of it, in full."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from serving_world import World, eventually

from onward import Recorder, wrap_openai
from onward.capture import provenance
from onward.capture.collecting.quarantine import Keys, Quarantine
from onward.clock import ManualClock
from onward.contracts import Feedback, Reward, Trajectory, decode, to_document, validate
from onward.errors import EngineError
from onward.http.server import GRACE_SECONDS
from onward.lm.tokens import Call, rows_from_calls
from onward.reward import Unscored
from onward.reward.role.state import State
from onward.reward.scoring.score import score
from onward.serving.engines.scripted import BASE_DIGEST
from onward.serving.recording.capture import CLOSE_WAITS
from onward.serving.recording.conversations import Conversations
from onward.serving.recording.trajectory import trajectory

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


@pytest.fixture
def service_log():
    """What the HTTP server logs, with its tracebacks."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Kept()
    logging.getLogger("uvicorn.error").addHandler(handler)
    yield lines
    logging.getLogger("uvicorn.error").removeHandler(handler)


@pytest.fixture
async def world(bus, tmp_path):
    async with World(bus, tmp_path) as world:
        yield world


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


# Which conversation a request belongs to.


async def test_two_conversations_that_begin_alike_do_not_mix(world):
    """No header, no user: the same first question and the same first answer, then they part."""
    world.engine.script = lambda messages, adapter: f"answer to {messages[-1]['content']}"
    agent = client(world)
    first = {"role": "user", "content": "Hello"}

    async def ask(*messages: Any) -> Any:
        answer = await agent.chat.completions.create(model="onward", messages=list(messages))
        return answer.choices[0].message

    one, two = await ask(first), await ask(first)
    more = [{"role": "user", "content": "left"}, {"role": "user", "content": "right"}]
    left, right = await ask(first, one, more[0]), await ask(first, two, more[1])
    last = {"role": "user", "content": "end"}
    await ask(first, two, more[1], right, last)
    await ask(first, one, more[0], left, last)
    for conversation in list(world.gateway.capture._open):
        await close(world, conversation.id)
    found = await trajectories(world, 2)
    said = sorted([turn["observation"]["content"] for turn in document["turns"]] for document in found)
    assert said == [["Hello", "left", "end"], ["Hello", "right", "end"]]
    for document in found:
        assert len(row_text(document)) == 1
        known = {record["generation_id"] for record in records(document)}
        assert all(record["continues"] in known | {None} for record in records(document))


async def test_an_outcome_for_tasks_that_cannot_be_told_apart_is_refused(world):
    agent = client(world)
    asked = [{"role": "user", "content": "Hello"}]
    answers = [await agent.chat.completions.create(model="onward", messages=asked) for _ in range(2)]
    ours = [answer.model_dump()["onward"] for answer in answers]
    session = ours[0]["session_id"]
    refused = await world.client.post(f"/sessions/{session}/close", json={"status": "failed"})
    assert refused.status_code == 409 and "trajectory id" in refused.json()["error"]["message"]
    await close(world, ours[1]["trajectory_id"], status="failed")
    (found,) = await trajectories(world, 1)
    assert found["trajectory_id"] == ours[1]["trajectory_id"]


async def test_a_client_that_writes_history_anew_still_goes_on(world):
    """Spaces gone, arguments in another order, ids of its own: the same conversation, exact tokens."""
    written = '{"tool_name": "weather",\n  "tool_args": {"of": "Oslo", "at": 1}}'
    world.engine.script = saying(written, "  Rain, they say. ", "Yes.")
    agent = client(world)
    question = {"role": "user", "content": "Weather?"}
    answer = await agent.chat.completions.create(model="onward", messages=[question], tools=TOOLS)
    assert answer.choices[0].finish_reason == "tool_calls"
    again = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "mine",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"at":1,"of":"Oslo"}'},
            }
        ],
    }
    result = {"role": "tool", "content": "rain", "tool_call_id": "mine"}
    messages: list[Any] = [question, again, result]
    answer = await agent.chat.completions.create(model="onward", messages=messages, tools=TOOLS)
    messages += [{"role": "assistant", "content": "Rain, they say."}, {"role": "user", "content": "Sure?"}]
    await agent.chat.completions.create(model="onward", messages=messages, tools=TOOLS)
    await close(world, open_session(world))
    (found,) = await trajectories(world, 1)
    assert [turn["action"]["raw_response"] for turn in found["turns"]] == [
        written,
        "  Rain, they say. ",
        "Yes.",
    ]
    assert found["turns"][0]["result"] == {"success": True, "output": "rain"}
    assert row_text(found) == [
        f"{json.dumps(TOOLS)}<user>Weather?<assistant>{written}\0<tool>rain<assistant>  Rain, they say. \0"
        "<user>Sure?<assistant>Yes.\0"
    ]


async def test_going_back_to_an_older_answer_begins_a_trajectory_of_its_own(world):
    world.engine.script = lambda messages, adapter: f"a{len(messages)}"
    agent = client(world)
    asked: list[Any] = [{"role": "user", "content": "q"}]
    first = (await agent.chat.completions.create(model="onward", messages=asked)).choices[0].message
    for text in ("on", "back"):
        await agent.chat.completions.create(
            model="onward", messages=[*asked, first, {"role": "user", "content": text}]
        )
    for conversation in list(world.gateway.capture._open):
        await close(world, conversation.id)
    one, two = await trajectories(world, 2)
    assert [turn["observation"]["content"] for turn in one["turns"]] == ["q", "on"]
    history = [*asked, {"role": "assistant", "content": "a1"}, {"role": "user", "content": "back"}]
    assert [turn["observation"]["content"] for turn in two["turns"]] == [{"messages": history}]
    assert two["task_context"]["instructions"] == "back"
    assert records(two)[0]["continues"] is None  # its prompt is whole: no token is trained on twice
    assert row_text(two) == ["<user>q<assistant>a1<user>back<assistant>a3\0"]


async def test_other_keys_and_named_sessions_never_meet(bus, tmp_path):
    other = "ok-" + "b" * 40
    keys = {hashlib.sha256(other.encode()).hexdigest(): ["chat"]}
    async with World(bus, tmp_path, keys=keys) as world:
        world.engine.script = lambda messages, adapter: "yes"
        said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]
        more = [*said, {"role": "user", "content": "more"}]

        async def ask(messages: list[dict[str, str]], **headers: str) -> str:
            answer = await world.client.post(
                "/v1/chat/completions", json={"messages": messages}, headers=headers
            )
            return answer.json()["onward"]["trajectory_id"]

        mine = await ask(said[:1])
        assert await ask(more, Authorization=f"Bearer {other}") != mine
        assert await ask(more, **{"Onward-Session": "s1"}) != mine
        assert await ask(more) == mine
        stranger = await world.client.post(
            f"/sessions/{mine}/close", json={}, headers={"Authorization": f"Bearer {other}"}
        )
        assert stranger.status_code == 404  # and is not told that there is one
        await close(world, mine)


# When a task is over.


async def test_a_final_answer_closes_after_its_grace_and_a_further_message_belongs_to_it(bus, tmp_path):
    clock = ManualClock()
    async with World(bus, tmp_path, clock=clock) as world:
        world.engine.script = lambda messages, adapter: f"a{len(messages)}"
        asked = [{"role": "user", "content": "q"}]
        await world.client.post("/v1/chat/completions", json={"messages": asked})
        await clock.advance(59)
        asked += [{"role": "assistant", "content": "a1"}, {"role": "user", "content": "and"}]
        await world.client.post("/v1/chat/completions", json={"messages": asked})
        await clock.advance(59)
        assert await messages_of(world, "RL_TRAJECTORIES") == []
        await clock.advance(2)
        (found,) = await moving(clock, trajectories(world, 1))
        assert [turn["observation"]["content"] for turn in found["turns"]] == ["q", "and"]
        assert found["metadata"]["capture"] == {"source": "gateway", "closed": "answer"}
        assert "outcome" not in found["metadata"]
        assert found["start_timestamp"] == "2026-01-01T00:00:00.000Z"
        assert found["end_timestamp"] == found["turns"][1]["timestamp"] == "2026-01-01T00:00:59.000Z"
        # Later it is a new task, which begins with what was said before.
        asked += [{"role": "assistant", "content": "a3"}, {"role": "user", "content": "later"}]
        answer = await world.client.post("/v1/chat/completions", json={"messages": asked})
        ours = answer.json()["onward"]
        assert ours["trajectory_id"] != found["trajectory_id"] and ours["session_id"] == found["session_id"]
        late = await world.client.post(f"/sessions/{found['trajectory_id']}/close", json={"status": "failed"})
        assert late.status_code == 404


async def test_silence_closes_a_task_that_waits_for_a_tool(bus, tmp_path):
    clock = ManualClock()
    async with World(bus, tmp_path, clock=clock) as world:
        world.engine.script = saying(json.dumps(call("weather", "Oslo")))
        asked = [{"role": "user", "content": "q"}]
        await world.client.post("/v1/chat/completions", json={"messages": asked, "tools": TOOLS})
        await clock.advance(299)
        assert await messages_of(world, "RL_TRAJECTORIES") == []
        await clock.advance(2)
        (found,) = await moving(clock, trajectories(world, 1))
    assert found["metadata"]["capture"]["closed"] == "idle" and "outcome" not in found["metadata"]
    assert found["turns"][0]["result"] == {
        "success": False,
        "error": "no result was reported before the task was closed",
    }


async def moving(clock: ManualClock, work: Any) -> Any:
    """The result of ``work`` while the clock goes on in small steps."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await clock.advance(0.05)
        await asyncio.sleep(0.01)
    return task.result()


async def test_the_outcome_and_the_feedback_of_a_session_arrive(world):
    world.engine.script = lambda messages, adapter: "yes"
    await world.ask("s1", "q")
    answer = await close(
        world, "s1", status="partial_completion", completion_percentage=0.25,
        feedback={"signal": "rating", "value": 0.75, "comment": "nice"},
    )  # fmt: skip
    (found,) = await trajectories(world, 1)
    assert found["metadata"]["outcome"] == {"status": "partial_completion", "completion_percentage": 0.25}
    assert answer["session_id"] == "s1" and answer["closed"][0]["trajectory_id"] == found["trajectory_id"]

    async def said() -> list[bytes]:
        return await messages_of(world, "RL_FEEDBACK")

    feedback = decode((await eventually(said))[-1], Feedback)
    assert (feedback.session_id, feedback.trajectory_id) == ("s1", found["trajectory_id"])
    assert (feedback.signal, feedback.value, feedback.comment) == ("rating", 0.75, "nice")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"status": "great"}, "status"),
        ({"completion_percentage": 0.5}, "status"),
        ({"status": "failed", "completion_percentage": 40}, "completion_percentage"),
        ({"outcome": "failed"}, "outcome"),
        ({"feedback": {"signal": "rating"}}, "feedback.value"),
        ({"feedback": "good"}, "feedback"),
        ({"feedback": {"signal": "thumbs_up", "comment": "half \ud83d"}}, "feedback.comment"),
        ({"feedback": {"signal": "thumbs_up", "comment": "x" * (64 * 1024 + 1)}}, "feedback.comment"),
    ],
)
async def test_an_outcome_that_cannot_be_meant_is_refused_and_the_task_stays_open(world, body, param):
    await world.ask("s1", "q")
    refused = await world.client.post("/sessions/s1/close", content=json.dumps(body))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param
    await close(world, "s1")


async def test_closing_needs_a_key_and_a_session_that_is_open(world):
    async with httpx.AsyncClient() as stranger:
        assert (await stranger.post(f"{world.gateway.server.url}/sessions/s1/close")).status_code == 401
    assert (await world.client.post("/sessions/s1/close")).status_code == 404


async def test_a_close_that_is_sent_again_gets_the_same_answer_and_another_outcome_is_refused(world):
    await world.ask("s1")
    first = await close(world, "s1", status="failed")
    assert await close(world, "s1", status="failed") == first
    other = await world.client.post("/sessions/s1/close", json={"status": "completed_successfully"})
    assert other.status_code == 409
    await trajectories(world, 1)


async def test_a_close_after_a_new_task_that_ended_by_itself_is_not_answered_for_the_old_one(bus, tmp_path):
    clock = ManualClock()
    async with World(bus, tmp_path, clock=clock) as world:
        await world.ask("w", "one")
        first = await close(world, "w", status="completed_successfully")
        second = (await world.ask("w", "two"))["onward"]["trajectory_id"]
        await clock.advance(61)
        _, ended = await moving(clock, trajectories(world, 2))
        assert ended["trajectory_id"] == second != first["closed"][0]["trajectory_id"]
        for status in ("completed_successfully", "failed"):
            late = await world.client.post("/sessions/w/close", json={"status": status})
            assert late.status_code == 404


async def test_feedback_on_a_task_that_is_closed_already_is_published_once(world):
    await world.ask("v")
    first = await close(world, "v", status="failed")
    for _ in range(2):  # as clients do that send again
        assert await close(world, "v", feedback={"signal": "thumbs_down", "comment": "no"}) == first
    assert await close(world, "v", status="failed", feedback={"signal": "retry"}) == first

    async def said() -> list[bytes] | None:
        found = await messages_of(world, "RL_FEEDBACK")
        return found if len(found) >= 2 else None

    heard = [decode(data, Feedback) for data in await eventually(said)]
    assert [(f.signal, f.comment, f.trajectory_id) for f in heard] == [
        ("thumbs_down", "no", first["closed"][0]["trajectory_id"]),
        ("retry", None, first["closed"][0]["trajectory_id"]),
    ]
    await trajectories(world, 1)


async def test_feedback_that_is_not_on_disk_is_not_acknowledged_and_arrives_once_it_is(world, monkeypatch):
    await world.ask("v")
    await close(world, "v")

    def broken(self: Any, document: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("onward.redaction.Redactor.document", broken)
    for _ in range(2):
        refused = await world.client.post("/sessions/v/close", json={"feedback": {"signal": "thumbs_up"}})
        assert refused.status_code == 503
    monkeypatch.undo()
    await close(world, "v", feedback={"signal": "thumbs_up"})

    async def said() -> list[bytes]:
        return await messages_of(world, "RL_FEEDBACK")

    (heard,) = await eventually(said)
    assert decode(heard, Feedback).signal == "thumbs_up"


class Gate:
    """Stops the engine before its answer, and a close while it waits for that."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.waits, self.opens = asyncio.Event(), asyncio.Event(), asyncio.Event()
        generate, at_rest = world.engine.generate, world.gateway.capture._at_rest

        async def stopped(*args: Any, **how: Any) -> Any:
            self.asked.set()
            await self.opens.wait()
            return await generate(*args, **how)

        async def waiting(*args: Any) -> Any:
            self.waits.set()
            return await at_rest(*args)

        monkeypatch.setattr(world.engine, "generate", stopped)
        monkeypatch.setattr(world.gateway.capture, "_at_rest", waiting)


async def test_closing_waits_for_the_answer_that_is_under_way(world, monkeypatch):
    gate = Gate(world, monkeypatch)
    running = asyncio.create_task(world.chat("s1"))
    await gate.asked.wait()
    closing = asyncio.create_task(close(world, "s1", status="failed"))
    await gate.waits.wait()
    gate.opens.set()
    assert (await running).status_code == 200
    await closing
    (found,) = await trajectories(world, 1)
    assert len(found["turns"]) == 1 and found["metadata"]["outcome"] == {"status": "failed"}


async def test_a_close_that_is_given_up_leaves_nothing_running(world, monkeypatch):
    gate = Gate(world, monkeypatch)
    running = asyncio.create_task(world.chat("s1"))
    await gate.asked.wait()

    closing = asyncio.create_task(world.gateway.capture.close("s1", None, None))
    begun: list[asyncio.Task[Any]] = []
    while len(begun) < 2:
        await asyncio.sleep(0)
        begun = [task for task in asyncio.all_tasks() if task.get_name().startswith(CLOSE_WAITS)]
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    for _ in range(10):  # rounds of the loop, in which a cancelled task ends
        await asyncio.sleep(0)
    assert all(task.done() for task in begun)
    gate.opens.set()
    await running


# What is recorded, and what is not.


async def test_what_nests_too_deep_for_a_trajectory_is_refused_or_kept_as_text(world):
    deep: Any = 1
    for _ in range(40):
        deep = {"x": deep}
    odd = {"type": "function", "function": {"name": "f", "x-meta": deep}}
    refused = await world.chat("s1", "q", tools=[odd])
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools[0]"
    written = '{"tool_name": "f", "tool_args": ' + '{"a":' * 29 + "1" + "}" * 30
    world.engine.script = saying(written)
    await world.ask("s2")
    await close(world, "s2")
    (found,) = await trajectories(world, 1)
    assert told(found) == [(1, "user_message", "hello", "response", None, None, written, {"success": True})]


@pytest.mark.parametrize("ends", ["close", "shutdown"])
async def test_an_answered_conversation_that_no_trajectory_can_hold_is_held_encrypted(bus, tmp_path, ends):
    async with World(bus, tmp_path) as world:
        await world.ask("s1", "between us")
        (conversation,) = world.gateway.capture._open
        deep: Any = "the end"
        for _ in range(40):
            deep = [deep]
        conversation.metadata["deep"] = deep
        if ends == "close":
            assert (await close(world, "s1"))["closed"][0]["trajectory_id"] == conversation.id
    quarantine = Quarantine(world.ctx.objects, Keys.of(world.settings), world.clock)
    (held,) = await quarantine.held()
    assert (held.trajectory_id, held.reason, held.source) == (conversation.id, "too_deep", "gateway")
    _, message = await quarantine.open(held.held_id)
    body = json.loads(message.data)
    assert body["turns"][0]["observation"]["content"] == "between us" and body["metadata"]["deep"] == deep
    assert await messages_of(world, "RL_TRAJECTORIES") == []


async def test_a_conversation_of_which_no_trajectory_can_be_made_is_held_and_disturbs_no_other(
    world, monkeypatch
):
    def broken(conversation: Any, closed: Any) -> Any:
        if conversation.session_id == "s1":
            raise RuntimeError("no")
        return trajectory(conversation, closed)

    monkeypatch.setattr("onward.serving.recording.capture.trajectory", broken)
    await world.ask("s1", "the odd one")
    await world.ask("s2", "for the record")
    await eventually_in(world.settings.data_dir / "outbox" / "gateway-open.db", b"for the record")
    (odd,) = (await close(world, "s1"))["closed"]
    await close(world, "s2")
    (found,) = await trajectories(world, 1)
    assert found["session_id"] == "s2"
    quarantine = Quarantine(world.ctx.objects, Keys.of(world.settings), world.clock)
    (held,) = await quarantine.held()
    assert held.trajectory_id == odd["trajectory_id"]
    (turn,) = json.loads((await quarantine.open(held.held_id))[1].data)["turns"]
    assert (turn["new"], turn["text"]) == (
        [{"role": "user", "content": "the odd one"}],
        "base: the odd one",
    )


async def test_a_user_who_is_no_id_is_in_the_session_only_as_a_hash_that_needs_the_key(bus, tmp_path):
    address = "someone@example" + ".org"
    names = []
    for _ in range(2):  # the second time after a restart
        async with World(bus, tmp_path) as world:
            names.append((await world.ask("", user=address))["onward"]["session_id"])
    key = provenance.load_key(world.settings.run_dir)
    keyed = hmac.new(key, address.encode(), hashlib.sha256).hexdigest()
    assert names == ["u-" + keyed[:32]] * 2


async def test_a_secret_in_a_tool_result_is_nowhere_at_rest_and_its_tokens_are_void(bus, tmp_path):
    secret = "sk-" + "ant-api03-" + "Q7x" * 12
    async with World(bus, tmp_path) as world:
        world.engine.script = saying(json.dumps(call("stock", "ACME")), f"The key is {secret}.", "Bye.")
        agent = client(world)
        messages: list[Any] = [{"role": "user", "content": "Look it up."}]
        for results in (["the key: " + secret], ["thanks"], []):
            answer = await agent.chat.completions.create(model="onward", messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message)
            for text in results:
                calls = message.tool_calls or []
                role = {"role": "tool", "tool_call_id": calls[0].id} if calls else {"role": "user"}
                messages.append({**role, "content": text})
        await eventually_in(world.settings.data_dir / "outbox" / "gateway-open.db", b"Look it up.")
        files = b"".join(path.read_bytes() for path in world.settings.data_dir.rglob("*") if path.is_file())
        assert secret.encode() not in files and secret[12:30].encode() not in files
        await close(world, open_session(world), status="failed")
        (found,) = await trajectories(world, 1)
    assert found["turns"][0]["result"]["output"] == "the key: <ANTHROPIC_KEY:1>"
    assert found["turns"][1]["action"]["raw_response"] == "The key is <ANTHROPIC_KEY:1>."
    first, *later = records(found)
    assert "tokens_void" not in first and bytes(first["token_ids"][:-1]).decode() == json.dumps(
        call("stock", "ACME")
    )
    for record in later:
        assert record["tokens_void"] and not record["token_ids"] + record["prompt_ids"] + record["logprobs"]
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret.encode() not in everything
    assert secret.encode() not in b"".join(await messages_of(world, "RL_TRAJECTORIES"))


async def eventually_in(path: Path, text: bytes) -> None:
    """Until the journal holds ``text``: in its file or in the log beside it."""

    async def there() -> bool:
        return any(text in file.read_bytes() for file in path.parent.glob(path.name + "*"))

    await eventually(there)


async def test_the_gateways_own_key_is_redacted(world):
    key = (world.settings.run_dir / "api.key").read_text()
    await world.ask("s1", f"my key is {key}, keep it")
    await close(world, "s1")
    (found,) = await trajectories(world, 1)
    assert found["turns"][0]["observation"]["content"] == "my key is <KNOWN:1>, keep it"
    assert records(found)[0]["tokens_void"]


async def test_two_hundred_conversations_at_once_give_two_hundred_trajectories(world):
    """No header and no user, in each two tools and two questions; every tenth starts like its neighbours."""

    def script(messages: Any, adapter: Any) -> str:
        last = messages[-1]
        if last["role"] == "user" and last["content"].startswith("task"):
            return json.dumps([call("weather", last["content"]), call("stock", last["content"])])
        return f"done with {len(messages)}"

    world.engine.script = script
    agent = client(world)

    async def one(number: int) -> None:
        messages = await tool_loop(agent, f"task {number // 10 * 10 if number % 10 == 0 else number}")
        messages.append({"role": "user", "content": f"more {number}"})
        await agent.chat.completions.create(model="onward", messages=messages, tools=TOOLS)

    gate = asyncio.Semaphore(40)

    async def limited(number: int) -> None:
        async with gate:
            await one(number)

    await asyncio.gather(*(limited(number) for number in range(200)))
    conversations = list(world.gateway.capture._open)
    assert len(conversations) == 200
    await asyncio.gather(*(close(world, conversation.id) for conversation in conversations))
    found = await trajectories(world, 200)
    assert {len(document["turns"]) for document in found} == {4}
    assert sorted(document["turns"][3]["observation"]["content"] for document in found) == sorted(
        f"more {number}" for number in range(200)
    )
    assert all(len(row_text(document)) == 1 for document in found)
    for document in found:
        task = document["task_context"]["instructions"]
        assert [turn["result"].get("output") for turn in document["turns"][:2]] == [
            f"rain in {task}",
            f"42 in {task}",
        ]


async def test_capture_is_switched_off_by_header_by_key_and_by_setting(bus, tmp_path):
    other = "ok-" + "b" * 40
    digest = hashlib.sha256(other.encode()).hexdigest()
    off = {"Onward-Capture": "off"}
    async with World(bus, tmp_path, capture={"off_keys": [digest]}, keys={digest: ["chat"]}) as world:

        async def ask(**headers: str) -> dict[str, Any]:
            body = {"messages": [{"role": "user", "content": "q"}]}
            answer = await world.client.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200
            return answer.json()["onward"]

        assert "trajectory_id" not in await ask(**off)
        assert "trajectory_id" not in await ask(Authorization=f"Bearer {other}")
        assert "trajectory_id" in await ask(**{"Authorization": f"Bearer {other}", "Onward-Capture": "on"})
        assert "trajectory_id" in await ask()
        refused = await world.chat("s", "q")
        assert refused.status_code == 200
        body = {"messages": [{"role": "user", "content": "q"}]}
        odd = await world.client.post("/v1/chat/completions", json=body, headers={"Onward-Capture": "maybe"})
        assert odd.status_code == 400
    async with World(bus, tmp_path, capture={"gateway": False}) as world:
        assert "trajectory_id" not in (await world.ask("s1"))["onward"]
        on = await world.client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "q"}]},
            headers={"Onward-Capture": "on"},
        )
        assert "trajectory_id" in on.json()["onward"]


async def test_an_agent_with_a_recorder_is_recorded_once(world, tmp_path):
    recorder = Recorder(tmp_path / "own.db")
    agent = client(world).with_options(default_headers={"Onward-Capture": "off"})
    with recorder.task("What is 6 times 7?") as task:
        asked = [{"role": "user", "content": "What is 6 times 7?"}]
        answer = await agent.chat.completions.create(
            model="onward", messages=asked, extra_headers={"Onward-Session": task.session_id}
        )
        task.turn(observation="What is 6 times 7?", action=answer)
    assert recorder.pending() == 1 and not await messages_of(world, "RL_TRAJECTORIES")
    await world.gateway.stop()
    assert not await messages_of(world, "RL_TRAJECTORIES")
    recorder.close(0)


async def test_a_wrapped_client_records_itself_and_the_gateway_does_not(world, tmp_path):
    written = json.dumps(call("weather", "Oslo"))
    world.engine.script = saying(written, "Rain.")
    recorder = Recorder(tmp_path / "own.db")
    await tool_loop(wrap_openai(client(world), recorder), "Weather?")
    await asyncio.to_thread(recorder.close, 0)
    assert not any(conversation.recorded for conversation in world.gateway.capture._open)
    own = sqlite3.connect(tmp_path / "own.db").execute("SELECT body FROM queue").fetchall()
    (document,) = (to_document(decode(body, Trajectory)) for (body,) in own)
    assert [turn["action"]["raw_response"] for turn in document["turns"]] == [written, "Rain."]
    assert len(row_text(document)) == 1


async def test_who_opted_out_is_not_even_in_the_journal(bus, tmp_path):
    async with World(bus, tmp_path, capture={"opt_out": "session:private-*"}) as world:
        await world.ask("private-1", "between us")
        await world.ask("s2", "for the record")
        await eventually_in(world.settings.data_dir / "outbox" / "gateway-open.db", b"for the record")
        good = {"signal": "thumbs_up"}
        private = await close(world, "private-1", feedback=good)
        assert await close(world, "private-1", feedback={"signal": "retry"}) == private
        await close(world, "s2", feedback=good)
        (found,) = await trajectories(world, 1)

        async def counted() -> Any:
            return await world.bus.bucket("rl_capture").get("opted_out")

        assert json.loads((await eventually(counted)).value)["count"] == 1

        async def said() -> list[bytes]:
            return await messages_of(world, "RL_FEEDBACK")

        assert [decode(data, Feedback).session_id for data in await eventually(said)] == ["s2"]
        assert world.ctx.metrics.opted_out._value.get() == 1
        assert world.gateway._metrics.captured.labels(closed="close")._value.get() == 1
        await world.ask("private-2", "and this")  # ends with the gateway
    assert json.loads((await counted()).value)["count"] == 2
    assert found["session_id"] == "s2"
    assert b"between us" not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


# When something goes wrong.


async def test_a_client_that_leaves_a_stream_ends_the_sampling_and_what_it_was_sent_is_recorded(world):
    world.engine.script = saying("one two three four five six seven", "again")
    world.engine.piece, world.engine.pause = 4, 0.1
    stream = await client(world).chat.completions.create(
        model="onward", messages=[{"role": "user", "content": "Count."}], stream=True
    )
    seen = ""
    async for chunk in stream:
        seen += chunk.choices[0].delta.content or ""
        if len(seen) >= 8:
            break
    await stream.close()

    async def cancelled() -> bool:
        return world.engine.cancelled == 1 and not world.gateway._in_flight

    await eventually(cancelled)
    await close(world, open_session(world))
    (found,) = await trajectories(world, 1)
    (turn,) = found["turns"]
    said = turn["action"]["raw_response"]
    assert said.startswith(seen) and "one two three four five six seven".startswith(said) and len(said) < 33
    assert turn["result"] == {"success": False, "error": "the client went away before the end of the answer"}
    (record,) = records(found)
    assert bytes(record["token_ids"]).decode() == said and record["finish_reason"] == "length"
    assert provenance.verify(record, provenance.load_key(world.settings.run_dir))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_answer_leaves_nothing(world, stream):
    world.engine.delay = 5.0
    body = {"messages": [{"role": "user", "content": "q"}], "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        await world.client.post("/v1/chat/completions", json=body, timeout=0.2)

    async def over() -> bool:
        return not world.gateway._in_flight and not len(world.gateway.capture._open)

    await eventually(over, 4.0)


async def test_an_engine_that_fails_in_the_middle_ends_the_stream_with_an_error(world, monkeypatch):
    world.engine.script = saying("one two three four")
    world.engine.piece, world.engine.pause = 4, 0.02
    whole = world.engine._tell

    async def broken(on_progress: Any, record: Any, text: str) -> None:
        await whole(on_progress, record, text[:8])
        raise EngineError("The engine ended during the call.")

    monkeypatch.setattr(world.engine, "_tell", broken)
    stream = await client(world).chat.completions.create(
        model="onward", messages=[{"role": "user", "content": "Count."}], stream=True
    )
    with pytest.raises(openai.APIError, match="ended during the call"):
        _ = [chunk async for chunk in stream]
    assert len(world.engine.calls) == 1  # what was sent cannot be taken back, so there is no second try
    await close(world, open_session(world))
    (found,) = await trajectories(world, 1)
    (turn,) = found["turns"]
    assert turn["action"]["raw_response"] == "one two "
    assert turn["result"] == {"success": False, "error": "the engine failed before the end of the answer"}


async def test_the_rewarder_scores_what_was_judged_and_gives_no_zero_for_what_was_not(world):
    world.engine.script = lambda messages, adapter: "It is 42."
    for session, body in (("told", {"status": "completed_successfully"}), ("untold", {})):
        await world.ask(session, "What is 6 times 7?")
        await close(world, session, **body)
    told_of, untold = [validate(document, Trajectory) for document in await trajectories(world, 2)]
    settings = world.settings.reward
    reward = score(told_of, State(100), settings=settings, timestamp=world.clock.now())
    assert isinstance(reward, Reward) and reward.metadata.outcome.success
    nothing = score(untold, State(100), settings=settings, timestamp=world.clock.now())
    assert isinstance(nothing, Unscored) and nothing.reason == "no_outcome"


async def test_an_engine_error_is_an_error_of_the_stream_too(world):
    world.engine.fail = lambda adapter, session: True
    with pytest.raises(openai.InternalServerError):
        await client(world).chat.completions.create(
            model="onward", messages=[{"role": "user", "content": "q"}], stream=True
        )
    assert not len(world.gateway.capture._open) and not world.gateway._in_flight


async def test_an_answer_goes_out_whatever_happens_to_capture(world, monkeypatch):
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("onward.serving.recording.capture.chain", broken)
    assert (await world.ask("s1"))["choices"][0]["message"]["content"] == "base: hello"
    monkeypatch.undo()
    monkeypatch.setattr("onward.serving.recording.capture.Exchange", broken)
    assert (await world.ask("s1"))["choices"][0]["message"]["content"] == "base: hello"
    monkeypatch.undo()
    errors = world.gateway._metrics.capture_errors
    assert errors.labels(step="ask")._value.get() == errors.labels(step="answer")._value.get() == 1
    await world.ask("s1")
    await close(world, "s1")
    await trajectories(world, 1)


async def test_a_full_outbox_delays_and_drops_nothing(world, monkeypatch):
    await world.ask("s1")
    files = world.gateway.capture.behind._files
    monkeypatch.setattr(files._outbox, "max_bytes", 10)
    for _ in range(2):
        refused = await world.client.post("/sessions/s1/close", json={"status": "failed"})
        assert refused.status_code == 503
    await world.ask("s2")
    monkeypatch.setattr(files._outbox, "max_bytes", 1 << 20)
    (found,) = await trajectories(world, 1)
    assert found["session_id"] == "s1" and found["metadata"]["outcome"] == {"status": "failed"}


async def test_beyond_the_limit_the_conversation_unused_for_longest_is_recorded(bus, tmp_path):
    async with World(bus, tmp_path, capture={"max_open": 3}) as world:
        for number in range(5):
            await world.ask(f"s{number}")
        one, two = await trajectories(world, 2)
        assert [one["session_id"], two["session_id"]] == ["s0", "s1"]
        assert one["metadata"]["capture"]["closed"] == "limit"


# The end of the gateway.


async def test_a_gateway_that_stops_records_what_is_open(bus, tmp_path):
    async with World(bus, tmp_path) as world:
        world.engine.script = saying(json.dumps(call("weather", "Oslo")))
        await world.ask("s1", "q", tools=TOOLS)
    async with World(bus, tmp_path) as world:
        (found,) = await trajectories(world, 1)
    assert found["metadata"]["capture"]["closed"] == "shutdown" and "outcome" not in found["metadata"]
    assert found["turns"][0]["action"]["tool_name"] == "weather"


async def test_calls_under_way_when_the_gateway_stops_end_in_order_and_are_recorded(
    bus, tmp_path, service_log
):
    clock, question = ManualClock(), {"messages": [{"role": "user", "content": "Count."}]}
    async with World(bus, tmp_path, clock=clock) as world:
        world.engine.delay = 60.0
        plain = asyncio.create_task(world.chat("plain", "q"))

        async def is_asked() -> bool:
            return len(world.engine.calls) == 1

        await eventually(is_asked)
        world.engine.script = saying("one two " * 5000)
        world.engine.delay, world.engine.piece, world.engine.pause = 0.0, 4, 0.02
        async with world.client.stream(
            "POST", "/v1/chat/completions", json={**question, "stream": True}, headers={"Onward-Session": "s"}
        ) as stream:
            assert stream.status_code == 200
            lines = stream.aiter_lines()
            events = [await anext(lines)]
            stopping = asyncio.create_task(world.gateway.stop())

            async def is_refusing() -> httpx.Response | None:
                return await world.chat("new") if world.gateway._stopping else None

            refused = await eventually(is_refusing)
            assert len(world.engine.calls) == 2 and not stopping.done()  # the grace of what runs
            await clock.advance(GRACE_SECONDS)
            events += [line async for line in lines]
        ended = await plain
        await stopping
    for answer in (refused, ended):
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"
        assert answer.json()["error"]["type"] == "stopping"
    *pieces, last = [json.loads(event.removeprefix("data: ")) for event in events if event]
    assert last["error"]["type"] == "stopping" and "send it again" in last["error"]["message"]
    sent = "".join(piece["choices"][0]["delta"]["content"] for piece in pieces)
    assert not [line for line in service_log if "ASGI" in line]
    async with World(bus, tmp_path) as world:
        (found,) = await trajectories(world, 1)
    assert found["session_id"] == "s" and found["metadata"]["capture"]["closed"] == "shutdown"
    (turn,) = found["turns"]
    assert sent.startswith("one ") and turn["action"]["raw_response"].startswith(sent)
    assert turn["result"] == {"success": False, "error": "the gateway stopped before the end of the answer"}
    (record,) = records(found)
    assert bytes(record["token_ids"]).decode() == turn["action"]["raw_response"]
    assert provenance.verify(record, provenance.load_key(world.settings.run_dir))


async def test_a_gateway_that_was_killed_records_at_its_next_start_what_was_open(bus, tmp_path):
    async with World(bus, tmp_path) as world:
        await world.ask("s1", "first")
        await world.ask("s2", "second")
        for text in (b"first", b"second"):
            await eventually_in(world.settings.data_dir / "outbox" / "gateway-open.db", text)
        await close(world, "s2")
        await trajectories(world, 1)
        killed = world.gateway.capture
        killed._open, killed._dirty = Conversations(), {}  # what memory held is gone
    async with World(bus, tmp_path) as world:
        _, found = await trajectories(world, 2)
        assert found["session_id"] == "s1" and found["metadata"]["capture"]["closed"] == "restart"
        assert provenance.verify(records(found)[0], provenance.load_key(world.settings.run_dir))
    async with World(bus, tmp_path) as world:
        await trajectories(world, 2)  # and once


async def test_the_example_of_an_agent_that_knows_nothing_of_onward(world):
    multiply = json.dumps({"tool_name": "multiply", "tool_args": {"x": 6, "y": 7}})
    world.engine.script = saying(multiply, "It is 42.")
    program = Path(__file__).parents[2] / "examples" / "agent_base_url.py"
    key = (world.settings.run_dir / "api.key").read_text()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(program),
        "What is 6 times 7?",
        env={**os.environ, "OPENAI_BASE_URL": f"{world.gateway.server.url}/v1", "OPENAI_API_KEY": key},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await child.communicate()
    assert child.returncode == 0 and said.decode().strip() == "It is 42."
    await close(world, open_session(world), status="completed_successfully")
    (found,) = await trajectories(world, 1)
    assert [turn["action"].get("tool_name") for turn in found["turns"]] == ["multiply", None]
    assert found["turns"][0]["result"] == {"success": True, "output": "42"}
