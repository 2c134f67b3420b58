"""Fault 24: commands, new jobs and crashes at odd moments end in a defined state, whatever their order."""

import random
from collections.abc import Awaitable

import pytest
from release_world import Crash, World

from onward.release.plan import TERMINAL, State

SETTINGS = {
    "steps": [0.25, 0.5, 1.0], "step_minutes": [60, 60, 0], "min_sessions": [3, 12, 0], "time_scale": 0.0005,
    "error_maturity_seconds": 1, "reward_maturity_seconds": 1,
}  # fmt: skip
COMMANDS = ("abort", "promote", "hold", "resume", "abort", "nonsense")


async def turn(world: World, sessions: int = 8) -> None:
    """One tick, with a restart after a crash."""
    await world.gateways_follow()
    if "desired" in world.bus.bucket("rl_releases").data:
        world.begin_sessions(sessions, reward_after=0.5)
    world.deliver()
    try:
        await world.releaser.tick()
    except Crash:
        world.crash_at = None
        world.start()
    await world.clock.advance(1.0)


async def outside(world: World, write: Awaitable[None]) -> None:
    """A write of somebody else: the releaser does not die in it."""
    crash_at, world.crash_at = world.crash_at, None
    await write
    world.crash_at = None if crash_at is None else crash_at + 1


async def started() -> World:
    world = World(seed=3, **SETTINGS)
    world.suite.success = {"d0": 0.5, "d1": 0.6, "d2": 0.6}
    await world.install()
    await outside(world, world.job("job-1", "d1"))
    while len(world.records) < 2 or not world.record.serving:
        await turn(world)
    return world


def check_end(world: World) -> None:
    """One model serves everybody, it is the current one, and every release was announced once at its end."""
    assert all(record.settled for record in world.records)
    (share,) = world.shares.values()
    assert share == 1.0
    serving = next(iter(world.shares))
    assert [model for model, state in world.model_states.items() if state == "current"] == [serving]
    promoted = [record for record in world.records if record.decision == "promoted"]
    assert serving == promoted[-1].candidate.model_id
    for record in world.records:
        told = [e["metadata"]["event"] for e in world.deployed
                if e["metadata"]["release_id"] == record.release_id]  # fmt: skip
        ends = [event for event in told if event not in ("candidate", "ramp")]
        assert len(ends) <= 1, told


@pytest.mark.parametrize("seed", range(8))
async def test_commands_and_crashes_in_any_order_end_in_a_defined_state(seed: int):
    chance = random.Random(seed)
    world = await started()
    ended: dict[str, State] = {}
    jobs = 1
    for _ in range(120):
        if chance.random() < 0.15:
            await outside(world, world.control("release", command=chance.choice(COMMANDS)))
        if chance.random() < 0.1:
            world.crash_at, world.crash_after = (
                len(world.writes) + chance.randint(1, 4),
                chance.random() < 0.5,
            )
        if chance.random() < 0.03 and jobs < 4:  # a new checkpoint, also in the middle of a release
            jobs += 1
            await outside(world, world.job(f"job-{jobs}", f"d{jobs}", start=chance.choice(["d0", "d1"])))
        if chance.random() < 0.03:
            await outside(world, world.control("pin", model_id=chance.choice(["agent-zero-rl-v0", None])))
        await turn(world)
        for record in world.records:
            if record.release_id in ended:
                assert record.state is ended[record.release_id], "a closed release was opened again"
            elif record.state in TERMINAL:
                ended[record.release_id] = record.state
        assert sum(not record.closed for record in world.records) <= 1
    world.crash_at = None
    await outside(world, world.control("pin", model_id=None))
    await outside(world, world.control("release", command="resume"))
    quiet = 0
    for _ in range(600):
        quiet = quiet + 1 if all(record.settled for record in world.records) else 0
        if quiet > 5:
            break
        if world.record.state is State.HELD:
            await outside(world, world.control("release", command="resume"))
        await turn(world)
    check_end(world)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("command", ["abort", "promote", "hold"])
async def test_a_command_while_a_promotion_is_carried_out_is_too_late(command: str, after: bool):
    """The releaser dies at each write of the promotion, and the command waits when it comes back."""

    async def story(crash: int | None) -> tuple[World, int]:
        world = await started()
        while world.record.state is not State.BAKING:
            await turn(world)
        begun = len(world.writes)
        world.crash_at, world.crash_after = None if crash is None else begun + crash, after
        sent = False
        for _ in range(300):
            if world.record.decision == "promoted" and not sent:
                await outside(world, world.control("release", command=command))
                sent = True
            await turn(world)
            if world.record.settled:
                break
        return world, len(world.writes) - begun

    calm, writes = await story(None)
    assert calm.record.decision == "promoted"
    for crash in range(1, writes + 1, 3):
        world, _ = await story(crash)
        assert world.record.decision == "promoted" and world.shares == calm.shares, crash
        check_end(world)


async def test_an_abort_just_before_the_promotion_wins_and_one_just_after_it_changes_nothing():
    calm = await started()
    while not calm.record.closed:
        await turn(calm)
    for late in (False, True):
        world = await started()
        while not world.record.closed:
            if not late and len(world.record.history) == len(calm.record.history) - 1:
                await outside(world, world.control("release", command="abort"))
            await turn(world)
        if late:
            await outside(world, world.control("release", command="abort"))
        while not world.record.settled:
            await turn(world)
        assert world.record.decision == ("promoted" if late else "aborted")
        check_end(world)


async def test_a_new_checkpoint_during_a_release_waits_for_its_end():
    world = await started()
    await outside(world, world.job("job-2", "d2", start="d1"))
    for _ in range(300):
        await turn(world)
        if world.record.job_id == "job-2" and world.record.settled:
            break
    first, second = (record for record in world.records if record.epoch > 0)
    assert (first.decision, second.decision) == ("promoted", "promoted")
    assert str(second.started_at) > str(first.closed_at)
    check_end(world)
