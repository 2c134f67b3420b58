"""A/B tests: the interval's coverage and form, the stop rule, and a test run by the releaser."""

import json
import math
from datetime import UTC, datetime

import numpy as np
import pytest
from release_world import Policy, World

from onward.cli import ab as ab_command
from onward.errors import ConfigError, ConflictError
from onward.release.ab.evidence import AbEvidence
from onward.release.ab.interval import DifferenceInterval
from onward.release.ab.record import AbTest, AbTests, verdict_of, why_stop
from onward.release.commands import refuse_if_busy
from onward.release.record import Model

FAST = {"error_maturity_seconds": 0, "reward_maturity_seconds": 0}


def simulated(seed: int, a: float, b: float, sessions: int, split=0.5) -> tuple[bool, DifferenceInterval]:
    """Whether the interval ever missed the true difference, and the interval at the end."""
    rng = np.random.default_rng(seed)
    interval, missed = DifferenceInterval(0.05), False
    for _ in range(sessions):
        is_b = bool(rng.random() < split)
        interval.value(is_b, float(rng.random() < (b if is_b else a)))
        missed = missed or not interval.low <= b - a <= interval.high
    return missed, interval


def reference(pairs: list[float], alpha: float) -> tuple[float, float]:
    """Theorem 2 of Waudby-Smith and Ramdas (2023), over all observations at once."""
    bets, low, high = [], 0.0, 1.0
    for t in range(1, len(pairs) + 1):
        means = [(0.5 + sum(pairs[:i])) / (i + 1) for i in range(t)]
        squares = [(pairs[i] - (0.5 + sum(pairs[: i + 1])) / (i + 2)) ** 2 for i in range(t - 1)]
        variance = (0.25 + sum(squares)) / t
        bets.append(min(0.5, math.sqrt(2 * math.log(2 / alpha) / (variance * t * math.log(1 + t)))))
        v = [4 * (x - m) ** 2 for x, m in zip(pairs[:t], means, strict=True)]
        psi = [(-math.log(1 - bet) - bet) / 4 for bet in bets]
        half = (math.log(2 / alpha) + sum(x * y for x, y in zip(v, psi, strict=True))) / sum(bets)
        centre = sum(bet * x for bet, x in zip(bets, pairs[:t], strict=True)) / sum(bets)
        low, high = max(low, centre - half), min(high, centre + half)
    return 2 * low - 1, 2 * high - 1


def test_interval_equals_the_published_formula():
    rng = np.random.default_rng(4)
    interval, pairs = DifferenceInterval(0.05), []
    for _ in range(60):
        a, b = float(rng.random() < 0.6), float(rng.random() < 0.8)
        interval.value(False, a)
        interval.value(True, b)
        pairs.append((b - a + 1) / 2)
    assert (interval.low, interval.high) == pytest.approx(reference(pairs, 0.05), abs=1e-12)
    again = DifferenceInterval.from_state(json.loads(json.dumps(interval.state())))
    assert again.state() == interval.state()


def test_blocks_compare_means_of_both_arms_by_hand():
    interval = DifferenceInterval(0.05)
    for is_b, value in ((False, 1.0), (False, 0.0), (True, 1.0)):
        interval.value(is_b, value)
    assert interval.blocks == 1 and interval.estimate == pytest.approx(0.5)  # 1 less the mean of 1 and 0


def test_interval_is_missed_in_at_most_its_share_of_tests_read_after_every_session():
    misses = sum(simulated(seed, 0.7, 0.7, 400)[0] for seed in range(100))
    assert misses <= 5


@pytest.mark.long
@pytest.mark.parametrize(("a", "b", "split"), [(0.7, 0.7, 0.5), (0.5, 0.65, 0.5), (0.95, 0.9, 0.2)])
def test_coverage_over_a_thousand_tests(a: float, b: float, split: float):
    misses = sum(simulated(seed, a, b, 1500, split)[0] for seed in range(1000))
    print(f"missed at any time: {misses} of 1000")
    assert misses <= 50


def test_a_true_difference_is_found():
    _, interval = simulated(1, 0.5, 0.8, 1500)
    assert interval.low > 0.0 and interval.high < 0.6


@pytest.mark.parametrize(
    ("low", "high", "margin", "verdict"),
    [
        (0.01, 0.2, 0.0, "B is better"), (-0.2, -0.01, 0.0, "A is better"), (-0.1, 0.1, 0.0, "open"),
        (-0.1, 0.1, 0.1, "no difference beyond the margin"), (0.05, 0.2, 0.1, "open"),
        (0.11, 0.2, 0.1, "B is better"),
    ],
)  # fmt: skip
def test_verdict_at_its_borders(low: float, high: float, margin: float, verdict: str):
    assert verdict_of(low, high, margin) == verdict


def model(name: str, digest: str) -> Model:
    return Model(model_id=name, adapter_digest=digest, object_prefix=f"p/{digest}", training_job_id="j")


def a_test(**more) -> AbTest:
    return AbTest(
        ab_id="ab-12345678", a=model("agent-zero-rl-v0", "d0"), b=model("other", "d1"), asked_by="ann",
        created_at="2026-01-01T00:00:00.000Z", **more,
    )  # fmt: skip


def test_stop_rules_and_their_form():
    now = datetime(2026, 1, 1, 3, tzinfo=UTC)
    started = a_test(started_at="2026-01-01T00:00:00.000Z", stop_after_seconds=3 * 3600.0)
    assert why_stop(started, now) == "3.0 hours have passed, as its rule asks"
    assert why_stop(started, datetime(2026, 1, 1, 2, tzinfo=UTC)) is None
    assert ab_command.stop_rule("2000") == (2000, None)
    assert ab_command.stop_rule("3d") == (None, 259_200.0)
    for wrong in ("0", "3 weeks", "-1", ""):
        with pytest.raises(ConfigError, match="--stop-after"):
            ab_command.stop_rule(wrong)


async def test_a_test_runs_at_its_split_holds_releases_back_and_ends_with_the_current_model():
    world = World(5, **FAST)
    await world.install()
    world.policies = {"current": Policy(success=0.5), "candidate": Policy(success=0.9)}
    tests = AbTests(world.bus.bucket("rl_releases"))  # type: ignore[arg-type]
    await tests.create(a_test())
    await world.job("j1", "d2")
    await world.run(2)
    assert world.shares == {"agent-zero-rl-v0": 0.5, "other": 0.5}
    assert world.desired["release_id"] == "ab-12345678"
    with pytest.raises(ConflictError, match="onward ab stop"):
        await refuse_if_busy(world.bus, [], "go on")  # type: ignore[arg-type]
    await world.run(3, sessions=10, seconds=10)
    world.start()  # a new releaser goes on from the record
    for _ in range(100):
        await world.run(1, sessions=10, seconds=10)
        assert not [one for one in world.records if one.job_id == "j1"] or (await tests.open()) is None
        if await tests.open() is None:
            break
    (test,) = await tests.all()
    assert test.state == "stopped" and test.verdict == "B is better" and test.low > 0
    assert "B is better" in (test.why or "") and world.alerts.kinds.count("ab_stopped") == 1
    words = "\n".join(str(part) for part in ab_command.report(test) if isinstance(part, str))
    assert "however often it is read" in words
    await world.run(2)
    assert world.record.job_id == "j1"  # the release that waited


@pytest.mark.parametrize("damaged", ["d0", "d1"])
async def test_an_alert_tells_that_no_gateway_can_load_a_or_b_and_is_resolved_when_one_can(damaged: str):
    world = World(5, gateways=("gw-1", "gw-2"), **FAST)
    await world.install()
    tests = AbTests(world.bus.bucket("rl_releases"))  # type: ignore[arg-type]
    asked = a_test()
    if damaged == "d0":  # A is another model than the one that serves
        asked = asked.model_copy(update={"a": model("other-a", "d7")})
    world.unloadable = "d7" if damaged == "d0" else damaged
    await tests.create(asked)
    await world.run(15)
    assert world.alerts.kinds == []  # they may still be fetching it
    await world.run(60)
    ((_, words, severity, facts),) = [one for one in world.alerts.raised if one[0] == "ab_not_loaded"]
    assert severity == "critical" and "No gateway can load the models of the A/B test ab-12345678" in words
    assert f"adapter {world.unloadable} is damaged" in words and "'onward ab stop'" in words
    assert set(facts["refused"]) == {"gw-1", "gw-2"}
    world.can_load = {"gw-2"}
    await world.run(2)
    found = [one[2] for one in world.alerts.raised if one[0] == "ab_not_loaded"]
    assert found == ["critical", "resolved"]
    assert (await tests.open()) is not None


async def test_harm_and_an_operator_end_a_test():
    for failing, asked, words in ((0.9, None, "B does harm"), (0.0, "ann", "ann stopped it")):
        world = World(5, **FAST)
        await world.install()
        world.policies["candidate"] = Policy(error=failing)
        tests = AbTests(world.bus.bucket("rl_releases"))  # type: ignore[arg-type]
        await tests.create(a_test())
        await world.run(20, sessions=4, seconds=10)
        if asked:
            found = await tests.open()
            assert found is not None
            await tests.write(found[0].model_copy(update={"stop_asked_by": asked}), found[1])
            await world.run(1)
        (test,) = await tests.all()
        assert test.state == "stopped" and (test.why or "").startswith(words)
        assert world.shares == {"agent-zero-rl-v0": 1.0}


def test_evidence_of_a_test_survives_a_restart_bit_for_bit():
    from onward.release.evidence.event import Event
    from onward.release.evidence.evidence import GateRules

    rules = GateRules(0.045, 0.05, 0.05, {"error": 0, "reward": 0, "feedback": 0}, 10**9)
    whole = AbEvidence("r", rules, 0, None, 0.05)
    for n in range(1, 200):
        whole.apply(Event(n, f"s{n}", "r", n % 3 == 0, 0.5, n, n, "reward", float(n % 2), ""))
        if n == 100:
            whole = AbEvidence.from_whole_state(json.loads(json.dumps(whole.whole_state())))
    plain = AbEvidence("r", rules, 0, None, 0.05)
    for n in range(1, 200):
        plain.apply(Event(n, f"s{n}", "r", n % 3 == 0, 0.5, n, n, "reward", float(n % 2), ""))
    assert plain.whole_state() == whole.whole_state() and whole.interval.blocks > 50
