"""Agents on closed models through the gateway: answered, recorded, retried, by base URL alone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import openai
import pytest
from capture_world import TOOLS, client, close, records, told, trajectories
from chat_server import calls, completion, text
from provider_server import ProviderServer, Said, chunks, events, message, message_events
from serving_world import World

KEY = "sk-" + "closed" * 6
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"of": "Oslo"}}
ASKED = [{"role": "user", "content": "Weather in Oslo?"}]
CALLED = (1, "user_message", "Weather in Oslo?", "tool_call", "weather", {"of": "Oslo"}, "",
          {"success": True, "output": "rain"})  # fmt: skip
ENDED = (2, "tool_result", "rain", "response", None, None, "Rain.", {"success": True})


def provider(server: ProviderServer, kind: str = "openai", **more: Any) -> dict[str, Any]:
    url = server.url + ("/v1" if kind == "openai" else "")
    return {"far": {"kind": kind, "base_url": url, "key": KEY, "models": ["closed-1"], **more}}


async def weather_task(agent: openai.AsyncOpenAI, model: str, **more: Any) -> str:
    """Asks, calls the tool once, and returns the last answer."""
    messages: list[Any] = list(ASKED)
    first = await agent.chat.completions.create(model=model, messages=messages, tools=TOOLS, **more)
    (wanted,) = first.choices[0].message.tool_calls or ()
    assert (wanted.function.name, json.loads(wanted.function.arguments)) == ("weather", {"of": "Oslo"})
    messages += [first.choices[0].message, {"role": "tool", "tool_call_id": wanted.id, "content": "rain"}]
    last = await agent.chat.completions.create(model=model, messages=messages, tools=TOOLS, **more)
    return last.choices[0].message.content or ""


def openai_script(body: dict[str, Any]) -> Said:
    if body["messages"][-1]["role"] == "tool":
        return Said(completion(text("Rain.")))
    return Said(completion(calls(("call_1", "weather", {"of": "Oslo"}))))


def anthropic_script(body: dict[str, Any]) -> Said:
    last = body["messages"][-1]["content"]
    is_result = isinstance(last, list) and last[0]["type"] == "tool_result"
    if body.get("stream"):
        return Said(message_events("Rain.") if is_result else message_events("", USE))
    return Said(message({"type": "text", "text": "Rain."}) if is_result else message(USE, reason="tool_use"))


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_task_on_a_closed_model_is_one_trajectory(bus, tmp_path, kind: str) -> None:
    script = openai_script if kind == "openai" else anthropic_script
    with ProviderServer(script).running() as far:
        async with World(bus, tmp_path, providers=provider(far, kind)) as world:
            assert await weather_task(client(world), "far/closed-1") == "Rain."
            await close(world, next(iter(world.gateway.capture._open)).session_id, status="failed")
            (found,) = await trajectories(world, 1)
    assert told(found) == [CALLED, ENDED]
    assert records(found) == [], "a closed model gives no tokens, so there is no sampling record"
    assert found["metadata"]["model"] == "closed-1" and found["metadata"]["provider"] == "far"
    assert found["metadata"]["outcome"] == {"status": "failed"}
    path, headers, body = far.requests[0]
    assert body["model"] == "closed-1"
    if kind == "openai":
        assert (path, headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
        assert found["metadata"]["total_tokens"] == 20
    else:
        assert (path, headers["x-api-key"]) == ("/v1/messages", KEY) and "authorization" not in headers
        assert body["tools"][0]["input_schema"] == TOOLS[0]["function"]["parameters"]
        assert far.requests[1][2]["messages"][1:] == [
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}]},
        ]  # fmt: skip


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_stream_is_passed_on_and_recorded_whole(bus, tmp_path, kind: str) -> None:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "closed-1"}

    def script(body: dict[str, Any]) -> Said:
        if kind == "anthropic":
            return Said(message_events("Let me look. ", USE))
        assert body["stream_options"] == {"include_usage": True}
        function = {"name": "weather", "arguments": '{"of": '}
        deltas: list[dict[str, Any]] = [
            {"role": "assistant", "content": "Let me "},
            {"content": "look. "},
            {"tool_calls": [{"index": 0, "id": "toolu_1", "type": "function", "function": function}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]},
        ]
        sent = [{**head, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
        sent.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
        used = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        return Said(chunks(*sent, {**head, "choices": [], "usage": used}))

    with ProviderServer(script).running() as far:
        async with World(bus, tmp_path, providers=provider(far, kind)) as world:
            stream = await client(world).chat.completions.create(
                model="closed-1", messages=ASKED, tools=TOOLS, stream=True
            )
            got = [chunk async for chunk in stream]
            await close(world, next(iter(world.gateway.capture._open)).session_id)
            (found,) = await trajectories(world, 1)
    assert all(chunk.choices for chunk in got), "the usage was not asked for, so its chunk is not passed on"
    deltas = [chunk.choices[0].delta for chunk in got]
    assert "".join(delta.content or "" for delta in deltas) == "Let me look. "
    parts = [part for delta in deltas for part in delta.tool_calls or ()]
    assert (parts[0].id, parts[0].function.name) == ("toolu_1", "weather")
    assert json.loads("".join(part.function.arguments or "" for part in parts)) == {"of": "Oslo"}
    assert got[-1].choices[0].finish_reason == "tool_calls"
    (turn,) = told(found)
    assert turn[3:7] == ("tool_call", "weather", {"of": "Oslo"}, "Let me look. ")
    assert found["metadata"]["total_tokens"] == 12


async def test_an_anthropic_client_needs_a_base_url_alone(bus, tmp_path) -> None:
    with ProviderServer(anthropic_script).running() as far:
        async with World(bus, tmp_path, providers=provider(far, "anthropic")) as world:
            key = (world.settings.run_dir / "api.key").read_text()
            headers = {"x-api-key": key, "authorization": "", "anthropic-version": "2023-06-01"}
            tool = {"name": "weather", "input_schema": {"type": "object"}}
            messages: list[Any] = list(ASKED)
            asked = {"model": "closed-1", "max_tokens": 99, "system": "Be brief.", "tools": [tool]}
            first = await world.client.post(
                "/v1/messages", json={**asked, "messages": messages}, headers=headers
            )
            assert first.json() == message(USE, reason="tool_use"), "as the provider said it"
            messages += [
                {"role": "assistant", "content": first.json()["content"]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}]},
            ]  # fmt: skip
            last = await world.client.post(
                "/v1/messages", json={**asked, "messages": messages, "stream": True}, headers=headers
            )
            assert last.content == b"".join(message_events("Rain."))
            await close(world, last.headers["onward-session"], status="completed_successfully")
            (found,) = await trajectories(world, 1)
            wrong = await world.client.post("/v1/messages", json={"model": "gpt"}, headers=headers)
    assert [turn[3:7] for turn in told(found)] == [CALLED[3:7], ENDED[3:7]]
    assert wrong.status_code == 404 and wrong.json()["error"]["type"] == "not_found_error"
    assert far.requests[0][1]["x-api-key"] == KEY and key not in str(far.requests)


async def test_a_response_of_a_provider_is_passed_on_and_recorded(bus, tmp_path) -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]}
    whole = {"id": "resp_1", "object": "response", "status": "completed", "output": [item],
             "usage": {"input_tokens": 3, "output_tokens": 2}}  # fmt: skip
    delta = {"type": "response.output_text.delta", "delta": "Rain."}
    stream = events(delta, {"type": "response.completed", "response": whole})
    with ProviderServer(lambda body: Said(stream if body.get("stream") else whole)).running() as far:
        async with World(bus, tmp_path, providers=provider(far)) as world:
            asked = {"model": "closed-1", "instructions": "Be brief.", "input": "Weather?"}
            plain = await world.client.post("/v1/responses", json=asked)
            streamed = await world.client.post("/v1/responses", json={**asked, "stream": True})
            for answer in (plain, streamed):
                await close(world, answer.headers["onward-trajectory"])
            found = await trajectories(world, 2)
    assert plain.json() == whole and streamed.content == b"".join(stream)
    assert [told(one)[0][6] for one in found] == ["Rain.", "Rain."]
    assert [one["metadata"]["total_tokens"] for one in found] == [5, 5]


async def test_what_a_lost_stream_said_is_recorded_with_its_reason(bus, tmp_path) -> None:
    begun = {"id": "c", "choices": [{"index": 0, "delta": {"content": "Half an"}, "finish_reason": None}]}
    with ProviderServer(lambda _: Said(chunks(begun)[:1], cut=True)).running() as far:
        async with World(bus, tmp_path, providers=provider(far, retries=3)) as world:
            answer = await world.client.post(
                "/v1/chat/completions", json={"model": "closed-1", "messages": ASKED, "stream": True}
            )
            await close(world, answer.headers["onward-session"])
            (found,) = await trajectories(world, 1)
    assert "provider_error" in answer.text and "[DONE]" not in answer.text
    assert found["turns"][0]["action"]["raw_response"] == "Half an"
    assert found["turns"][0]["result"]["success"] is False
    assert len(far.requests) == 1, "nothing is asked again after bytes went out"


def failing(*replies: Said) -> Callable[[dict[str, Any]], Said]:
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


async def test_a_failure_is_tried_again_and_retry_after_is_honoured(bus, tmp_path, monkeypatch) -> None:
    no = {"error": {"message": "busy"}}
    script = failing(Said(no, 500), Said(no, 429, {"retry-after": "3"}), Said(completion(text("Yes."))))
    with ProviderServer(script).running() as far:
        async with World(bus, tmp_path, providers=provider(far)) as world:
            waited: list[float] = []

            async def sleep(seconds: float) -> None:
                waited.append(seconds)

            upstream = world.gateway.catalog.find("closed-1")[0].upstream
            monkeypatch.setattr(upstream, "_clock", type("C", (), {"sleep": staticmethod(sleep)})())
            answer = await client(world).chat.completions.create(model="closed-1", messages=ASKED)
    assert answer.choices[0].message.content == "Yes."
    assert 0.37 <= waited[0] <= 0.5 and waited[1] == 3.0


async def test_a_provider_that_keeps_failing_is_left_alone_and_no_key_is_shown(bus, tmp_path) -> None:
    no = {"error": {"message": f"bad key {KEY}"}}
    with ProviderServer(lambda _: Said(no, 500)).running() as far:
        given = provider(far, retries=0, breaker_failures=2)
        async with World(bus, tmp_path, providers=given) as world:
            asked = {"model": "closed-1", "messages": ASKED}
            answers = [await world.client.post("/v1/chat/completions", json=asked) for _ in range(3)]
            metrics = (await world.client.get("/metrics")).text
            assert world.gateway.catalog.states() == {"far": "open"}
            shown = str(world.settings)
    assert [answer.status_code for answer in answers] == [503, 503, 503] and len(far.requests) == 2
    assert 1 <= int(answers[2].headers["retry-after"]) <= 30 and "left alone" in answers[2].text
    assert 'onward_gateway_provider_state{provider="far"} 2.0' in metrics
    assert KEY not in shown + metrics + "".join(answer.text for answer in answers)


async def test_a_refused_key_is_the_operators_fault_not_the_clients(bus, tmp_path) -> None:
    with ProviderServer(lambda _: Said({"error": {"message": f"no {KEY}"}}, 401)).running() as far:
        async with World(bus, tmp_path, providers=provider(far)) as world:
            asked = {"model": "closed-1", "messages": ASKED}
            answer = await world.client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 502 and "providers" in answer.text and KEY not in answer.text


async def test_concurrent_retries_of_one_call_ask_the_provider_once(bus, tmp_path) -> None:
    hold = threading.Event()
    with ProviderServer(lambda _: Said(completion(text("Yes.")), hold=hold)).running() as far:
        async with World(bus, tmp_path, providers=provider(far)) as world:
            asked = {"model": "closed-1", "messages": ASKED}
            headers = [{"Idempotency-Key": "a"}, {"Idempotency-Key": "a"}, {"Idempotency-Key": "b"}]
            running = [
                asyncio.create_task(world.client.post("/v1/chat/completions", json=asked, headers=one))
                for one in headers
            ]
            while len(far.requests) < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            hold.set()
            answers = await asyncio.gather(*running)
            for number in (0, 2):
                await close(world, answers[number].json()["onward"]["trajectory_id"])
            found = await trajectories(world, 2)
    assert len(far.requests) == 2 and len(found) == 2
    ids = [answer.json()["onward"]["trajectory_id"] for answer in answers]
    assert ids[0] == ids[1] != ids[2]


async def test_a_name_that_is_not_served_is_answered_with_the_names_of_providers_too(bus, tmp_path) -> None:
    with ProviderServer(lambda _: Said(completion(text("Yes.")))).running() as far:
        async with World(bus, tmp_path, providers=provider(far)) as world:
            answer = await world.client.post(
                "/v1/chat/completions", json={"model": "closed-2", "messages": ASKED}
            )
    assert answer.status_code == 404 and far.requests == []
    assert answer.json()["error"]["message"] == (
        "Model 'closed-2' is not served: use 'onward', which follows releases, or one of tiny, far/closed-1, "
        "closed-1."
    )
