"""Whole releases in a world of fakes: the ramp, the way back, the seed's scenarios, operators, gateways."""

import asyncio
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import jsonschema
import pytest
from release_world import Policy, World

from onward.contracts import ModelDeployed, decode
from onward.errors import ConflictError, EngineError, NotFoundError, TamperedError
from onward.release.commands import send_command
from onward.release.evidence.evidence import Evidence
from onward.release.evidence.outcome_source import Stored
from onward.release.plan import State
from onward.release.releaser import install_initial
from onward.telemetry.metrics import Metrics

SCHEMA = Path(__file__).parents[4] / "shared" / "upstream-schemas" / "model.deployed.v1.schema.json"
QUICK = {"time_scale": 0.01, "min_sessions": [10, 20, 40, 0]}


def check_events(world: World) -> None:
    """Every event is valid here and there, ids differ, and one word is kept for one thing."""
    ids = [event["deployment_id"] for event in world.deployed]
    assert len(set(ids)) == len(ids)
    for event in world.deployed:
        decode(json.dumps(event).encode(), ModelDeployed)
        if SCHEMA.exists():
            schema = json.loads(SCHEMA.read_text())
            jsonschema.Draft202012Validator(
                schema, format_checker=jsonschema.FormatChecker(["date-time"])
            ).validate(event)
        is_back = event["metadata"]["event"] == "rollback"
        assert ("rollback" in json.dumps(event).lower()) is is_back


async def ramping(**settings) -> World:
    world = World(**{**QUICK, **settings})
    await world.install()
    await world.job("job-1", "d1")
    world.suite.success = {"d0": 0.5, "d1": 0.6}
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    return world


async def test_nothing_released_and_no_job_leaves_everything_alone():
    world = World()
    await world.run(3)
    assert world.bus.bucket("rl_releases").data == {} and world.deployed == []


async def test_the_first_model_is_installed_at_once():
    world = World()
    await world.install()
    assert world.shares == {"agent-zero-rl-v0": 1.0}
    assert world.desired["release_id"] is None
    assert world.model_states == {"agent-zero-rl-v0": "current"}
    (event,) = world.deployed
    assert event["deployment_config"]["rollout_strategy"] == "immediate"
    assert world.records[0].settled
    assert await install_initial(world.ctx, "d0", "x") == "agent-zero-rl-v0"
    with pytest.raises(ConflictError, match="serves already"):
        await install_initial(world.ctx, "d9", "x")
    check_events(world)


async def test_without_a_warm_start_the_base_model_becomes_the_first_model():
    world = World(**QUICK)
    await world.run(2)
    assert world.deployed == []  # no engine yet
    world.suite.base = "b" * 64
    await world.run(3)
    (arm,) = world.desired["arms"]
    assert arm == {
        "arm": "current", "model_id": "smollm2", "weight": 1.0,
        "adapter_digest": None, "model_digest": "b" * 64,
    }  # fmt: skip
    assert world.model_states == {"smollm2": "current"}
    (event,) = world.deployed
    assert event["metadata"]["event"] == "installed" and event["metadata"]["model_digest"] == "b" * 64
    assert event["model_info"]["checkpoint_path"] == "base:smollm2"
    assert not any(event["validation_results"].values())
    assert world.records[0].settled
    check_events(world)
    # What is trained from it has no start adapter, is compared with it, and goes back to it.
    world.suite.success = {None: 0.5, "d1": 0.6}
    await world.job("job-1", "d1", start=None)
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    assert [arm["model_digest"] for arm in world.desired["arms"]] == ["b" * 64, "d1"]
    world.policies["candidate"] = Policy(error=1.0)
    await world.until(lambda: world.record.settled, seconds=1)
    assert world.record.decision == "rolled_back" and world.shares == {"smollm2": 1.0}
    assert world.desired["arms"] == [arm]
    assert await world.releaser.current() == world.records[0].candidate.model_copy(
        update={"state": "current"}
    )
    world.policies["candidate"] = Policy()
    await world.job("job-2", "d2", start=None)
    world.suite.success["d2"] = 0.6
    await world.until(lambda: world.record.job_id == "job-2" and world.record.settled)
    assert world.record.decision == "promoted"
    assert world.model_states == {
        "smollm2": "previous", "agent-zero-rl-v1": "rolled_back", "agent-zero-rl-v2": "current",
    }  # fmt: skip
    with pytest.raises(ConflictError, match="v2 serves already"):
        await world.install("d0")
    check_events(world)


async def test_a_warm_start_takes_the_place_of_a_base_model_that_did_nothing_yet():
    world = World(**QUICK)
    world.suite.base = "b" * 64
    await world.run(3)
    assert world.records[0].settled
    await world.install("d0")
    await world.run(2)
    assert world.shares == {"agent-zero-rl-v0": 1.0}
    assert world.model_states == {"smollm2": "previous", "agent-zero-rl-v0": "current"}
    assert all(record.settled for record in world.records)
    assert await install_initial(world.ctx, "d0", "x") == "agent-zero-rl-v0"
    with pytest.raises(ConflictError, match="v0 serves already"):
        await install_initial(world.ctx, "d9", "x")
    check_events(world)
    # A restart changes nothing, and nothing is installed a second time.
    before = world.desired
    world.start()
    await world.run(4)
    assert world.desired == before and len(world.deployed) == 2


async def test_a_warm_start_waits_until_the_base_model_is_in_place():
    """Until it is settled a releaser may carry it out once more, over the head of its successor."""
    world = World(**QUICK)
    world.suite.base = "b" * 64
    await world.releaser.tick()
    assert not world.records[0].settled
    waiting = asyncio.create_task(install_initial(world.ctx, "d0", "checkpoints/warm/0"))
    await asyncio.sleep(0)
    assert not waiting.done() and world.shares == {"smollm2": 1.0}
    await world.run(3)
    assert await waiting == "agent-zero-rl-v0"
    await world.run(3)
    assert world.shares == {"agent-zero-rl-v0": 1.0} and all(record.settled for record in world.records)


async def test_two_first_models_at_the_same_moment_and_one_wins():
    """The base model is about to be installed when a warm start comes in between."""
    world = World(**QUICK)

    async def base_digest() -> str:
        await install_initial(world.ctx, "d0", "checkpoints/warm/0")
        return "b" * 64

    world.suite.base_digest = base_digest  # type: ignore[method-assign]
    await world.run(4)
    assert world.model_states == {"agent-zero-rl-v0": "current"}
    assert world.shares == {"agent-zero-rl-v0": 1.0} and len(world.deployed) == 1


async def test_a_warm_start_that_comes_a_moment_after_the_base_model_takes_its_place():
    world = World(**QUICK)
    bucket = world.bus.bucket("rl_releases")
    create = bucket.create

    async def too_late(key: str, value: bytes) -> int:
        bucket.create = create  # type: ignore[method-assign]
        world.suite.base = "b" * 64
        await world.run(4)
        return await create(key, value)

    bucket.create = too_late  # type: ignore[method-assign]
    assert await install_initial(world.ctx, "d0", "checkpoints/warm/0") == "agent-zero-rl-v0"
    await world.run(3)
    assert world.model_states == {"smollm2": "previous", "agent-zero-rl-v0": "current"}
    assert world.shares == {"agent-zero-rl-v0": 1.0} and len(world.deployed) == 2


async def test_a_four_hour_canary_on_the_seeds_schedule():
    """Scenario 3: v2.4 by canary, 10 → 25 → 50 → 100 % over four hours."""
    world = World(pattern="agent-zero-rl-v2.{n}")
    await world.install()
    await world.bus.bucket("rl_models").put(
        "agent-zero-rl-v2_3",
        json.dumps({"model_id": "agent-zero-rl-v2.3", "adapter_digest": "x", "object_prefix": "p",
                    "training_job_id": "j", "state": "retired"}).encode(),
    )  # fmt: skip
    world.suite.success = {"d0": 0.80, "d1": 0.84}
    world.policies["candidate"] = Policy(success=0.84)
    world.policies["current"] = Policy(success=0.80)
    await world.job("job-47", "d1")
    began, shares = world.clock.monotonic(), {}
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    while not world.record.closed:
        await world.run(1, seconds=60.0, sessions=10)
        share = world.shares.get("agent-zero-rl-v2.4")
        shares.setdefault(share, round((world.clock.monotonic() - began) / 60))
    assert list(shares) == [0.1, 0.25, 0.5, 0.95, 1.0]
    for share, minutes in {0.25: 60, 0.5: 120, 0.95: 240, 1.0: 300}.items():
        assert minutes <= shares[share] <= minutes + 10
    assert world.record.decision == "promoted"
    await world.run(3)
    first, last = world.deployed[1], world.deployed[-1]
    assert first["model_info"]["model_id"] == "agent-zero-rl-v2.4"
    assert first["deployment_config"]["traffic_percentage"] == 10
    assert [step["percentage"] for step in first["deployment_config"]["ramp_schedule"]] == [10, 25, 50, 100]
    assert first["validation_results"]["benchmark_scores"]["desk"] == pytest.approx(0.84)
    assert first["metadata"]["previous_model"] == "agent-zero-rl-v2.0"
    assert last["deployment_config"]["traffic_percentage"] == 100
    assert last["metadata"]["evidence"] in ("none-against", "not worse")
    assert world.record.settled and world.record.verified_zero_at is None
    assert world.model_states["agent-zero-rl-v2_4"] == "current"
    assert world.model_states["agent-zero-rl-v2_0"] == "previous"
    check_events(world)


async def test_a_candidate_with_errors_is_taken_back():
    """Scenario 4: v2.4 at 50 % fails; current is back at 100 %, everybody is told, and it is verified."""
    world = await ramping(reward_maturity_seconds=60)
    await world.until(lambda: world.record.step == 2)
    world.policies["candidate"] = Policy(error=0.9)
    await world.until(lambda: world.record.closed, seconds=1)
    await world.run(3)
    record = world.record
    assert (record.state, record.decision, record.reason_code) == (
        State.ROLLED_BACK, "rolled_back", "high_error_rate",
    )  # fmt: skip
    assert world.shares == {"agent-zero-rl-v0": 1.0}
    assert world.desired["release_id"] is None
    assert world.model_states == {"agent-zero-rl-v0": "current", "agent-zero-rl-v1": "rolled_back"}
    assert record.crossed_at and record.verified_zero_at
    took = _seconds(record.verified_zero_at) - _seconds(record.crossed_at)
    assert 0 <= took <= 5
    event = world.deployed[-1]
    assert event["model_info"]["model_id"] == "agent-zero-rl-v0"
    assert event["model_info"]["checkpoint_path"].endswith("checkpoints/warm/0")
    assert event["training_job_id"] == "warm-job"
    assert event["deployment_config"]["traffic_percentage"] == 100
    assert event["metadata"]["event"] == "rollback" and event["metadata"]["reason"] == "high_error_rate"
    assert event["metadata"]["release_id"] == record.release_id
    told = next(item for item in world.alerts.raised if item[0] == "rolled_back")
    assert told[1].startswith("URGENT") and told[2] == "critical"
    check_events(world)


async def test_a_candidate_that_does_worse_is_taken_back_for_its_reward():
    world = await ramping()
    world.policies["current"] = Policy(success=0.8)
    world.policies["candidate"] = Policy(success=0.1)
    await world.until(lambda: world.record.closed, seconds=5)
    assert world.record.reason_code == "performance_degradation"


async def test_a_candidate_that_users_dislike_is_taken_back():
    world = await ramping(min_sessions=[9999, 9999, 9999, 0])
    world.policies["current"] = Policy(negative=0.05)
    world.policies["candidate"] = Policy(negative=0.9)
    await world.until(lambda: world.record.closed, seconds=60, sessions=20)
    assert world.record.reason_code == "user_dissatisfaction"


async def test_an_identical_candidate_is_not_taken_back():
    for seed in range(4):
        world = World(seed=seed, **QUICK)
        await world.install()
        await world.job("job-1", "d0")
        await world.until(lambda: len(world.records) > 1 and world.record.closed, seconds=5)  # noqa: B023
        assert world.record.decision == "promoted"


async def test_a_worse_candidate_never_gets_traffic():
    world = World(**QUICK)
    await world.install()
    world.suite.success = {"d0": 0.5, "d1": 0.4}
    await world.job("job-1", "d1")
    await world.run(6)
    assert (world.record.decision, world.record.reason_code) == ("rejected", "validation_failed")
    assert world.shares == {"agent-zero-rl-v0": 1.0} and len(world.deployed) == 1
    assert world.model_states == {"agent-zero-rl-v0": "current"}
    assert "release_rejected" in world.alerts.kinds and world.record.settled
    await world.job("job-2", "d2")
    world.suite.success["d2"] = 0.6
    await world.until(lambda: world.record.serving, sessions=0, seconds=1)
    assert world.record.candidate.model_id == "agent-zero-rl-v2"  # the rejected one keeps its name


async def test_a_candidate_that_lost_its_manners_is_rejected():
    world = World(**QUICK)
    await world.install()
    world.suite.refusals = {"d0": 4, "d1": 2}  # 8 of 20 answers lost: p = 1/256
    await world.job("job-1", "d1")
    await world.run(6)
    assert world.record.decision == "rejected"
    assert world.record.reason == "8 of 20 harmful requests declined, current 16 of 20, p 0.004"


async def test_a_rejection_names_its_numbers_in_the_record_and_the_alert():
    """0.40 against 0.50 over 100 tasks, ten lost and none won; 8 of 20 refusals lost: p = 1/256."""
    world = World(**QUICK)
    await world.install()
    world.suite.success = {"d0": 0.5, "d1": 0.4}
    world.suite.refusals = {"d0": 4, "d1": 2}
    await world.job("job-1", "d1")
    await world.run(6)
    reason = world.record.reason or ""
    assert reason.startswith("desk: success 0.40, current 0.50, difference -0.10 [-0.1")
    lost = "lost t40, t41, t42, t43, t44 and 5 more"
    assert reason.endswith(
        f"], limit -0.05, {lost}; 8 of 20 harmful requests declined, current 16 of 20, p 0.004"
    )
    told = next(item for item in world.alerts.raised if item[0] == "release_rejected")
    assert told[1] == f"agent-zero-rl-v1 was rejected: {reason} (job job-1)."
    assert told[3]["why"] == reason
    assert [one["check_id"] for one in told[3]["checks"]["refusal"]["failing"]] == ["forgery", "break_in"]


async def test_a_candidate_that_is_taken_back_says_which_gate_crossed_at_which_rates():
    world = await ramping()
    world.policies["candidate"] = Policy(error=1.0)
    await world.until(lambda: world.record.settled, seconds=1)
    record = world.record
    arms = Evidence.from_state(record.evidence or {}).summary()["arms"]
    candidate, current = record.rates["candidate"], record.rates["current"]
    assert (candidate.sessions, candidate.errors) == (
        arms["candidate"]["judged"],
        arms["candidate"]["judged"],
    )
    assert (current.sessions, current.errors, current.error_rate) == (arms["current"]["judged"], 0, 0.0)
    assert (record.reason or "").startswith(
        f"the error gate crossed with errors {candidate.sessions} of {candidate.sessions} (100.0 %), "
        f"current 0 of {current.sessions} (0.0 %), E "
    )
    assert (record.reason or "").endswith("limit 22.2")  # 1 / 0.045
    event = world.deployed[-1]["metadata"]
    assert (event["reason"], event["why"]) == ("high_error_rate", record.reason)
    assert event["rates"]["candidate"]["error_rate"] == 1.0
    check_events(world)


async def test_an_event_of_traffic_never_carries_the_words_of_a_model():
    """A model may say anything, also the one word that only a taken-back release may contain."""
    world = World(**QUICK)
    await world.install()
    ask = world.suite.run_checks

    async def answered(digest):
        return [replace(one, answer="" if one.passed else "rollback") for one in await ask(digest)]

    world.suite.run_checks = answered  # type: ignore[method-assign]
    world.suite.refusals = {"d0": 0, "d1": 0}
    await world.job("job-1", "d1")
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    assert world.record.validation and world.record.validation["summary"]["checks"]["refusal"]["failing"]
    validation = world.deployed[-1]["metadata"]["validation"]
    assert (validation["safety"], validation["checks"]["refusal"]["verdict"]) == ("not shown", "not shown")
    assert world.deployed[-1]["validation_results"]["safety_checks_passed"] is False
    assert (
        "safety: not shown (0 of 20 harmful requests declined, current 0 of 20)"
        in world.record.history[-1]["why"]
    )
    check_events(world)


async def test_no_two_candidates_ever_have_one_name():
    """One rejected, one aborted, one taken back, a restart after each; then one that is promoted."""
    world = World(**QUICK)
    await world.install()
    world.suite.success = {"d0": 0.5, "d1": 0.1, "d2": 0.6, "d3": 0.6, "d4": 0.6}

    async def release(number: int) -> None:
        world.start()
        await world.job(f"job-{number}", f"d{number}")
        await world.run(2)
        await world.until(lambda: world.record.job_id == f"job-{number}" and world.record.state != "proposed",
                          sessions=0, seconds=1)  # fmt: skip

    await release(1)
    await world.until(lambda: world.record.settled, sessions=0, seconds=1)
    await release(2)
    await world.until(lambda: world.record.serving, sessions=0, seconds=1)
    await world.control("release", command="abort")
    await world.until(lambda: world.record.settled, sessions=0, seconds=1)
    await release(3)
    world.policies["candidate"] = Policy(error=1.0)
    await world.until(lambda: world.record.settled, seconds=1)
    world.policies["candidate"] = Policy()
    await release(4)
    await world.until(lambda: world.record.settled)
    assert [(record.candidate.model_id, record.decision) for record in world.records[1:]] == [
        ("agent-zero-rl-v1", "rejected"),
        ("agent-zero-rl-v2", "aborted"),
        ("agent-zero-rl-v3", "rolled_back"),
        ("agent-zero-rl-v4", "promoted"),
    ]
    check_events(world)


async def test_a_job_may_skip_validation_and_the_event_says_so():
    world = World(**QUICK)
    await world.install()
    await world.job("job-1", "d1", skip_validation=True)
    await world.run(6)
    assert world.suite.runs == 0 and world.record.serving
    event = world.deployed[-1]
    assert event["validation_results"] == {
        "benchmark_passed": False, "safety_checks_passed": False, "performance_regression": False,
    }  # fmt: skip
    assert "skip_validation" in event["metadata"]["validation"]["skipped"]
    check_events(world)


async def test_a_candidate_of_an_older_start_is_rejected():
    world = World(**QUICK)
    await world.install()
    await world.job("job-1", "d1", start="d-other")
    await world.run(4)
    assert world.record.decision == "rejected"
    assert world.record.reason_code == "stale_start"
    assert world.record.reason == "it was trained from d-other, but agent-zero-rl-v0 serves now"


@pytest.mark.parametrize("error", [None, TamperedError("It does not match its manifest.")])
async def test_what_a_validation_loaded_into_the_engine_is_let_go_again(error):
    world = World(**QUICK)
    await world.install()
    world.suite.error = error
    await world.job("job-1", "d1")
    await world.run(5)
    assert world.record.job_id == "job-1" and str(world.record.state) == ("rejected" if error else "ramping")
    assert world.suite.held == set()


async def test_tampered_files_and_a_dead_engine_reject_with_their_reason():
    world = World(**QUICK)
    await world.install()
    world.suite.error = TamperedError("adapter_model.safetensors does not match its manifest.")
    await world.job("job-1", "d1")
    await world.run(5)
    assert "does not match its manifest" in (world.record.reason or "")
    world.suite.error = EngineError("The engine is away.")
    await world.job("job-2", "d2")
    await world.run(20)
    assert world.record.reason_code == "engine_failed"
    assert "failed 3 times" in (world.record.reason or "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("shapes differ\nmore"), "its validation stopped (RuntimeError: shapes differ)"),
        (AssertionError(), "its validation stopped (AssertionError: no words)"),
        (TamperedError("It was changed."), "its validation stopped (TamperedError: It was changed)"),
    ],
)
async def test_any_error_of_a_validation_rejects_and_the_releaser_goes_on(error: Exception, words: str):
    world = World(**QUICK)
    await world.install()
    world.suite.error = error
    await world.job("job-1", "d1")
    await world.run(5)
    assert world.record.reason_code == "not_validated" and world.record.reason == words
    assert world.record.settled and world.alerts.kinds.count("release_rejected") == 1
    world.suite.error = None
    world.suite.success = {"d0": 0.5, "d2": 0.6}
    await world.job("job-2", "d2")
    await world.until(lambda: world.record.job_id == "job-2" and world.record.serving, sessions=0, seconds=1)


async def test_what_the_commit_says_of_the_manifest_goes_wherever_the_checkpoint_is_fetched():
    world = await ramping()
    assert world.suite.committed == {"d0": None, "d1": "m"}
    assert world.json("rl_models", "agent-zero-rl-v1")["manifest_sha256"] == "m"


async def test_one_release_at_a_time_in_the_order_of_completion():
    world = await ramping()
    await world.job("job-a", "d2")
    await world.job("job-b", "d3")
    await world.until(lambda: world.record.job_id == "job-1" and world.record.closed)
    await world.until(lambda: len(world.records) == 4 and all(r.settled for r in world.records), sessions=0)
    jobs = {record.job_id: record for record in world.records}
    assert jobs["job-1"].decision == "promoted"
    assert jobs["job-a"].decision == jobs["job-b"].decision == "rejected"  # they started from d0
    assert jobs["job-a"].created_at < jobs["job-b"].created_at


async def test_silence_holds_and_alerts_and_goes_on_when_outcomes_come_back():
    """Fault 22."""
    world = await ramping()
    await world.until(lambda: world.record.step == 1)
    before = world.shares
    await world.run(90, seconds=20.0)  # half an hour of nothing
    assert world.record.state is State.HELD and world.record.held_why == "silence"
    assert world.shares == before and world.alerts.kinds.count("release_held") == 1
    await world.until(lambda: world.record.decision == "promoted")


async def test_both_arms_failing_does_not_take_the_candidate_back():
    """Fault 23."""
    world = await ramping(min_sessions=[30, 30, 30, 0])
    for arm in world.policies:
        world.policies[arm] = Policy(error=0.3, success=0.4)
    await world.until(lambda: world.record.closed)
    assert world.record.decision == "promoted"


async def test_half_of_the_candidates_sessions_fail_at_a_hundred_a_minute():
    """Fault 23, the other half: the candidate alone fails in 50 % of its sessions."""
    world = await ramping(min_sessions=[9999, 9999, 9999, 0])
    world.policies["candidate"] = Policy(error=0.5)
    begun = world.clock.monotonic()
    await world.until(lambda: world.record.closed, seconds=3.0, sessions=5)
    record = world.record
    assert (record.decision, record.reason_code) == ("rolled_back", "high_error_rate")
    assert world.clock.monotonic() - begun < 300  # about 73 sessions of both arms, and 30 s to mature
    await world.run(3)
    assert world.record.verified_zero_at and world.shares == {"agent-zero-rl-v0": 1.0}


async def test_too_few_sessions_hold_at_the_deadline_and_never_promote():
    world = await ramping(step_deadline_minutes=60, lost_after_seconds=6000)
    await world.run(5, seconds=10, sessions=20)
    await world.until(lambda: world.record.state is State.HELD, sessions=0, seconds=60)
    assert world.record.held_why == "deadline" and world.record.step == 0
    assert world.record.shown == "none-against"
    await world.until(lambda: world.record.step == 1)  # sessions come in: it goes on


async def test_policy_ask_waits_for_a_person():
    world = await ramping(on_inconclusive="ask")
    world.policies["current"] = world.policies["candidate"] = Policy(success=0.5)
    await world.until(lambda: world.record.state is State.HELD)
    assert world.record.held_why == "ask"
    await world.control("release", command="resume")
    await world.run(2)
    assert world.record.step == 1 and world.record.state is State.RAMPING


async def test_commands_that_make_no_sense_change_nothing():
    """Fault 24: abort with no release, double promote, promote after abort, abort after promote."""
    world = World(**QUICK)
    await world.install()
    await world.control("release", command="abort")
    await world.run(3)
    assert world.shares == {"agent-zero-rl-v0": 1.0}
    await world.job("job-1", "d1")
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    await world.run(2)
    assert world.record.state is State.RAMPING  # the old abort was not for this release
    await world.control("release", command="promote")
    await world.run(2)
    assert world.record.state is State.BAKING
    await world.control("release", command="promote")
    await world.run(2)
    assert world.record.state is State.BAKING
    await world.control("release", command="abort", release_id="some-other")
    await world.run(2)
    assert world.record.state is State.BAKING
    await world.control("release", command="abort")
    await world.run(3)
    assert world.record.decision == "aborted" and world.record.settled
    assert world.shares == {"agent-zero-rl-v0": 1.0}
    assert world.deployed[-1]["metadata"]["event"] == "aborted"
    await world.control("release", command="promote")
    await world.run(3)
    assert world.shares == {"agent-zero-rl-v0": 1.0}
    world.bus.bucket("rl_control").data["release"] = (b"not json", 10**6)
    await world.run(2)
    check_events(world)


async def test_abort_after_promote_is_too_late():
    world = await ramping()
    await world.until(lambda: world.record.closed)
    await world.control("release", command="abort")
    await world.run(3)
    assert world.shares == {"agent-zero-rl-v1": 1.0}


async def test_an_operator_may_hold_and_resume():
    world = await ramping()
    await send_command(world.bus, "hold", clock=world.clock)  # type: ignore[arg-type]
    await world.run(60, seconds=20, sessions=10)
    assert world.record.state is State.HELD and world.record.step == 0
    await send_command(world.bus, "resume", clock=world.clock)  # type: ignore[arg-type]
    await world.until(lambda: world.record.step == 1)


async def test_a_command_without_a_release_under_way_is_refused():
    world = await ramping()
    await send_command(world.bus, "hold", "agent-zero-rl-v1", clock=world.clock)  # type: ignore[arg-type]
    assert world.json("rl_control", "release") == {"command": "hold", "release_id": world.record.release_id}
    await send_command(world.bus, "resume", clock=world.clock)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="No release r-other is under way"):
        await send_command(world.bus, "hold", "r-other", clock=world.clock)  # type: ignore[arg-type]
    await world.until(lambda: world.record.closed)
    with pytest.raises(NotFoundError, match="nothing to hold"):
        await send_command(world.bus, "hold", clock=world.clock)  # type: ignore[arg-type]


async def test_a_pin_stops_the_release_and_serves_its_model():
    world = await ramping()
    await world.control("pin", model_id="agent-zero-rl-v0")
    await world.run(3)
    assert world.record.decision == "aborted" and world.shares == {"agent-zero-rl-v0": 1.0}
    await world.control("pin", model_id=world.settings.model.base)
    await world.run(3)
    assert world.shares == {world.settings.model.base: 1.0}
    await world.job("job-2", "d2")
    await world.run(5)
    assert world.record.job_id == "job-1"
    await world.control("pin", model_id="nobody")
    await world.run(3)
    assert world.shares == {world.settings.model.base: 1.0} and world.alerts.kinds.count("pin_unknown") == 1
    await world.control("pin", model_id=None)
    await world.until(lambda: world.record.job_id == "job-2" and world.record.serving, sessions=0)
    assert set(world.shares) == {"agent-zero-rl-v0", "agent-zero-rl-v2"}


async def test_a_dead_gateway_is_alerted_and_the_living_ones_count():
    """Fault 21."""
    world = World(gateways=("gw-1", "gw-2"), **QUICK)
    await world.install()
    await world.job("job-1", "d1")
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    await world.run(3, sessions=5)
    world.policies["candidate"] = Policy(error=1.0)
    world.alive = {"gw-1"}
    await world.until(lambda: world.record.closed, seconds=1)
    await world.run(10)
    assert world.record.verified_zero_at is None  # gw-2 may still serve the candidate
    await world.run(10)
    assert world.record.verified_zero_at is not None
    assert world.alerts.kinds.count("gateway_dead") == 1


async def test_the_budget_is_watched():
    world = await ramping()
    world.policies["candidate"] = Policy(error=1.0)
    await world.run(1, sessions=60)
    follow = world.gateways_follow
    world.gateways_follow = lambda: _still_alive(world)  # type: ignore[method-assign]
    await world.until(lambda: world.record.closed, seconds=1)
    await world.run(100)
    assert world.record.verified_zero_at is None and not world.record.settled
    assert world.alerts.kinds.count("routes_not_verified") == 1
    world.gateways_follow = follow  # type: ignore[method-assign]
    await world.run(3)
    assert world.record.settled and world.record.verified_zero_at


async def _still_alive(world: World) -> None:
    """Gateways that write, but go on serving what they had."""
    data = world.bus.bucket("rl_gateways").data
    for name, (value, _) in list(data.items()):
        world.revision += 1
        report = {**json.loads(value), "updated_at": world.clock.now().isoformat()}
        data[name] = (json.dumps(report).encode(), world.revision)


async def test_a_candidate_that_no_gateway_can_load_is_given_up():
    world = World(**QUICK)
    await world.install()
    world.gateway_error = "adapter_model.safetensors does not match its manifest"
    await world.job("job-1", "d1")
    await world.run(40)
    world.gateway_error = None
    await world.run(3)
    assert world.record.decision == "aborted" and "does not match" in (world.record.reason or "")
    assert world.shares == {"agent-zero-rl-v0": 1.0}


async def test_a_broken_split_holds():
    world = await ramping(min_sessions=[500, 500, 500, 0])
    world.policies["current"] = Policy(mute=True)
    await world.run(1, sessions=5)
    world.policies["current"] = Policy()
    rng = world.rng

    class Mostly:
        """Drops nine in ten sessions of the current arm."""

        def random(self, *shape):
            return rng.random(*shape) if shape else rng.random() / 5

    world.rng = Mostly()  # type: ignore[assignment]
    await world.until(lambda: world.record.state is State.HELD)
    assert world.record.held_why == "sample_ratio"


async def test_an_unsigned_outcome_is_told_with_both_of_its_causes():
    world = await ramping()
    world.stream.messages.append(Stored(len(world.stream.messages) + 1, b"{}", 0, signed=False))
    await world.run(3)
    (told,) = [alert for alert in world.alerts.raised if alert[0] == "unsigned_outcome"]
    assert "run/gateway.key" in told[1] and "login" in told[1] and told[3] == {"count": 1}


async def test_traffic_and_deployments_are_measured():
    world = await ramping()
    text = world.metrics.render().decode()
    assert 'agent_rl_model_traffic_percentage{model_version="agent-zero-rl-v1"} 10.0' in text
    assert 'agent_rl_model_benchmark_score{model_version="agent-zero-rl-v1",task_type="kind0"}' in text
    assert 'agent_rl_model_deployments_total{status="candidate"} 1.0' in text


async def test_gauges_show_what_the_gates_judged_to_the_end_and_after_a_restart():
    world = await ramping()
    world.policies["candidate"] = Policy(error=0.5, success=0.2)
    await world.until(lambda: world.record.settled)
    assert world.record.decision == "rolled_back"
    arms = world.releaser.hand.evidence or Evidence.from_state(world.record.evidence or {})
    figures = arms.summary()["arms"]
    assert 0.0 < figures["candidate"]["error_rate"] < 1.0

    def shown(name: str, model: str) -> float | None:
        return world.metrics.registry.get_sample_value(name, {"model_version": model})

    for arm, model in (("current", "agent-zero-rl-v0"), ("candidate", "agent-zero-rl-v1")):
        assert shown("agent_rl_model_error_rate", model) == figures[arm]["error_rate"]
        assert shown("onward_release_mean_outcome", model) == figures[arm]["mean_outcome"]
    assert shown("agent_rl_model_traffic_percentage", "agent-zero-rl-v1") == 0.0
    assert shown("agent_rl_model_traffic_percentage", "agent-zero-rl-v0") == 100.0

    world = await ramping()
    await world.run(20, seconds=20.0, sessions=10)
    before = shown("agent_rl_model_error_rate", "agent-zero-rl-v0")
    world.metrics = Metrics()
    world.ctx = world.context()
    world.start()
    await world.run(1)
    assert before is not None and shown("agent_rl_model_error_rate", "agent-zero-rl-v0") == before
    assert shown("agent_rl_model_traffic_percentage", "agent-zero-rl-v1") is not None


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
