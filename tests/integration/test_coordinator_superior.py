"""Messages of the superior agent on a real bus: what they start, what they are answered, what is stored."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from coordinator_world import context, requests, serve, set_job
from counted_warehouse import CountedWarehouse

from onward.clock import ManualClock, SystemClock, utc_text
from onward.contracts import subjects
from onward.contracts.buckets import LastRequest
from onward.coordinator import coordinator as module
from onward.coordinator.coordinator import Coordinator
from onward.coordinator.triggers import Wait


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> CountedWarehouse:
    return CountedWarehouse.installed(monkeypatch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 3, 28, 12, tzinfo=UTC))


async def test_a_message_of_the_superior_agent_makes_a_manual_job_of_high_priority(bus, warehouse):
    ctx = context(bus, warehouse, SystemClock(), threshold=5000)
    await serve(bus, "d1")
    warehouse.add("d1", 10)
    role = asyncio.create_task(module.run(ctx))
    call = {
        "profile": "rl-trainer",
        "message": "Trigger training job with 10K samples from last 30 days",
    }
    async with asyncio.timeout(60):
        while not ctx.ready.get("coordinator"):
            await asyncio.sleep(0.01)
        sent = json.dumps(call).encode()
        answer = json.loads(await bus.request(subjects.TRAINER_MESSAGE, sent, timeout=30))
        again = json.loads(await bus.request(subjects.TRAINER_MESSAGE, sent, timeout=30))
    role.cancel()
    await asyncio.gather(role, return_exceptions=True)
    (asked,) = await requests(bus)
    assert answer["accepted"] and answer["training_job_id"] == asked["training_job_id"]
    assert (asked["trigger_reason"], asked["priority"]) == ("manual", "high")
    dataset = asked["training_config"]["dataset"]
    assert dataset["sample_size"] == 10_000
    start = datetime.fromisoformat(dataset["filter"]["date_range"]["start"])
    assert timedelta(days=30) <= datetime.now(UTC) - start < timedelta(days=30, minutes=1)
    assert again == {
        "accepted": False,
        "message": f"No training job now: job {asked['training_job_id']} is not finished.",
    }


async def test_a_message_starts_a_job_in_the_cool_down_and_a_wrong_one_gets_a_sentence(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock))
    await serve(bus, "d1")
    warehouse.add("d1", 100)
    await set_job(bus, "old", "failed", updated_at=utc_text(clock.now()))
    assert isinstance(await c.tick(), Wait)
    wrong = json.loads(await c.answer(b"\xff"))
    assert not wrong["accepted"] and wrong["message"].startswith("The message is not JSON")
    assert json.loads(await c.answer(b'{"message": "Start training"}'))["accepted"]


async def test_a_message_beside_another_coordinator_is_to_come_again(bus, warehouse, clock, monkeypatch):
    c, record = Coordinator(context(bus, warehouse, clock)), bus.bucket(LastRequest.BUCKET)
    await serve(bus, "d1")

    async def group_ids(digest):
        await record.put(LastRequest.KEY, LastRequest(phase="published", snapshot=0, job_id="x").dump())
        return []

    monkeypatch.setattr(c, "_group_ids", group_ids)
    answer = json.loads(await c.answer(b'{"message": "Start training"}'))
    assert answer == {
        "accepted": False,
        "message": "Another coordinator decided at the same moment: send the message again.",
    }
    assert await requests(bus) == []


async def test_a_secret_in_a_message_is_not_stored(bus, warehouse, clock):
    c = Coordinator(context(bus, warehouse, clock))
    await serve(bus, "d1")
    key = "sk-proj-" + "a1B2c3D4" * 6
    said = json.dumps({"message": f"Start a training with 300 samples, OPENAI_API_KEY={key}"})
    assert json.loads(await c.answer(said.encode()))["accepted"]
    (asked,) = await requests(bus)
    assert "the superior agent said: Start a training with 300 samples" in asked["metadata"]["notes"]
    assert key not in json.dumps(asked)
    assert asked["training_config"]["dataset"]["sample_size"] == 300
