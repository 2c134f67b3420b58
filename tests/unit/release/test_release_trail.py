"""The trail: people from the audit stream, the releaser's decisions from the records, in order of time."""

import json

from release_world import Policy, World

from onward.contracts import subjects
from onward.release.commands import send_command
from onward.release.trail import trail
from onward.telemetry.audit import current_user


def audited(world: World) -> list[dict]:
    return [json.loads(data) for subject, data in world.bus.published.values() if subject == subjects.AUDIT]


async def test_who_approved_held_and_rolled_back_what_in_order():
    world = World(approval="always", time_scale=0.01, min_sessions=[10, 10, 10, 0])
    await world.install()
    world.suite.success = {"d0": 0.5, "d1": 0.6}
    await world.job("job-1", "d1")
    await world.until(lambda: len(world.records) > 1 and world.record.state == "waiting", seconds=1)
    name = world.record.candidate.model_id
    await send_command(world.bus, "approve", name, clock=world.clock, by="ada", reason="read the report")  # type: ignore[arg-type]
    await world.until(lambda: world.record.serving, seconds=1, sessions=0)
    await send_command(world.bus, "hold", clock=world.clock)  # type: ignore[arg-type]
    world.policies["candidate"] = Policy(error=1.0)
    await world.until(lambda: world.record.closed, seconds=1)
    found = [action for action in trail(audited(world), world.records) if action.about == name]
    assert [(action.by, action.what) for action in found] == [
        ("releaser", "waits for approval"),
        ("ada", "release_approve"),
        ("releaser", "first traffic"),
        (current_user(), "release.hold"),
        ("releaser", "rolled back"),
    ]
    assert found[1].why == "read the report" and "high_error_rate" in found[-1].why
    assert all(action.concerns(world.record.release_id) for action in found)
    assert [action.at for action in found] == sorted(action.at for action in found)


def test_a_tag_and_a_key_are_named_and_what_is_missing_is_no_fault():
    at = "2026-01-05T18:00:00.000Z"
    tagged, asked, bare = trail(
        [
            {"event": "models.tag", "by": "ada", "timestamp": at, "model_id": "v2", "tag": "stable",
             "taken_from": "v1"},
            {"event": "admin.traffic", "by": "root", "key": "ci", "timestamp": at, "release_id": "r1",
             "asked": {"model_id": "v3", "traffic_percentage": 25}, "result": "share"},
            {"event": "learning.pause", "by": "ada", "timestamp": at},
        ],
        [],
    )  # fmt: skip
    assert (tagged.by, tagged.about, tagged.why) == ("ada", "v2", "tag stable, taken_from v1")
    assert tagged.concerns("v1") and not tagged.concerns("v3")
    assert (asked.by, asked.what, asked.about) == ("ci", "admin.traffic", "v3")
    assert asked.why == "release_id r1, result share, traffic_percentage 25"
    assert asked.concerns("r1") and asked.concerns("v3") and not asked.concerns("v2")
    assert (bare.about, bare.why) == ("", "")
