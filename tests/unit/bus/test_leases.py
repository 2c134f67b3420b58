"""Leases on a bucket in memory and clocks that tests move: who may work, and from when on."""

from __future__ import annotations

import asyncio

import pytest
from lease_bucket import MemoryBucket

from onward.bus.leases import Lease
from onward.clock import ManualClock
from onward.errors import ConflictError


def lease(bucket, owner, clock, ttl=15.0) -> Lease:
    return Lease(bucket, "job", owner, ttl, clock)


async def test_a_second_owner_waits_a_whole_ttl_of_its_own_clock_without_any_renewal():
    bucket, clock_a, clock_b = MemoryBucket(), ManualClock(), ManualClock()
    a, b = lease(bucket, "a", clock_a), lease(bucket, "b", clock_b)
    assert await a.acquire() == 1
    assert await b.acquire() is None
    await clock_b.advance(14.9)
    assert await b.acquire() is None
    await clock_a.advance(5)
    await a.renew()
    await clock_b.advance(5)
    assert await b.acquire() is None  # the revision moved: the wait begins again
    await clock_b.advance(14.9)
    assert await b.acquire() is None
    await clock_b.advance(0.1)
    assert await b.acquire() == 3


async def test_epochs_rise_with_every_owner():
    bucket, clock = MemoryBucket(), ManualClock()
    epochs = []
    for owner in "abc":
        holder = lease(bucket, owner, clock)
        epochs.append(await holder.acquire())
        await holder.renew()
        await holder.release()
    assert epochs == sorted(set(epochs))


async def test_a_holder_that_slept_through_its_ttl_stops_even_when_nobody_took_it():
    bucket, clock = MemoryBucket(), ManualClock()
    a = lease(bucket, "a", clock)
    await a.acquire()
    await clock.advance(15.0)
    assert not a.held
    with pytest.raises(ConflictError, match="ran out"):
        await a.renew()


async def test_a_zombie_cannot_renew_what_another_owner_took():
    bucket, slow, fast = MemoryBucket(), ManualClock(), ManualClock()
    a, b = lease(bucket, "a", slow), lease(bucket, "b", fast)
    await a.acquire()
    await b.acquire()
    await fast.advance(15)
    assert await b.acquire() == 2
    with pytest.raises(ConflictError, match="taken by another process"):
        await a.renew()
    assert a.epoch is None and not a.held
    await b.renew()


async def test_renewal_tries_on_while_the_server_is_away_and_fences_itself_in_time():
    bucket, clock = MemoryBucket(), ManualClock()
    a = lease(bucket, "a", clock)
    await a.acquire()
    bucket.away = True
    renewing = asyncio.create_task(a.renew())
    await clock.advance(10)
    assert not renewing.done()
    bucket.away = False
    await clock.advance(1)
    await renewing
    bucket.away = True
    renewing = asyncio.create_task(a.renew())
    await clock.advance(15.1)
    with pytest.raises(ConflictError, match="ran out"):
        await renewing


async def test_keep_renews_every_third_of_the_ttl_until_it_is_lost():
    bucket, clock = MemoryBucket(), ManualClock()
    a = lease(bucket, "a", clock, ttl=9.0)
    await a.acquire()
    keeping = asyncio.create_task(a.keep_renewed())
    await clock.advance(30)
    assert a.held and bucket.entry.revision == 11  # 1 acquire + 10 renewals at 3 s
    bucket._set("job", b"{}")
    await clock.advance(3)
    with pytest.raises(ConflictError):
        await keeping


async def test_a_released_lease_is_free_at_once():
    bucket, clock = MemoryBucket(), ManualClock()
    a, b = lease(bucket, "a", clock), lease(bucket, "b", clock)
    await a.acquire()
    await a.release()
    assert not a.held
    assert await b.acquire() == 3
    await a.release()  # not ours any more: harmless
    await b.renew()


async def test_a_clock_jump_of_the_wall_does_not_matter():
    bucket, clock = MemoryBucket(), ManualClock()
    a, b = lease(bucket, "a", clock), lease(bucket, "b", clock)
    await a.acquire()
    await b.acquire()
    for seconds in (3600, -7200, 4e7):
        clock.jump(seconds)
        assert a.held
        await a.renew()
        assert await b.acquire() is None
