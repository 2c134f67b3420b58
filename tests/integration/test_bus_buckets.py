"""Buckets and leases on a real server: compare-and-set, watching, pitfalls 15 to 17."""

from __future__ import annotations

import asyncio

import nats.errors
import pytest
from nats.aio.subscription import Subscription

from onward.bus import BUCKETS, Bus, Lease
from onward.bus.pull import Puller
from onward.clock import ManualClock
from onward.errors import BusError, ConflictError, NotFoundError


async def test_values_revisions_and_keys(bus):
    jobs = bus.bucket("rl_jobs")
    assert await jobs.get("job.a") is None
    first = await jobs.create("job.a", b"1")
    second = await jobs.update("job.a", b"2", first)
    third = await jobs.put("job.b", b"\x00\xff")
    await jobs.put("other", b"x")
    assert first < second < third
    entry = await jobs.get("job.a")
    assert (entry.key, entry.value, entry.revision) == ("job.a", b"2", second)
    assert await jobs.keys() == ["job.a", "job.b", "other"]
    assert await jobs.keys("job.") == ["job.a", "job.b"]
    assert await jobs.keys("jo") == ["job.a", "job.b"]
    assert [(e.key, e.value) for e in await jobs.entries("job.")] == [("job.a", b"2"), ("job.b", b"\x00\xff")]


async def test_compare_and_set_lets_one_win(bus):
    jobs = bus.bucket("rl_jobs")
    revision = await jobs.create("k", b"0")
    with pytest.raises(ConflictError):
        await jobs.create("k", b"1")
    results = await asyncio.gather(
        *(jobs.update("k", b"%d" % i, revision) for i in range(10)), return_exceptions=True
    )
    winners = [i for i, r in enumerate(results) if isinstance(r, int)]
    assert len(winners) == 1
    assert all(isinstance(r, ConflictError) for i, r in enumerate(results) if i != winners[0])
    assert (await jobs.get("k")).value == b"%d" % winners[0]


async def test_create_lets_one_win(bus):
    jobs = bus.bucket("rl_jobs")
    results = await asyncio.gather(*(jobs.create("k", b"x") for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(r, int) for r in results) == 1


async def test_a_deleted_key_is_gone_and_can_be_created_again(bus):
    jobs = bus.bucket("rl_jobs")
    await jobs.create("k", b"1")
    await jobs.delete("k")
    assert await jobs.get("k") is None and await jobs.keys() == [] and await jobs.entries() == []
    assert await jobs.create("k", b"2") == 3
    assert (await jobs.get("k")).value == b"2"


async def test_a_write_whose_answer_was_lost_does_not_conflict_with_itself(bus, monkeypatch):
    jobs = bus.bucket("rl_jobs")
    revision = await jobs.create("k", b"0")
    publish, calls = bus.js.publish, []

    async def answer_lost(subject, data, **options):
        ack = await publish(subject, data, **options)
        calls.append(ack.seq)
        if len(calls) == 1:
            raise nats.errors.TimeoutError
        return ack

    monkeypatch.setattr(bus.js, "publish", answer_lost)
    assert await jobs.update("k", b"1", revision) == revision + 1
    assert (await jobs.get("k")).value == b"1"
    monkeypatch.undo()
    with pytest.raises(ConflictError):  # while a true conflict stays one
        await jobs.update("k", b"2", revision)


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "a*", ">", "a.>", "ä", "x" * 401, "a\nb"])
async def test_a_key_that_is_a_wildcard_or_no_key_is_refused(bus, key):
    with pytest.raises(BusError, match="is not a key"):
        await bus.bucket("rl_jobs").put(key, b"x")


async def test_an_undeclared_bucket_is_refused_and_a_missing_one_says_what_to_do(bare_bus):
    with pytest.raises(NotFoundError, match="rl_jobs"):
        bare_bus.bucket("rl_rollouts")
    jobs = bare_bus.bucket("rl_jobs")
    calls = (jobs.get("k"), jobs.entries(), jobs.history("k"), jobs.put("k", b"x", deadline=0.5))
    for call in calls:
        with pytest.raises(BusError, match=r"Bucket rl_jobs does not exist on the server: .*'onward up'"):
            await call


async def test_every_bucket_has_one_writer_role_and_only_throwaway_ones_expire(bus):
    for name, spec in BUCKETS.items():
        config = (await bus.js.stream_info(f"KV_{name}")).config
        assert config.max_msgs_per_subject == spec.history and (config.max_age or None) == spec.ttl
        assert config.storage == "file" and config.discard == "new"
        assert spec.writer and spec.what
    assert {n for n, s in BUCKETS.items() if s.ttl} == {"rl_closes", "rl_gateways", "rl_roles", "rl_sessions"}


class Watching:
    """Collects what a watch yields."""

    def __init__(self, bus: Bus, bucket: str, key: str, poll_seconds: float = 5.0, **options) -> None:
        self.got: list[tuple[str, bytes]] = []

        async def follow() -> None:
            async for entry in bus.bucket(bucket).watch(key, poll_seconds, **options):
                self.got.append((entry.key, entry.value))

        self.task = asyncio.create_task(follow())

    async def until(self, *expected: tuple[str, bytes]) -> None:
        try:
            async with asyncio.timeout(30):
                while self.got[-len(expected) :] != list(expected):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"expected {expected} at the end of {self.got}")

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_a_watch_shows_what_is_there_and_each_change_at_once(bus):
    control = bus.bucket("rl_control")
    await control.put("learning", b"1")
    watching = Watching(bus, "rl_control", "learning", poll_seconds=600)
    await watching.until(("learning", b"1"))
    await control.put("other", b"x")
    await control.put("learning", b"2")
    await watching.until(("learning", b"2"))
    await control.delete("learning")
    await control.put("learning", b"3")
    await watching.until(("learning", b"3"))
    assert [value for _, value in watching.got] == [b"1", b"2", b"3"]
    await watching.stop()


async def test_a_cancellation_that_the_client_swallows_ends_a_long_wait(bus, monkeypatch):
    original, swallowed = Subscription.next_msg, []

    async def swallow(self, timeout):
        try:
            return await original(self, timeout)
        except asyncio.CancelledError:
            swallowed.append(timeout)
            raise nats.errors.TimeoutError from None

    monkeypatch.setattr(Subscription, "next_msg", swallow)
    control = bus.bucket("rl_control")
    await control.put("learning", b"1")
    watching = Watching(bus, "rl_control", "learning", poll_seconds=60)
    await watching.until(("learning", b"1"))
    await asyncio.sleep(0.1)  # it waits for the next change
    async with asyncio.timeout(30):
        await watching.stop()
    assert len(swallowed) == 1 and watching.task.cancelled()


async def test_a_watch_of_everything_shows_deletions_when_asked(bus):
    control = bus.bucket("rl_control")
    watching = Watching(bus, "rl_control", ">", deletes=True)
    await control.put("a", b"1")
    await watching.until(("a", b"1"))
    await control.put("b.c", b"2")
    await watching.until(("b.c", b"2"))
    await control.delete("a")
    await watching.until(("a", b""))
    await watching.stop()


async def test_a_watch_goes_on_when_its_consumer_is_deleted_behind_its_back(bus):
    control = bus.bucket("rl_control")
    watching = Watching(bus, "rl_control", "learning", poll_seconds=0.5)
    await control.put("learning", b"1")
    await watching.until(("learning", b"1"))
    (consumer,) = await bus.js.consumers_info("KV_rl_control")
    await bus.js.delete_consumer("KV_rl_control", consumer.name)
    await control.put("learning", b"2")
    await watching.until(("learning", b"2"))
    await watching.stop()


async def test_a_watch_sees_what_a_silent_consumer_missed_by_polling(bus, monkeypatch):
    async def deaf(self, count, *, linger=0.0):
        await asyncio.sleep(linger)
        return []

    monkeypatch.setattr("onward.bus.pull.Puller.pull", deaf)
    watching = Watching(bus, "rl_control", "learning", poll_seconds=0.1)
    await bus.bucket("rl_control").put("learning", b"1")
    await watching.until(("learning", b"1"))
    await bus.bucket("rl_control").put("learning", b"2")
    await watching.until(("learning", b"2"))
    await watching.stop()


async def test_a_watch_outlives_the_server_and_shows_no_value_twice(own_server):
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams()
    control = bus.bucket("rl_control")
    await control.put("learning", b"1")
    watching = Watching(bus, "rl_control", "learning", poll_seconds=0.5)
    await watching.until(("learning", b"1"))
    await own_server.kill()
    await asyncio.sleep(0.3)
    await own_server.start()
    await control.put("learning", b"2")
    await watching.until(("learning", b"2"))
    assert [value for _, value in watching.got] == [b"1", b"2"]
    await watching.stop()
    await bus.close()


async def test_a_watch_leaves_no_consumer_behind(bus):
    watching = Watching(bus, "rl_control", "learning")
    await bus.bucket("rl_control").put("learning", b"1")
    await watching.until(("learning", b"1"))
    await watching.stop()
    async with asyncio.timeout(20):  # the server removes it by itself after 60 s only
        while await bus.js.consumers_info("KV_rl_control"):
            await asyncio.sleep(0.02)


async def test_a_lease_never_becomes_immortal_and_no_server_clock_decides(bus):
    mine, theirs = ManualClock(), ManualClock()
    bucket = bus.bucket("rl_leases")
    a = Lease(bucket, "rewarder", "a", 10.0, mine)
    b = Lease(bucket, "rewarder", "b", 10.0, theirs)
    epoch = await a.acquire()
    for _ in range(3):
        await mine.advance(5)
        await a.renew()
        assert await b.acquire() is None
        await theirs.advance(5)
    await theirs.advance(10)  # a is silent from here on
    taken = await b.acquire()
    assert taken is not None and epoch is not None and taken > epoch
    with pytest.raises(ConflictError):
        await a.renew()
    assert (await bus.js.stream_info("KV_rl_leases")).config.max_age in (None, 0)


async def test_two_that_reach_for_a_free_lease_get_one_owner(bus):
    leases = [Lease(bus.bucket("rl_leases"), "k", str(i), 10.0, ManualClock()) for i in range(8)]
    epochs = await asyncio.gather(*(lease.acquire() for lease in leases))
    assert sum(e is not None for e in epochs) == 1 and sum(lease.held for lease in leases) == 1


async def test_reading_all_keys_ends_when_the_client_swallowed_the_cancellation(bus: Bus, monkeypatch):
    """Until Python 3.12 ``wait_for`` may drop a cancellation, and a trainer in its loop never stopped."""
    pulls, reached = Puller.pull, asyncio.Event()

    async def swallowing(self, count, *, linger=0.0):
        try:
            reached.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return await pulls(self, count, linger=linger)

    monkeypatch.setattr(Puller, "pull", swallowing)
    reading = asyncio.create_task(bus.bucket("rl_jobs").entries())
    await reached.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(reading), 10)


async def test_an_unchanged_bucket_is_read_again_without_a_consumer_and_a_changed_one_is_not_stale(
    bus: Bus, monkeypatch
):
    made, add_consumer = [], bus.js.add_consumer

    async def counting(*args, **more):
        made.append(args)
        return await add_consumer(*args, **more)

    monkeypatch.setattr(bus.js, "add_consumer", counting)
    jobs, other = bus.bucket("rl_jobs"), bus.bucket("rl_models")
    await jobs.create("job.a", b"1")
    await other.create("m", b"x")
    for _ in range(5):
        assert [(e.key, e.value) for e in await bus.bucket("rl_jobs").entries("job.")] == [("job.a", b"1")]
        assert await bus.bucket("rl_models").keys() == ["m"]
    assert len(made) == 2, "one for each bucket"
    (await jobs.entries("job.")).clear()
    await jobs.update("job.a", b"2", (await jobs.entries("job."))[0].revision)
    assert [e.value for e in await jobs.entries("job.")] == [b"2"]
    await jobs.delete("job.a")
    assert await jobs.entries("job.") == [] and await jobs.keys() == []
    await jobs.create("job.a", b"3")
    assert [e.value for e in await jobs.entries("job.")] == [b"3"]
    await bus.js.purge_stream("KV_rl_jobs")
    assert await jobs.entries("job.") == []
