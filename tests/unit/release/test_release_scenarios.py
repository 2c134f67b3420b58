"""Scenarios 3 and 4 of the RL trainer profile, replayed with their numbers."""

import json

import pytest
from release_world import FakeSuite, Policy, World

from onward.clock import read_time
from onward.contracts import subjects
from onward.errors import EngineError
from onward.release.plan import State
from onward.serving.recording.failures import failure_of
from onward.suites.suite import ItemResult

SUITES = {"code_generation": (82, 88), "data_analysis": (78, 79), "research_synthesis": (79, 81)}
"""Suite → items of a hundred that v2.3 and v2.4 solve: 0.80 and 0.83 on average."""
OOM = EngineError("The engine stopped: CUDA out of memory, tried to allocate 2 GiB.")
LONG = [{"role": "user", "content": "x" * 40_000}]


class Benchmarks(FakeSuite):
    """The three suites of scenario 3: d1 is the candidate."""

    async def run_suite(self, name: str, digest: str | None) -> list[ItemResult]:
        solved = SUITES[name][digest == "d1"]
        return [ItemResult(f"{name}-{i}", name, float(i < solved), i < solved) for i in range(100)]


async def validated(**settings) -> World:
    """v2.3 serves and the job of v2.4 has completed; ends with the tick that gives v2.4 its first traffic."""
    world = World(pattern="agent-zero-rl-v2.{n}", validation={"suites": list(SUITES)}, **settings)
    world.suite = Benchmarks({}, {})
    world.start()
    await world.install()
    await world.bus.bucket("rl_models").put(
        "agent-zero-rl-v2_3",
        json.dumps({"model_id": "agent-zero-rl-v2.3", "adapter_digest": "x", "object_prefix": "p",
                    "training_job_id": "j", "state": "retired"}).encode(),
    )  # fmt: skip
    await world.job("job-47", "d1")
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    return world


def reported(world: World) -> list[str]:
    return [json.loads(data)["message"] for subject, data in world.bus.notified if subject == subjects.REPORT]


async def ramp(world: World, candidate: str) -> dict[float, int]:
    """Runs to the end of the release; returns share → minute at which it began."""
    began = world.clock.monotonic()
    shares = {world.shares[candidate]: 0}
    for _ in range(400):
        if world.record.closed:
            break
        await world.run(1, seconds=60.0, sessions=20)
        shares.setdefault(world.shares.get(candidate, 0.0), round((world.clock.monotonic() - began) / 60))
    return shares


@pytest.mark.parametrize(
    ("strategy", "starts", "why"),
    [
        ("auto", {0.05: 0, 0.1: 60, 0.25: 120, 0.5: 180, 0.95: 240, 1.0: 300}, "careful start"),
        ("canary", {0.1: 0, 0.25: 60, 0.5: 120, 0.95: 240, 1.0: 300}, "strategy canary is set"),
    ],
)
async def test_scenario_3_four_percent_better_goes_to_all_traffic_in_its_four_hours(strategy, starts, why):
    """By the rule +4 % is a careful start at 5 %; the scenario's text begins at 10 %, which "canary" does."""
    world = await validated(strategy=strategy)
    world.policies = {"current": Policy(success=0.80), "candidate": Policy(success=0.83)}
    first = world.deployed[-1]
    assert first["model_info"]["model_id"] == "agent-zero-rl-v2.4"
    assert first["metadata"]["previous_model"] == "agent-zero-rl-v2.0"
    scores = first["validation_results"]["benchmark_scores"]
    assert {name: (scores[f"{name}_current"], scores[name]) for name in SUITES} == {
        "code_generation": (0.82, 0.88), "data_analysis": (0.78, 0.79), "research_synthesis": (0.79, 0.81),
    }  # fmt: skip
    assert first["validation_results"]["performance_regression"] is False
    planned = [step["percentage"] / 100 for step in first["deployment_config"]["ramp_schedule"]]
    assert planned == [share for share in starts if share != 0.95]
    assert why in world.record.history[-1]["why"]
    assert reported(world) == [
        "Model agent-zero-rl-v2.4 deployed, +4% performance improvement, canary rollout in progress"
    ]
    found = await ramp(world, "agent-zero-rl-v2.4")
    assert list(found) == list(starts)
    for share, minute in starts.items():  # a share begins up to ten minutes late, when sessions have matured
        assert minute <= found[share] <= minute + 10
    assert world.record.decision == "promoted" and len(reported(world)) == 1


async def test_validation_passed_and_the_first_traffic_are_one_decision():
    """No time passes between the verdict and the routes: the tick that reads the verdict writes both."""
    world = await validated(strategy="auto")
    states = [(line["state"], line["at"]) for line in world.record.history]
    assert [state for state, _ in states] == ["proposed", "validating", "ramping"]
    assert world.shares == {"agent-zero-rl-v2.0": 0.95, "agent-zero-rl-v2.4": 0.05}
    assert world.record.started_at == states[-1][1] and world.record.verified_revision is None
    written = world.clock.monotonic()
    await world.until(lambda: world.record.verified_revision is not None, sessions=0, seconds=0.5)
    assert world.clock.monotonic() - written == pytest.approx(0.5)  # one round: the gateway serves both


async def test_scenario_4_eight_percent_errors_at_half_of_the_traffic():
    """Three checks, five minutes apart, above 5 % in the last half hour: v2.3 has all traffic again at once.

    The window still has good sessions of the time before: 8 % in two thirds of it are more than 5 %."""
    world = await validated(strategy="canary", gates="threshold", consecutive=3)
    candidate = "agent-zero-rl-v2.4"
    world.policies = {"current": Policy(success=1.0), "candidate": Policy(success=1.0)}
    await world.until(lambda: world.shares.get(candidate) == 0.5, seconds=60.0, sessions=20, ticks=300)
    world.policies["candidate"] = Policy(error=0.08, success=1.0, failure=failure_of(OOM, LONG)._asdict())
    began = world.clock.monotonic()
    await world.until(lambda: world.record.closed, seconds=10.0, sessions=10, ticks=300)
    assert 20 <= (world.clock.monotonic() - began) / 60 <= 45
    await world.run(3)
    record = world.record
    assert (record.state, record.reason_code) == (State.ROLLED_BACK, "high_error_rate")
    assert "in 3 checks in a row, 5 minutes apart" in (record.reason or "")
    assert world.shares == {"agent-zero-rl-v2.0": 1.0} and candidate not in world.shares
    assert record.crossed_at and record.verified_zero_at
    took = (read_time(record.verified_zero_at) - read_time(record.crossed_at)).total_seconds()
    assert 0 <= took <= 60
    event = world.deployed[-1]
    assert event["model_info"]["model_id"] == "agent-zero-rl-v2.0"
    assert event["deployment_config"]["traffic_percentage"] == 100
    assert (event["metadata"]["event"], event["metadata"]["reason"]) == ("rollback", "high_error_rate")
    ((_, told, severity, _),) = [one for one in world.alerts.raised if one[0] == "rolled_back"]
    assert severity == "critical" and told.startswith(f"URGENT: model {candidate} was taken back to ")
    assert record.incident is not None
    assert record.incident["cause"] == "Error rate spike caused by OOM on long context inputs."
    assert record.incident["recommendation"] == "Retrain with gradient checkpointing enabled."
