"""Bugs of other rollout controllers that must not be here: argo-rollouts and flagger, by issue number."""

import pytest
from release_world import Policy, World

from onward import config
from onward.errors import ConfigError
from onward.release.plan import State


async def ramping(**settings) -> World:
    world = World(time_scale=0.01, **{"min_sessions": [10, 20, 40, 0], **settings})
    await world.install()
    world.suite.success = {"d0": 0.5, "d1": 0.6}
    await world.job("job-1", "d1")
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    return world


async def test_argo_4841_an_abort_leaves_no_weight_on_the_candidate():
    world = await ramping()
    await world.control("release", command="abort")
    await world.run(5)
    assert world.record.state is State.ABORTED and world.shares == {"agent-zero-rl-v0": 1.0}
    assert world.record.verified_zero_at is not None


async def test_argo_4461_after_a_full_promotion_an_abort_is_read_and_changes_nothing():
    world = await ramping()
    await world.until(lambda: world.record.state is State.PROMOTED)
    await world.control("release", command="abort")
    await world.run(5)
    assert world.record.state is State.PROMOTED and world.shares == {"agent-zero-rl-v1": 1.0}


async def test_argo_1411_and_flagger_1816_a_failed_analysis_ends_the_release_with_an_alert():
    world = await ramping()
    world.policies["candidate"] = Policy(error=0.9)
    await world.until(lambda: world.record.closed, seconds=2, sessions=20)
    await world.run(3)
    assert world.record.state is State.ROLLED_BACK and world.shares == {"agent-zero-rl-v0": 1.0}
    assert world.alerts.kinds.count("rolled_back") == 1


async def test_argo_3078_after_an_abort_the_routes_do_not_change_again():
    world = await ramping()
    await world.control("release", command="abort")
    await world.run(3)
    revision = world.desired["revision"]
    await world.run(60)
    assert world.desired["revision"] == revision


async def test_argo_1665_a_restart_after_an_abort_gives_the_candidate_no_traffic():
    world = await ramping()
    await world.control("release", command="abort")
    await world.run(3)
    world.start()
    await world.run(20)
    assert world.shares == {"agent-zero-rl-v0": 1.0} and len(world.records) == 2


async def test_argo_1292_an_abort_without_a_release_changes_nothing():
    world = World()
    await world.install()
    before = world.desired
    await world.control("release", command="abort")
    await world.run(5)
    assert world.desired["arms"] == before["arms"] and world.shares == {"agent-zero-rl-v0": 1.0}


def test_flagger_1581_a_misspelt_rule_of_the_gates_is_refused_and_does_not_pass_silently():
    with pytest.raises(ConfigError, match="'sequential' or 'threshold'"):
        config.load(environ={}, overrides={"release": {"gates": "treshold"}})


async def test_flagger_1588_and_1591_a_release_in_its_last_step_can_still_be_taken_back():
    world = await ramping(bake_minutes=6000)
    await world.until(lambda: world.record.state is State.BAKING)
    world.policies["candidate"] = Policy(error=0.9)
    await world.until(lambda: world.record.closed, seconds=5, sessions=20)
    await world.run(3)
    assert world.record.state is State.ROLLED_BACK and world.shares == {"agent-zero-rl-v0": 1.0}


async def test_argo_an_analysis_without_a_measurement_is_no_success():
    world = await ramping()
    await world.run(300, seconds=10)
    assert world.record.state is not State.PROMOTED and not world.record.closed
