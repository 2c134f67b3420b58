"""Two gateways on one data folder: what either of them confirmed is stored, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from capture_world import Gate, messages_of, moving, trajectories
from serving_world import World, eventually

from onward.clock import ManualClock
from onward.contracts import Feedback, decode
from onward.contracts.buckets import GatewayReport
from onward.serving.place import Place
from onward.serving.recording import passed_closes
from onward.serving.recording.passed_closes import PassedCloses

LONG = {"grace_seconds": 600, "idle_seconds": 900}


@pytest.fixture
async def pair(bus, tmp_path) -> AsyncIterator[tuple[World, World]]:
    async with World(bus, tmp_path, capture=LONG) as one, World(bus, tmp_path, capture=LONG) as two:
        await acquainted(one, two)
        yield one, two


async def acquainted(*worlds: World) -> None:
    """Until each gateway knows of the others."""

    async def known() -> bool:
        return all(len(world.gateway._passed_closes.others()) == len(worlds) - 1 for world in worlds)

    await eventually(known)


async def close(world: World, name: str, **body: Any) -> Any:
    return await world.client.post(f"/sessions/{name}/close", json=body)


async def test_each_has_an_identity_of_its_own(pair):
    keys = await pair[0].bus.bucket(GatewayReport.BUCKET).keys()
    assert sorted(keys) == sorted(world.gateway.gateway_id for world in pair) and len(keys) == 2


async def test_a_second_gateway_records_nothing_that_the_first_has_open(bus, tmp_path):
    async with World(bus, tmp_path, capture=LONG) as one:
        told = (await one.ask("s1"))["onward"]
        await eventually(lambda: asyncio.to_thread(journal_has, one, told["trajectory_id"]))
        async with World(bus, tmp_path, capture=LONG) as two:
            await acquainted(one, two)
            answer = await close(one, "s1", status="completed_successfully")
            assert answer.status_code == 200
            (found,) = await trajectories(one, 1)
    assert found["trajectory_id"] == told["trajectory_id"]
    assert found["metadata"]["outcome"] == {"status": "completed_successfully"}
    assert len(await messages_of(one, "RL_TRAJECTORIES")) == 1


def journal_has(world: World, trajectory_id: str) -> bool:
    files = world.settings.data_dir.glob("outbox/*-open.db*")
    return any(trajectory_id.encode() in file.read_bytes() for file in files)


@pytest.mark.parametrize("by", ["session", "trajectory"])
async def test_a_close_at_the_other_gateway_reaches_the_one_that_holds_the_task(pair, by):
    one, two = pair
    told = (await one.ask("s1"))["onward"]
    name = "s1" if by == "session" else told["trajectory_id"]
    given = {"signal": "thumbs_up", "comment": "nice"}
    answers = [await close(two, name, status="failed", feedback=given) for _ in range(2)]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        (task,) = answer.json()["closed"]
        assert (task["trajectory_id"], task["turns"]) == (told["trajectory_id"], 1)
    (found,) = await trajectories(one, 1)
    assert found["metadata"]["outcome"] == {"status": "failed"}

    async def votes() -> list[bytes]:
        return await messages_of(one, "RL_FEEDBACK")

    (vote,) = await eventually(votes)
    assert decode(vote, Feedback).trajectory_id == told["trajectory_id"]
    for key in await two.bus.bucket("rl_closes").keys():
        entry = await two.bus.bucket("rl_closes").get(key)
        assert entry is not None and b"nice" not in entry.value, (
            "text of a user is redacted before it is stored"
        )


async def test_a_session_in_parts_on_both_gateways_is_closed_on_both(pair):
    one, two = pair
    answers = [await one.ask("s1", "this"), await two.ask("s1", "that")]
    parts = {answer["onward"]["trajectory_id"] for answer in answers}
    answer = await close(one, "s1", status="failed")
    assert {task["trajectory_id"] for task in answer.json()["closed"]} == parts
    found = await trajectories(two, 2)
    assert {item["trajectory_id"] for item in found} == parts
    assert all(item["metadata"]["outcome"] == {"status": "failed"} for item in found)


async def test_nothing_open_anywhere_is_404_and_another_outcome_is_409(pair):
    one, two = pair
    assert (await close(two, "never", status="failed")).status_code == 404
    await one.ask("s1")
    assert (await close(one, "s1", status="failed")).status_code == 200
    again = await close(two, "s1", status="completed_successfully")
    assert again.status_code == 409 and "another outcome" in again.json()["error"]["message"]


async def test_a_gateway_that_does_not_answer_makes_the_close_an_error_and_never_a_confirmation(
    pair, monkeypatch
):
    one, two = pair
    await one.ask("s1")
    await two.ask("s1", "the other part")

    async def silent(self: PassedCloses, number: str, asked: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(PassedCloses, "_answer", silent)
        patch.setattr(passed_closes, "ANSWER_SECONDS", 0.2)
        refused = await close(two, "s1", status="failed", feedback={"signal": "thumbs_down"})
    assert refused.status_code == 503 and one.gateway.gateway_id in refused.json()["error"]["message"]
    again = await close(two, "s1", status="failed", feedback={"signal": "thumbs_down"})
    assert again.status_code == 200 and len(again.json()["closed"]) == 2
    assert [item["metadata"]["outcome"] for item in await trajectories(two, 2)] == [{"status": "failed"}] * 2

    async def votes() -> bool:
        return len(await messages_of(one, "RL_FEEDBACK")) == 2

    await eventually(votes)


async def test_a_task_that_the_other_gateway_cannot_store_yet_is_not_forgotten(pair, monkeypatch):
    one, two = pair
    told = (await one.ask("s1"))["onward"]
    with monkeypatch.context() as patch:
        patch.setattr(one.gateway.capture.writer, "are_recorded", lambda ids: False)
        refused = await close(two, "s1", status="failed")
    assert refused.status_code == 503
    again = await close(two, "s1", status="failed")
    assert again.status_code == 200, again.text
    assert [task["trajectory_id"] for task in again.json()["closed"]] == [told["trajectory_id"]]


@pytest.mark.parametrize("part", ["server", "capture"])
async def test_a_gateway_that_cannot_stop_cleanly_frees_its_place(bus, tmp_path, monkeypatch, part):
    world = await World(bus, tmp_path, capture=LONG).__aenter__()
    await world.client.aclose()
    stopped = getattr(world.gateway, part)
    stop = stopped.stop

    async def broken() -> None:
        await stop()
        raise RuntimeError("no")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no"):
        patch.setattr(stopped, "stop", broken)
        await world.gateway.stop()
    place = Place.take(world.settings)
    assert place.name == "gateway" and all(task.done() for task in world.gateway._tasks)
    place.release()
    if part == "server":
        await world.gateway.capture.stop()


async def test_a_close_at_the_other_gateway_waits_for_a_running_call(pair, monkeypatch):
    one, two = pair
    gate = Gate(one, monkeypatch)
    asking = asyncio.create_task(one.ask("s1"))
    await gate.asked.wait()
    closing = asyncio.create_task(close(two, "s1", status="failed"))
    await gate.waits.wait()
    gate.opens.set()
    told = (await asking)["onward"]
    assert [task["trajectory_id"] for task in (await closing).json()["closed"]] == [told["trajectory_id"]]


async def test_a_session_has_the_same_arm_on_both(pair):
    one, two = pair
    await one.open_release()
    await two.served(1)
    for name in (f"s{number}" for number in range(8)):
        arms = [(await world.ask(name))["onward"]["release"] for world in pair]
        assert arms[0] == arms[1] and arms[0] is not None


async def test_what_one_gateway_answered_is_not_lost_for_the_other(bus, tmp_path):
    clock = ManualClock()
    async with World(bus, tmp_path, clock=clock) as one, World(bus, tmp_path, clock=clock) as two:
        await one.open_release()
        await two.served(1)
        await one.ask("answered")
        captured = one.gateway._metrics.captured.labels(closed="answer")

        async def recorded() -> bool:
            await clock.advance(1)
            return captured._value.get() >= 1

        await eventually(recorded)
        await moving(clock, one.gateway.outcomes.record_answered())
        await clock.advance(700)
        await moving(clock, two.gateway.outcomes.load_sessions())

        async def swept() -> bool:
            await two.gateway.outcomes.sweep()
            return not two.gateway.outcomes._waiting

        await moving(clock, eventually(swept))
        assert await one.outcomes() == []
