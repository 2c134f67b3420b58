"""What the gateway's capture records, and what it leaves out or seals."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import sqlite3
from typing import Any

import pytest
from capture_world import (
    TOOLS,
    call,
    client,
    close,
    eventually_in,
    messages_of,
    open_session,
    records,
    row_text,
    saying,
    told,
    tool_loop,
    trajectories,
)
from serving_world import World, eventually

from onward import Recorder, wrap_openai
from onward.capture import provenance
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.contracts import Feedback, Trajectory, decode, to_document
from onward.serving.recording.trajectory import trajectory


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
    quarantine = Quarantine(world.ctx.objects, QuarantineKeys.from_settings(world.settings), world.clock)
    (held,) = await quarantine.list_held()
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
    quarantine = Quarantine(world.ctx.objects, QuarantineKeys.from_settings(world.settings), world.clock)
    (held,) = await quarantine.list_held()
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
