"""Who may write the routes, and when a gateway counts as following them: fences, arms, clocks."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from release_world import MemoryBucket, Policy, World

from onward.clock import ManualClock, utc_text
from onward.contracts import canonical_json
from onward.contracts.buckets import GATEWAY_LEASE_SECONDS, Desired
from onward.errors import ConflictError
from onward.release.plan import State
from onward.release.record import Model
from onward.release.releaser import Releaser
from onward.release.routes import DesiredWriter, Gateways, arm, single_arm

CURRENT = Model(model_id="v0", adapter_digest="d0", object_prefix="p", training_job_id="w")
CANDIDATE = Model(model_id="v1", adapter_digest="d1", object_prefix="p", training_job_id="j")
BOTH = [arm("current", CURRENT, 0.9), arm("candidate", CANDIDATE, 0.1)]
QUICK = {"time_scale": 0.01, "min_sessions": [10, 20, 40, 0]}


def bucket(name: str = "rl_releases") -> Any:
    return MemoryBucket(World(), name)


async def report(gateways: Any, name: str = "gw-1", **changes: Any) -> None:
    body = {"revision": 7, "arms": BOTH, "served": ["d0", "d1"], **changes}
    await gateways.put(name, canonical_json(body))


async def test_a_higher_epoch_is_never_overwritten_and_the_same_routes_are_claimed():
    shared = bucket()
    old, new = DesiredWriter(shared), DesiredWriter(shared)
    old.epoch, new.epoch = 3, 9
    with_candidate = single_arm(CURRENT, None).model_copy(update={"release_id": "r", "arms": BOTH})
    assert await old.set(single_arm(CURRENT, None)) == 1
    assert await new.set(single_arm(CURRENT, None)) == 1  # the same routes: no new revision, but claimed
    now = (await new.read()).document
    assert now and now.epoch == 9
    for _ in range(2):
        with pytest.raises(ConflictError, match="epoch 9"):
            await old.set(with_candidate)
        with pytest.raises(ConflictError):
            await old.claim()
    now = (await new.read()).document
    assert now and now.arms == single_arm(CURRENT, None).arms
    assert await new.set(with_candidate) == 2
    later = DesiredWriter(shared)
    later.epoch = 12
    await later.claim()
    assert (await later.read()).document == Desired(**dict(with_candidate), revision=2, epoch=12)
    with pytest.raises(ConflictError):
        await new.set(single_arm(CURRENT, None))


async def stopped_before(world: World, call: str) -> tuple[Releaser, asyncio.Event, asyncio.Task[None]]:
    """A releaser that has written its record and stands still right before ``call`` of its effects."""
    first, go_on, reached = world.releaser, asyncio.Event(), asyncio.Event()
    original = getattr(first.effects, call)

    async def stop(*given: Any) -> Any:
        reached.set()
        await go_on.wait()
        return await original(*given)

    setattr(first.effects, call, stop)
    ticking = asyncio.create_task(first.tick())
    await reached.wait()
    return first, go_on, ticking


@pytest.mark.parametrize("call", ["set_routes", "carry_out"])
async def test_a_releaser_that_wakes_after_its_lease_does_not_bring_the_candidate_back(call: str):
    world = World(**QUICK)
    world.releaser.lead(3)
    await world.install()
    await world.job("job-1", "d1", skip_validation=True)
    await world.run(1)
    assert world.record.state is State.VALIDATING
    first, go_on, ticking = await stopped_before(world, call)
    assert world.record.serving and world.shares == {"agent-zero-rl-v0": 1.0}

    world.start().lead(9)
    world.policies["candidate"] = Policy(error=1.0)
    await world.until(lambda: world.record.settled, seconds=1)
    assert world.record.decision == "rolled_back" and world.record.verified_zero_at
    after, models = world.desired, world.model_states

    go_on.set()
    await ticking
    assert first.record is None  # it stopped, and would read everything again
    assert world.desired == after and world.shares == {"agent-zero-rl-v0": 1.0}
    assert world.model_states == models
    await first.tick()  # still of the old epoch: refused again
    assert world.desired == after


async def test_a_stale_releaser_is_refused_although_the_new_one_had_nothing_to_change():
    world = World(**QUICK)
    old = world.releaser
    old.lead(3)
    await world.install()
    await world.control("pin", model_id=world.settings.model.base)
    new = world.start()
    new.lead(9)
    await world.control("pin", model_id=None)
    await world.run(1)
    assert world.desired["epoch"] == 9
    await world.control("pin", model_id=world.settings.model.base)  # what the old one still believes
    await old.tick()
    assert world.shares == {"agent-zero-rl-v0": 1.0}


async def test_a_gateway_follows_when_its_arms_are_the_wanted_ones():
    shared, clock = bucket("rl_gateways"), ManualClock()
    gateways = Gateways(shared, clock)
    await report(shared)
    assert (await gateways.check(7, BOTH)).done == {"gw-1"}
    others: tuple[dict[str, Any], ...] = (
        {"revision": 6},
        {"served": ["d0"]},
        {"arms": [BOTH[0]]},
        {"arms": [arm("current", CURRENT, 0.75), arm("candidate", CANDIDATE, 0.25)]},
        {"arms": [BOTH[0], BOTH[1].model_copy(update={"adapter_digest": "d9"})]},
        {"arms": [BOTH[0], BOTH[1].model_copy(update={"model_id": "v9"})]},
    )
    for changes in others:
        await report(shared, **changes)
        assert (await gateways.check(7, BOTH)).late == {"gw-1"}, changes
    only = single_arm(CURRENT, None).arms
    await report(shared, revision=8)  # newer, but it serves the candidate
    assert not (await gateways.check(7, only)).verified
    await report(shared, revision=8, arms=only, served=["d0"])
    assert (await gateways.check(7, only)).verified


@pytest.mark.parametrize("behind", [-3600.0, 0.0, 16.0, 3600.0])
async def test_a_gateway_is_dead_when_its_record_stands_still_whatever_its_clock_says(behind: float):
    shared, clock = bucket("rl_gateways"), ManualClock()
    only = single_arm(CURRENT, None).arms
    await report(shared, "gw-good", revision=8, arms=only, served=["d0"])

    async def write() -> None:
        """Still on the candidate's routes, with its own idea of the time."""
        await report(shared, updated_at=utc_text(clock.now() - timedelta(seconds=behind)))

    await write()
    gateways = Gateways(shared, clock)  # as after a restart: nobody was seen before
    for _ in range(4):
        found = await gateways.check(8, only)
        assert found.late == {"gw-1"} and not found.verified
        await clock.advance(10.0)
        await write()
    found = await gateways.check(8, only)
    await clock.advance(GATEWAY_LEASE_SECONDS)
    assert (await gateways.check(8, only)).late == {"gw-1"}
    await clock.advance(0.1)
    found = await gateways.check(8, only)
    assert found.dead == {"gw-1"} and found.verified
