"""A releaser whose records are damaged, down to one wrong field: it goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from release_world import World

from onward.release.record import ReleaseRecord
from onward.release.wording import what_happened

VALUES: list[Any] = [None, "x", -1, 7, [], [1], {}, {"a": [1]}, [{}], True]


async def serving_world() -> World:
    world = World()
    await world.install()
    await world.job("j1", "d1")
    world.suite.success["d1"] = 0.9
    await world.run(2)
    await world.until(lambda: world.record.serving, sessions=0, ticks=50)
    return world


@pytest.mark.parametrize("field", sorted(ReleaseRecord.model_fields))
async def test_a_release_with_one_wrong_field_never_fails_the_releaser(field: str) -> None:
    world = await serving_world()
    key = f"release.{world.record.release_id}"
    as_it_was = {name: dict(bucket.data) for name, bucket in world.bus.buckets.items()}
    for value in VALUES:
        for name, data in as_it_was.items():
            world.bus.bucket(name).data = dict(data)
        releases = world.bus.bucket("rl_releases")
        wrong = {**json.loads(releases.data[key][0]), field: value}
        await releases.put(key, json.dumps(wrong).encode())
        world.start()
        for _ in range(3):
            await world.gateways_follow()
            await world.releaser.tick()
            await world.clock.advance(1.0)
        for record in await world.releaser.releases.all():
            assert what_happened(record)


@pytest.mark.parametrize("value", [b"x", b"{}", b"[]"])
async def test_a_damaged_entry_of_the_current_model_does_not_bring_the_base_back(value: bytes) -> None:
    world = World()
    await world.install("d0")
    before = world.shares
    (name,) = [key for key, state in world.model_states.items() if state == "current"]
    await world.bus.bucket("rl_models").put(name, value)
    world.start()
    await world.run(5)
    assert world.shares == before
    assert world.bus.unreadable.keys


@pytest.mark.parametrize("value", [b"x", b"[]", b'{"revision": 1, "arms": []}'])
async def test_damaged_routes_are_written_anew_while_no_release_is_under_way(value: bytes) -> None:
    world = World()
    await world.install("d0")
    before = world.desired
    await world.bus.bucket("rl_releases").put("desired", value)
    world.start()
    world.releaser.lead(5)
    await world.releaser.tick()
    assert world.desired["arms"] == before["arms"] and world.desired["revision"] > before["revision"]


async def test_a_pin_that_cannot_be_read_releases_nothing_and_leaves_the_routes() -> None:
    world = World()
    await world.install("d0")
    before = world.desired
    await world.bus.bucket("rl_control").put("pin", b"x")
    await world.job("j1", "d1")
    await world.run(5)
    assert world.desired == before and [record.epoch for record in world.records] == [0]
