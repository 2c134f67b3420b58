"""Which conversation a request belongs to, and where another trajectory begins."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from capture_world import (
    TOOLS,
    client,
    close,
    open_session,
    records,
    row_text,
    saying,
    trajectories,
)
from serving_world import World


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
