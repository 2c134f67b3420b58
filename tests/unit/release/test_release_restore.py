"""An operator goes back to a model that served before, in a world of fakes."""

import json

import pytest
from release_world import Crash, World

from onward.contracts import ModelDeployed, decode, subjects
from onward.errors import ConflictError, NotFoundError, ObjectError, OnwardError, TamperedError
from onward.release.commands import send_command
from onward.release.record import ReleaseRecord
from onward.release.restore import request_restore
from onward.release.wording import what_happened

QUICK = {"time_scale": 0.01, "min_sessions": [10, 20, 40, 0]}
V0, V1, V2 = (f"agent-zero-rl-v{n}" for n in range(3))


async def promote(world: World, job: str, digest: str, start: str) -> None:
    world.suite.success = {"d0": 0.5, "d1": 0.6, "d2": 0.7, "d4": 0.8}
    await world.job(job, digest, start=start)
    await settled(world, job)
    assert world.record.decision == "promoted"


async def settled(world: World, job: str) -> None:
    await world.until(lambda: any(r.job_id == job and r.epoch and r.settled for r in world.records))


async def promoted(times: int = 2) -> World:
    world = World(**QUICK)
    await world.install()
    for n in range(1, times + 1):
        await promote(world, f"job-{n}", f"d{n}", f"d{n - 1}")
    return world


async def copied(world: World) -> World:
    """Another world with the same buckets and messages, at the same time."""
    other = World(**QUICK)
    for name, bucket in world.bus.buckets.items():
        other.bus.bucket(name).data = dict(bucket.data)
    other.bus.published = dict(world.bus.published)
    other.revision = world.revision
    await other.clock.advance(world.clock.monotonic() - other.clock.monotonic())
    other.start()
    return other


async def go_back(world: World, to: str | None = None, ticks: int = 4) -> str:
    record = await request_restore(world.bus, to, "answers got shorter", clock=world.clock)  # type: ignore[arg-type]
    await world.run(ticks)
    return record.release_id


def found(world: World, release_id: str) -> ReleaseRecord:
    return next(record for record in world.records if record.release_id == release_id)


def audit(world: World) -> list[dict]:
    return [json.loads(data) for subject, data in world.bus.published.values() if subject == subjects.AUDIT]


async def test_it_goes_back_to_the_model_before_and_stays_there():
    world = await promoted()
    name = await go_back(world)
    assert world.shares == {V1: 1.0}
    assert world.desired["previous"] is None
    assert world.model_states == {V0: "retired", V1: "current", V2: "rolled_back"}
    record = next(record for record in world.records if record.release_id == name)
    assert (record.state, record.decision, record.settled) == ("rolled_back", "rolled_back", True)
    assert record.verified_zero_at is not None
    await world.run(20)
    assert world.shares == {V1: 1.0}
    world.start()
    await world.run(5)
    assert world.shares == {V1: 1.0}


async def test_the_event_is_a_rollback_with_an_id_of_its_own_and_says_who_and_why(monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    world = await promoted(1)
    name = await go_back(world)
    event = world.deployed[-1]
    decode(json.dumps(event).encode(), ModelDeployed)
    assert event["model_info"]["model_id"] == V0
    assert event["deployment_config"]["traffic_percentage"] == 100
    told = event["metadata"]
    assert (told["event"], told["reason"]) == ("rollback", "operator_request")
    assert (told["previous_model"], told["release_id"]) == (V1, name)
    assert (told["approval_status"], told["requested_by"], told["note"]) == (
        "manual_approved", "ada", "answers got shorter",
    )  # fmt: skip
    ids = [event["deployment_id"] for event in world.deployed]
    assert len(set(ids)) == len(ids)
    (entry,) = audit(world)
    assert entry == {
        "event": "models.rollback", "by": "ada", "timestamp": entry["timestamp"], "taken_back": V1,
        "restored": V0, "reason": "answers got shorter", "release_id": name, "result": "asked",
    }  # fmt: skip


async def test_a_named_model_is_restored_and_the_one_taken_back_can_come_again():
    world = await promoted()
    await go_back(world, V0)
    assert world.model_states == {V0: "current", V1: "retired", V2: "rolled_back"}
    await go_back(world, V2)
    assert world.shares == {V2: 1.0}
    assert world.model_states == {V0: "rolled_back", V1: "retired", V2: "current"}
    await go_back(world)
    assert world.shares == {V1: 1.0}


async def test_the_ancestor_that_was_taken_back_itself_is_passed_over():
    world = await promoted()
    await go_back(world)  # v2 is taken back: v1 serves
    await go_back(world, V2)  # and now v1 is
    await go_back(world)
    assert world.shares == {V0: 1.0}


async def test_only_a_model_that_served_everybody_can_be_gone_back_to():
    world = await promoted(1)
    with pytest.raises(NotFoundError, match=f"'nope' never served everybody.*expected {V0}"):
        await go_back(world, "nope")
    with pytest.raises(ConflictError, match="serves already"):
        await go_back(world, V1)
    await go_back(world)
    with pytest.raises(NotFoundError, match=f"no model before {V0}: name one of {V1}"):
        await go_back(world)
    alone = World(**QUICK)
    await alone.install()
    with pytest.raises(NotFoundError, match=f"No model but {V0} ever served"):
        await go_back(alone)
    fresh = World(**QUICK)
    with pytest.raises(NotFoundError, match="No model was released yet"):
        await go_back(fresh)
    assert audit(fresh) == []


async def test_it_is_refused_during_a_release_and_while_a_model_is_pinned():
    world = await promoted(1)
    world.suite.success["d2"] = 0.7
    await world.job("job-2", "d2", start="d1")
    await world.until(lambda: world.record.serving, sessions=0, seconds=1)
    with pytest.raises(ConflictError, match="onward releases abort"):
        await go_back(world)
    await send_command(world.bus, "abort", clock=world.clock)  # type: ignore[arg-type]
    await world.until(lambda: world.record.settled, seconds=1)
    await world.control("pin", model_id=V1)
    with pytest.raises(ConflictError, match="onward unpin"):
        await go_back(world)
    await world.control("pin", model_id=None)
    await go_back(world)  # the old 'abort' was for the release before, not for this
    assert world.shares == {V0: 1.0}


async def test_nothing_changes_when_another_model_serves_by_the_time_it_is_taken_up():
    world = await promoted()
    first = await request_restore(world.bus, V1, "one", clock=world.clock)  # type: ignore[arg-type]
    second = first.model_copy(update={"release_id": "second", "created_at": "2999-01-01T00:00:00Z"})
    await world.bus.bucket("rl_releases").create("release.second", second.model_dump_json().encode())
    await world.run(8)
    late = world.records[-1]
    assert (late.release_id, late.state, late.settled) == ("second", "rejected", True)
    assert f"{V2} was to be taken back, but {V1} serves now" in str(late.reason)
    assert world.shares == {V1: 1.0}
    assert "rollback_refused" in world.alerts.kinds
    assert [event["metadata"]["event"] for event in world.deployed].count("rollback") == 1


async def test_what_was_trained_from_the_model_taken_back_is_refused_and_the_restored_one_learns_on():
    world = await promoted()
    await go_back(world)
    await world.job("job-3", "d3", start="d2")
    await settled(world, "job-3")
    assert (world.record.decision, world.record.reason_code) == ("rejected", "stale_start")
    await promote(world, "job-4", "d4", "d1")
    assert world.record.candidate.parent == V1
    assert world.model_states[V2] == "rolled_back"


async def test_a_crash_at_every_write_ends_in_the_same_place():
    begin = await promoted()
    calm = await copied(begin)
    await go_back(calm)
    points = len(calm.writes)
    assert points >= 7  # audit, wish, decision, two models, routes, event, settled
    for n in range(1, points + 1):
        for after in (False, True):
            world = await copied(begin)
            world.crash_at, world.crash_after = n, after
            try:
                await request_restore(world.bus, None, "answers got shorter", clock=world.clock)  # type: ignore[arg-type]
            except Crash:  # the operator's own process: asked again where nothing was asked yet
                world.crash_at = None
                if world.records[-1].kind != "rollback":
                    await request_restore(world.bus, None, "answers got shorter", clock=world.clock)  # type: ignore[arg-type]
            for _ in range(8):
                try:
                    await world.run(1)
                except Crash:
                    world.crash_at = None
                    world.start()
            assert world.crash_at is None, f"write {n} was never reached"
            assert world.shares == {V1: 1.0}
            assert world.model_states == calm.model_states
            assert world.records[-1].settled
            assert [e["metadata"]["event"] for e in world.deployed].count("rollback") == 1


async def test_the_alert_of_an_aborted_rollback_names_both_models():
    world = await promoted(1)
    await request_restore(world.bus, None, "answers got shorter", clock=world.clock)  # type: ignore[arg-type]
    await world.control("pin", model_id=V1)
    await world.run(4)
    (message,) = (message for kind, message, *_ in world.alerts.raised if kind == "release_aborted")
    assert message == f"Going back from {V1} to {V0} was aborted: a model is pinned."
    assert world.shares == {V1: 1.0}


async def test_when_no_gateway_can_load_the_model_the_serving_one_stays_and_the_record_says_why():
    world = await promoted()
    states, desired, events = world.model_states, world.desired, len(world.deployed)
    world.unloadable = "d1"
    name = await go_back(world, ticks=15)
    assert (found(world, name).state, world.shares) == ("restoring", {V1: 1.0})
    assert world.model_states == states
    await world.run(15)
    record = found(world, name)
    assert (record.state, record.decision, record.settled) == ("aborted", "aborted", True)
    assert record.verified_zero_at is None
    sentence = f"Going back from {V2} to {V1} was aborted: no gateway can load it (adapter d1 is damaged)."
    assert what_happened(record) == sentence
    assert ("release_aborted", sentence) in [raised[:2] for raised in world.alerts.raised]
    assert world.desired == {**desired, "revision": desired["revision"] + 2}
    assert world.model_states == states
    assert len(world.deployed) == events, "the serving model was announced already"
    await promote(world, "job-4", "d4", "d2")


async def test_a_rollback_that_one_of_two_gateways_cannot_load_ends_and_the_next_release_is_taken_up():
    world = await promoted()
    world.alive = {"gw-1", "gw-2"}
    await world.run(4)
    world.unloadable, world.can_load = "d1", {"gw-1"}
    name = await go_back(world, ticks=15)
    assert (found(world, name).state, world.shares) == ("restoring", {V1: 1.0})
    await world.run(15)
    record = found(world, name)
    assert (record.state, record.settled, world.shares) == ("aborted", True, {V2: 1.0})
    assert record.reason == "gateway gw-2 cannot load it (adapter d1 is damaged)"
    await promote(world, "job-4", "d4", "d2")


async def test_a_rollback_waits_for_every_gateway_and_not_for_one_that_is_gone():
    world = await promoted()
    world.alive = {"gw-1", "gw-2"}
    await world.run(4)
    world.alive = {"gw-1"}
    name = await go_back(world)
    assert found(world, name).state == "restoring"
    await world.run(30)
    assert (found(world, name).state, found(world, name).settled) == ("rolled_back", True)
    assert world.shares == {V1: 1.0}


async def test_an_operator_ends_a_rollback_that_no_gateway_follows():
    world = await promoted(1)
    world.alive.clear()
    name = await go_back(world)
    assert (found(world, name).state, world.shares) == ("restoring", {V0: 1.0})
    with pytest.raises(ConflictError, match="onward releases abort"):
        await go_back(world)
    await send_command(world.bus, "abort", clock=world.clock)  # type: ignore[arg-type]
    await world.run(2)
    assert (found(world, name).state, world.shares) == ("aborted", {V1: 1.0})
    world.alive = {"gw-1"}
    await world.run(2)
    assert found(world, name).settled


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("Object checkpoints/job-1/1/manifest.json does not exist in /objects."),
        TamperedError("The manifest of checkpoints/job-1/1 is not the one that was committed."),
    ],
)
async def test_a_model_that_its_files_show_to_be_unloadable_is_refused_before_anything_changes(
    error: OnwardError,
):
    world = await promoted()
    states, desired = world.model_states, world.desired
    world.suite.unusable["d1"] = error
    name = await go_back(world)
    record = found(world, name)
    assert (record.state, record.settled, record.reason_code) == ("rejected", True, "not_loadable")
    assert record.reason == f"{V1} cannot be loaded: {str(error)[:-1]}"
    assert (world.model_states, world.desired) == (states, desired)
    assert ("rollback_refused", f"Nothing was changed: {record.reason}.") in [
        raised[:2] for raised in world.alerts.raised
    ]


async def test_an_object_store_that_is_away_does_not_keep_a_rollback_from_what_gateways_hold():
    world = await promoted()
    world.suite.unusable["d1"] = ObjectError("The object store does not answer.")
    await go_back(world)
    assert world.shares == {V1: 1.0}


async def test_a_crash_at_every_write_of_a_failing_rollback_leaves_the_serving_model():
    begin = await promoted()
    await request_restore(begin.bus, None, "answers got shorter", clock=begin.clock)  # type: ignore[arg-type]
    calm = await copied(begin)
    calm.unloadable = "d1"
    await calm.run(30)
    assert calm.records[-1].settled
    points = len(calm.writes)
    assert points >= 6  # decision, routes, their number, end, routes, settled
    for n in range(1, points + 1):
        for after in (False, True):
            world = await copied(begin)
            world.unloadable = "d1"
            world.crash_at, world.crash_after = n, after
            for _ in range(60):
                try:
                    await world.run(1)
                except Crash:
                    world.crash_at = None
                    world.start()
            assert world.crash_at is None, f"write {n} was never reached"
            assert (world.shares, world.model_states) == ({V2: 1.0}, calm.model_states)
            assert (world.records[-1].state, world.records[-1].settled) == ("aborted", True)
