"""The end of a task: by its answer, by silence, by a close with an outcome and feedback."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from capture_world import TOOLS, Gate, call, close, messages_of, moving, saying, trajectories
from serving_world import World, eventually

from onward.clock import ManualClock
from onward.contracts import Feedback, decode
from onward.serving.recording.session_closer import CLOSE_WAITS


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
        ({"feedback": {"signal": "thumbs_up", "comment": "half \ud83d"}}, None),
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

    closing = asyncio.create_task(world.gateway.capture.closer.close("s1", None, None))
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


async def several(world: World, messages: list[dict[str, str]], count: int) -> dict[str, Any]:
    """The answer to a request of session ``s1`` for so many choices, each with a text of its own."""
    numbers = iter(range(count))
    world.engine.script = lambda messages, adapter: f"choice {next(numbers)}"
    body = {"messages": messages, "n": count}
    answer = await world.client.post("/v1/chat/completions", json=body, headers={"Onward-Session": "s1"})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("used", [None, 0, 1, 2])
async def test_the_outcome_of_a_session_is_not_about_the_choices_that_were_not_used(world, used):
    asked = [{"role": "user", "content": "q"}]
    answer = await several(world, asked, 3)
    ids = [one["trajectory_id"] for one in (answer["onward"], *answer["onward"]["choices"])]
    if used is not None:
        asked += [answer["choices"][used]["message"], {"role": "user", "content": "more"}]
        assert (await several(world, asked, 1))["onward"]["trajectory_id"] == ids[used]
    told = {"status": "completed_successfully"}
    answer = await close(world, "s1", **told, feedback={"signal": "thumbs_up"})
    assert {task["trajectory_id"] for task in answer["closed"]} == set(ids)
    found = {one["trajectory_id"]: one["metadata"].get("outcome") for one in await trajectories(world, 3)}
    meant = ids[used or 0]
    assert found == {one: told if one == meant else None for one in ids}

    async def said() -> list[bytes]:
        return await messages_of(world, "RL_FEEDBACK")

    assert [decode(one, Feedback).trajectory_id for one in await eventually(said)] == [meant]


async def test_a_choice_that_is_closed_by_its_own_id_has_the_outcome(world):
    answer = await several(world, [{"role": "user", "content": "q"}], 2)
    other = answer["onward"]["choices"][0]["trajectory_id"]
    await close(world, other, status="failed")
    (found,) = await trajectories(world, 1)
    assert (found["trajectory_id"], found["metadata"]["outcome"]) == (other, {"status": "failed"})


async def test_an_error_while_choices_are_begun_leaves_no_call_counted(world, monkeypatch):
    def broken(*_: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr(world.gateway.capture, "begin_branches", broken)
    body = {"messages": [{"role": "user", "content": "q"}], "n": 2}
    assert (await world.client.post("/v1/chat/completions", json=body)).status_code == 500
    await asyncio.wait_for(world.gateway.admission.drain(), 30)
