"""Clients that leave, engines that fail, gateways that stop or are killed: no trajectory is lost."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from capture_world import (
    TOOLS,
    call,
    client,
    close,
    eventually_in,
    open_session,
    records,
    saying,
    trajectories,
)
from serving_world import World, eventually

from onward.capture import provenance
from onward.clock import ManualClock
from onward.contracts import Reward, Trajectory, validate
from onward.errors import EngineError
from onward.http.server import GRACE_SECONDS
from onward.reward import Unscored
from onward.reward.scoring.score import score
from onward.reward.scoring.state import State
from onward.serving.recording.conversations import Conversations


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
        return world.engine.cancelled == 1 and not world.gateway.admission.in_flight

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
    world.engine.delay = 600.0
    body = {"messages": [{"role": "user", "content": "q"}], "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        await world.client.post("/v1/chat/completions", json=body, timeout=0.2)

    async def over() -> bool:
        return not world.gateway.admission.in_flight and not len(world.gateway.capture._open)

    await eventually(over)


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
    assert not len(world.gateway.capture._open) and not world.gateway.admission.in_flight


async def test_an_answer_goes_out_whatever_happens_to_capture(world, monkeypatch):
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("onward.serving.recording.capture.links_of", broken)
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
    files = world.gateway.capture.writer._files
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
                return await world.chat("new") if world.gateway.admission.is_stopping else None

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
    assert child.returncode == 0
    assert said.decode().splitlines() == ['multiply({"x": 6, "y": 7}) = 42', "It is 42."]
    await close(world, open_session(world), status="completed_successfully")
    (found,) = await trajectories(world, 1)
    assert [turn["action"].get("tool_name") for turn in found["turns"]] == ["multiply", None]
    assert found["turns"][0]["result"] == {"success": True, "output": "42"}
