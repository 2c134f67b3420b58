"""Scenario 4: a rollback by the threshold rule opens an incident that names cause and recommendation."""

import pytest
from release_world import Policy, World

from onward.errors import EngineError
from onward.release.evidence.threshold import ThresholdRule, verdicts
from onward.release.incidents import report
from onward.release.plan import State
from onward.serving.recording.failures import failure_of

LONG = [{"role": "user", "content": "x" * 40_000}]
SHORT = [{"role": "user", "content": "x" * 400}]
OOM = EngineError("The engine stopped: CUDA out of memory, tried to allocate 2 GiB.")


def failing(count: int, arm: str = "candidate", error: Exception = OOM, messages=LONG) -> list[dict]:
    return [{"arm": arm, **failure_of(error, messages)._asdict()} for _ in range(count)]


async def at_half(**settings) -> World:
    world = World(
        gates="threshold", steps=[0.5, 1.0], step_minutes=[600, 0], min_sessions=[9999, 0], **settings
    )
    await world.install()
    world.suite.success = {"d0": 0.5, "d1": 0.6}
    await world.job("job-1", "d1")
    await world.until(lambda: len(world.records) > 1 and world.record.serving, sessions=0, seconds=1)
    return world


async def test_scenario_4_out_of_memory_on_long_contexts_is_named_after_three_checks():
    world = await at_half(consecutive=3)
    world.policies["candidate"] = Policy(error=0.08, failure=failure_of(OOM, LONG)._asdict())
    world.policies["current"] = Policy(error=0.01)
    began = world.clock.monotonic()
    await world.until(lambda: world.record.closed, seconds=10, sessions=20)
    assert world.record.state is State.ROLLED_BACK and world.record.reason_code == "high_error_rate"
    minutes = (world.clock.monotonic() - began) / 60
    assert 15 <= minutes <= 18  # three checks, five minutes apart, after the first sessions have matured
    await world.run(3)
    assert world.shares == {"agent-zero-rl-v0": 1.0}
    ((_, message, severity, facts),) = [a for a in world.alerts.raised if a[0] == "rolled_back"]
    assert severity == "critical"
    rate = world.record.rates["candidate"].error_rate
    assert rate == pytest.approx(0.08, abs=0.02)
    assert message.startswith("URGENT: model agent-zero-rl-v1 was taken back to agent-zero-rl-v0 due to high")
    assert f"high error rate ({rate:.0%})" in message
    assert message.endswith(
        "Error rate spike caused by OOM on long context inputs. "
        "Recommendation: Retrain with gradient checkpointing enabled."
    )
    assert facts["cause"] == "Error rate spike caused by OOM on long context inputs."
    incident = world.record.incident
    assert (
        incident and incident["groups"]["context"]["long"]["candidate"] == incident["failures"]["candidate"]
    )


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        (failing(2), "Error rate spike: too few failing sessions with a known error (2) to name a cause."),
        (failing(5, messages=SHORT), "Error rate spike caused by OOM."),
        (failing(5, error=EngineError("The engine timed out.")), "Error rate spike caused by timeouts."),
        (failing(5) + failing(50, arm="current", messages=SHORT),
         "Error rate spike caused by OOM on long context inputs."),
        ([{"arm": "candidate", "error": "unparsable"}] * 4,
         "Error rate spike caused by answers that cannot be parsed."),
        ([{"arm": "candidate", "error": "engine", "tool": "search"}] * 4,
         "Error rate spike caused by failures with the tool search."),
        ([{"arm": "candidate", "error": "engine", "domain": "refunds"}] * 4,
         "Error rate spike caused by failures in the domain refunds."),
        ([{"arm": "candidate", "error": "lost"}] * 4,
         "Error rate spike caused by sessions without any outcome."),
        ([{"arm": "candidate", "error": "engine"}] * 4,
         "Error rate spike: the failures have no common error, context length, domain or tool."),
    ],
)  # fmt: skip
def test_each_rule_names_its_cause_and_nothing_is_named_without_a_pattern(failures, cause):
    assert report.findings("high_error_rate", failures).cause == cause


def test_the_kind_of_a_failure_holds_none_of_the_engines_words():
    found = failure_of(EngineError("no room in the broom cupboard of the engine"), SHORT)
    assert found == ("engine", 100, None, None)
    assert failure_of(EngineError("OOM"), []).error == "out_of_memory"


def counts(**candidate: float) -> dict[str, dict[str, float]]:
    same = {"judged": 100, "failed": 1, "rewarded": 100, "reward_sum": 80, "feedback": 50, "negative": 2}
    return {"current": dict(same), "candidate": {**same, **candidate}}


@pytest.mark.parametrize(
    ("candidate", "broken"),
    [
        ({"failed": 5}, {}),
        ({"failed": 6}, {"error": 0.06}),
        ({"reward_sum": 75}, {}),
        ({"reward_sum": 74}, {"reward": 0.74}),
        ({"negative": 4}, {}),
        ({"negative": 5}, {"feedback": 0.1}),
        ({"judged": 0, "failed": 0}, {}),
    ],
)
def test_the_seeds_limits_at_each_border(candidate, broken):
    assert verdicts(counts(**candidate), ceiling=0.05, margin=0.05).broken == broken


@pytest.mark.parametrize(
    ("candidate", "current", "broken", "too_few"),
    [
        ({"judged": 20, "failed": 2}, {}, {"error": 0.1}, set()),
        ({"judged": 19, "failed": 19}, {}, {}, {"error"}),
        ({}, {"judged": 0, "failed": 0}, {}, set()),  # the limit of errors is the candidate's alone
        ({"rewarded": 19, "reward_sum": 0}, {}, {}, {"reward"}),
        ({"reward_sum": 0}, {"rewarded": 19, "reward_sum": 19}, {}, {"reward"}),
        ({"feedback": 19, "negative": 19}, {}, {}, {"feedback"}),
        # Raw totals decide where both arms have enough of them: 0.60 against 0.70, outcomes alike.
        ({"raw_known": 20, "raw_sum": 12.0}, {"raw_known": 20, "raw_sum": 14.0}, {"reward": 0.6}, set()),
        ({"raw_known": 19, "raw_sum": 0.0}, {"raw_known": 20, "raw_sum": 14.0}, {}, set()),
    ],
)
def test_a_window_with_too_few_sessions_is_neither_broken_nor_passed(candidate, current, broken, too_few):
    given = counts(**candidate)
    given["current"] |= current
    found = verdicts(given, ceiling=0.05, margin=0.05, least=20)
    assert (found.broken, found.too_few) == (broken, too_few)


def test_a_window_with_too_few_sessions_leaves_the_count_of_broken_checks():
    """Windows begin at the first look, so the numbers given here are those of each window."""
    rule = ThresholdRule(300_000, 2, ceiling=0.05, margin=0.05, least=20)
    zero = counts(**dict.fromkeys(counts()["candidate"], 0))
    zero["current"] = dict(zero["candidate"])
    assert rule.check(0, zero) is None
    assert rule.check(300_000, counts(failed=50)) is None and rule.strikes == {"error": 1}
    assert rule.check(600_000, counts(judged=10, failed=0)) is None and rule.strikes == {"error": 1}
    assert rule.check(900_000, counts(failed=50)) == "error"


def test_a_good_check_between_starts_the_count_anew_and_a_restart_does_not():
    rule = ThresholdRule(300_000, 2, ceiling=0.05, margin=0.05)
    good, bad = counts(), counts(failed=50)
    zero = {arm: dict.fromkeys(values, 0) for arm, values in good.items()}
    assert rule.check(0, zero) is None
    assert rule.check(300_000, bad) is None and rule.strikes == {"error": 1}
    again = ThresholdRule(300_000, 2, ceiling=0.05, margin=0.05)
    again.restore(rule.state())
    assert again.check(300_001, bad) is None  # not due
    assert again.check(600_000, bad) == "error"
