"""The coordinator on a real bus with a counted-out warehouse."""

from __future__ import annotations

import asyncio
import json

import pytest
from coordinator_world import context, requests, serve, set_job
from counted_warehouse import CountedWarehouse

from onward.clock import ManualClock, SystemClock
from onward.contracts import TrainingStatus, encode, subjects
from onward.coordinator import coordinator as module
from onward.coordinator import open_work
from onward.coordinator.coordinator import Coordinator
from onward.coordinator.triggers import Train, Wait
from onward.errors import ConflictError


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> CountedWarehouse:
    return CountedWarehouse.installed(monkeypatch)


async def test_threshold_counts_the_current_policy_since_the_last_snapshot(bus, warehouse):
    c = Coordinator(context(bus, warehouse))
    assert await c.tick() == Wait("no policy serves yet")
    await serve(bus, "d1")
    warehouse.add("old", 500)
    warehouse.add("d1", 99)
    assert await c.tick() == Wait("99 of 100 rewarded trajectories")
    warehouse.add("d1", 1)
    assert await c.tick() == Train("threshold_reached", "normal")
    (asked,) = await requests(bus)
    assert asked["metadata"]["until"] == 600 and asked["metadata"]["since"] == 0
    assert await c.tick() == Wait(f"job {asked['training_job_id']} is not finished")
    await set_job(bus, asked["training_job_id"], "failed")
    assert await c.tick() == Wait("0 of 100 rewarded trajectories")
    warehouse.add("d1", 100)
    assert await c.tick() == Train("threshold_reached", "normal")
    again = (await requests(bus))[1]
    assert again["metadata"]["since"] == 600
    assert again["metadata"]["previous_training_job"] == asked["training_job_id"]


async def test_no_job_while_learning_is_paused_a_job_runs_or_a_release_is_open(bus, warehouse):
    c = Coordinator(context(bus, warehouse))
    await serve(bus, "d1")
    warehouse.add("d1", 100)
    control = bus.bucket("rl_control")
    await control.put("learning", b'{"paused": true}')
    assert await c.tick() == Wait("learning is paused")
    await control.put("learning", b'{"paused": false}')
    await set_job(bus, "manual-1", "running")
    assert await c.tick() == Wait("job manual-1 is not finished")
    await set_job(bus, "manual-1", "completed")
    await serve(bus, "d1", release="r1")
    assert await c.tick() == Wait("release r1 is under way")
    await serve(bus, "d1")
    record = {"release_id": "r2", "job_id": "manual-1", "state": "validating"}
    await bus.bucket("rl_releases").put("release.r2", json.dumps(record).encode())
    assert await c.tick() == Wait("release r2 is under way")
    await bus.bucket("rl_releases").put("release.r2", json.dumps({**record, "state": "rejected"}).encode())
    assert await c.tick() == Train("threshold_reached", "normal")
    assert len(await requests(bus)) == 1


async def test_enough_new_corrections_ask_for_dpo_and_empty_ones_do_not_count(bus, warehouse):
    await serve(bus, "d1")
    warehouse.add("d1", 100)
    said = [{"trajectory_id": f"t{n}", "session_id": "s", "comment": "so"} for n in range(64)]
    warehouse.corrections = [{**said[0], "comment": ""}, *said[1:]]
    empty = Coordinator(context(bus, warehouse))
    assert await empty._corrected("d1", 0) == 63
    warehouse.corrections = said
    assert await Coordinator(context(bus, warehouse)).tick() == Train("threshold_reached", "normal")
    (asked,) = await requests(bus)
    assert asked["training_config"]["algorithm"] == "dpo"
    assert asked["metadata"]["notes"].startswith("no algorithm is set; 64 answers were corrected")


async def test_a_finished_job_holds_up_the_next_until_its_release_appears(bus, warehouse):
    clock = ManualClock()
    c = Coordinator(context(bus, warehouse, clock))
    await serve(bus, "d1")
    warehouse.add("d1", 100)
    await c.tick()
    job = (await requests(bus))[0]["training_job_id"]
    await set_job(bus, job, "completed")
    warehouse.add("d1", 100)
    assert await c.tick() == Wait(f"release of job {job} is under way")
    await clock.advance(open_work.UNANSWERED_SECONDS)
    assert await c.tick() == Train("threshold_reached", "normal")


async def test_dying_between_record_and_publish_asks_once_with_the_same_bytes(bus, warehouse, monkeypatch):
    await serve(bus, "d1")
    warehouse.add("d1", 100)
    dying = Coordinator(context(bus, warehouse))

    async def die(*_, **__):
        raise asyncio.CancelledError

    monkeypatch.setattr(dying, "_publish", die)
    with pytest.raises(asyncio.CancelledError):
        await dying.tick()
    assert await requests(bus) == []
    planned = json.loads((await bus.bucket("rl_coordinator").get("state")).value)
    warehouse.add("d1", 50)
    next_life = Coordinator(context(bus, warehouse))
    assert isinstance(await next_life.tick(), Wait)
    assert await requests(bus) == [json.loads(planned["request"])]


async def test_dying_after_the_publish_does_not_ask_twice(bus, warehouse, monkeypatch):
    await serve(bus, "d1")
    warehouse.add("d1", 100)
    dying = Coordinator(context(bus, warehouse))
    write, calls = dying._write, []

    async def die_at_second(record, revision):
        calls.append(record.phase)
        if len(calls) == 2:
            raise asyncio.CancelledError
        return await write(record, revision)

    monkeypatch.setattr(dying, "_write", die_at_second)
    with pytest.raises(asyncio.CancelledError):
        await dying.tick()
    assert calls == ["planned", "published"]
    assert isinstance(await Coordinator(context(bus, warehouse)).tick(), Wait)
    assert len(await requests(bus)) == 1


async def test_two_coordinators_ask_once(bus, warehouse):
    await serve(bus, "d1")
    warehouse.add("d1", 100)
    both = [Coordinator(context(bus, warehouse)) for _ in range(2)]
    results = await asyncio.gather(*(c.tick() for c in both), return_exceptions=True)
    assert all(isinstance(r, Train | Wait | ConflictError) for r in results)
    assert len(await requests(bus)) == 1


async def test_a_failed_job_raises_an_alert_and_bad_status_stops_nothing(bus, warehouse):
    ctx = context(bus, warehouse, SystemClock())
    heard = await bus.nc.subscribe(subjects.ALERT)
    task = asyncio.create_task(module.run(ctx))
    await bus.publish(subjects.TRAINING_STATUS, b"not json", msg_id="s0")
    now = ctx.clock.now().isoformat()
    failed = {
        "training_job_id": "j1",
        "timestamp": now,
        "status": "failed",
        "error": {"code": "DATA", "message": "nothing to learn from"},
    }
    status = TrainingStatus.model_validate(failed)
    await bus.publish(subjects.TRAINING_STATUS, encode(status), msg_id="s1")
    alert = json.loads((await heard.next_msg(timeout=30)).data)
    assert alert["kind"] == "training_failed"
    assert alert["message"] == "Training job j1 failed with DATA: nothing to learn from"
    async with asyncio.timeout(10):
        while not ctx.ready.get("coordinator"):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
