"""The reward gate judges the raw total where it is known, and the outcome elsewhere."""

import itertools
import math

import pytest
from release_world import Policy, World

from onward.config import ReleaseSettings
from onward.release.evidence.event import Event
from onward.release.evidence.evidence import Evidence, GateRules
from onward.release.evidence.gates import MEAN_BETS, OUTCOME, RAW_TOTAL, MeanGate
from onward.release.explaining.replay import replay
from onward.release.plan import State

FAST = {"time_scale": 0.02, "min_sessions": [20, 20, 20, 0]}


def judged(*sessions: tuple[bool, float, float | None], **settings) -> Evidence:
    """Evidence of sessions (of the candidate?, outcome, raw total), assigned one second apart and matured."""
    found = Evidence("r1", GateRules.from_settings(ReleaseSettings.model_validate(settings)))
    for number, (candidate, outcome, raw) in enumerate(sessions, 1):
        at = number * 1000
        found.apply(
            Event(number, f"s{number}", "r1", candidate, 0.5, at, at, "reward", outcome, "", raw_total=raw)
        )
    for number, candidate in ((98, False), (99, True)):
        found.apply(Event(number, f"s{number}", "r1", candidate, 0.5, 600_000, 600_000, "error", 0.0, ""))
        found.apply(
            Event(number + 10, f"s{number}", "r1", candidate, 0.5, 600_000, 600_000, "reward", 1.0, "")
        )
    return found


def capital(*gaps: float, margin: float = 0.05) -> float:
    """The mean over the bets of the products of 1 + λ·gap, by hand."""
    return sum(math.prod(1 + share / (1 + margin) * gap for gap in gaps) for share in MEAN_BETS) / len(
        MEAN_BETS
    )


def test_the_raw_total_is_judged_and_the_outcome_is_counted_beside_it():
    found = judged((False, 1.0, 0.8), (True, 1.0, 0.5))
    assert found.gates.e_values()["reward"] == pytest.approx(capital(0.8 - 0.5 - 0.05))
    arms = found.summary()["arms"]
    assert arms["candidate"]["mean_raw_total"] == 0.5 and arms["candidate"]["mean_outcome"] == 1.0
    assert arms["current"]["mean_raw_total"] == 0.8 and arms["current"]["raw_known"] == 1


def test_with_the_outcome_as_signal_raw_totals_have_no_effect():
    found = judged((False, 1.0, 0.8), (True, 1.0, 0.1), reward_signal="outcome")
    assert found.gates.e_values()["reward"] == pytest.approx(capital(1.0 - 1.0 - 0.05))
    assert found.summary()["arms"]["candidate"]["mean_raw_total"] is None


def test_a_raw_total_is_never_compared_with_an_outcome():
    """Blocks: current 0.6 and candidate 0.4 by raw total; current 1 and candidate 1 by outcome."""
    found = judged((False, 1.0, 0.6), (True, 1.0, None), (False, 1.0, None), (True, 0.0, 0.4))
    gaps = (1.0 - 1.0 - 0.05, 0.6 - 0.4 - 0.05)
    assert found.gates.e_values()["reward"] == pytest.approx(capital(*gaps))


def test_the_gate_is_fair_when_the_scales_have_different_means_and_the_arms_different_scales():
    """The expectation over all results of equal arms is 1 at margin 0. The candidate's raw totals are known
    more often than current's, and mean raw total (0.5) and mean outcome (0.75) differ."""
    pattern = [
        (False, OUTCOME), (True, RAW_TOTAL), (False, RAW_TOTAL), (True, RAW_TOTAL), (True, OUTCOME),
        (True, RAW_TOTAL), (False, RAW_TOTAL), (False, OUTCOME),
    ]  # fmt: skip
    results = {OUTCOME: ((0.5, 0.5), (1.0, 0.5)), RAW_TOTAL: ((0.2, 0.5), (0.8, 0.5))}
    expected = 0.0
    for drawn in itertools.product(*(results[scale] for _, scale in pattern)):
        gate = MeanGate(0.0)
        for (candidate, scale), (value, _) in zip(pattern, drawn, strict=True):
            gate.value(candidate, value, scale)
        expected += math.prod(chance for _, chance in drawn) * math.exp(gate.log_e)
    assert expected == pytest.approx(1.0)


@pytest.mark.parametrize("known", [True, False])
def test_evidence_is_restored_from_its_state_in_the_middle_of_a_block(known: bool):
    raw = 0.7 if known else None
    found = judged((False, 1.0, 0.8), (True, 1.0, 0.5), (False, 1.0, raw), (False, 0.0, raw))
    again = Evidence.from_state(found.state())
    assert again.state() == found.state()
    late = Event(200, "late", "r1", True, 0.5, 700_000, 700_000, "reward", 1.0, "", raw_total=0.6)
    for number, candidate in ((201, True), (202, False)):
        last = Event(number, f"s{number}", "r1", candidate, 0.5, 900_000, 900_000, "reward", 1.0, "")
        for one in (found, again):
            one.apply(late)
            one.apply(last)
    assert again.state() == found.state()
    assert found.arms["candidate"]["raw_known"] == 2


def test_rules_of_an_earlier_version_judge_the_outcome():
    state = judged((False, 1.0, 0.8), reward_signal="outcome").state()
    assert "reward_signal" not in state["rules"] and "raw_known" not in state["arms"]["current"]
    assert Evidence.from_state(state).rules.reward_signal == OUTCOME


async def released(candidate: Policy, **settings) -> World:
    world = World(3, **FAST, **settings)
    await world.install()
    world.policies["candidate"] = candidate
    await world.job("j1", "d1")
    await world.run(2)
    await world.until(lambda: world.record.settled)
    return world


@pytest.mark.parametrize(
    ("policy", "marks"),
    [
        (Policy(), ["0d30e34ee6c6d5cf", "0aa71b70b1cecf4c", "a3f9a32b6f0b0f62", "4bc6f548bdca7fd1",
                    "e0add48c39fbcfe1"]),
        (Policy(success=0.1), ["0d30e34ee6c6d5cf", "efb12cc23c544381"]),
    ],
)  # fmt: skip
async def test_judged_by_the_outcome_the_evidence_has_the_bytes_of_the_version_before(policy, marks):
    """The marks were computed by the last version that knew the outcome alone."""
    world = await released(policy, reward_signal="outcome")
    found = [line["evidence_sha256"][:16] for line in world.record.history if line.get("evidence_sha256")]
    assert found == marks


@pytest.mark.parametrize(("signal", "end"), [("raw_total", State.ROLLED_BACK), ("outcome", State.PROMOTED)])
async def test_work_that_succeeds_as_often_and_costs_more_is_seen_in_the_raw_total(signal, end):
    """Equal outcomes (0.7); the candidate's raw totals are 0.3 lower."""
    world = World(3, **FAST, reward_signal=signal)
    await world.install()
    world.policies["current"] = Policy(raw=(0.4, 0.9))
    world.policies["candidate"] = Policy(raw=(0.1, 0.6))
    await world.job("j1", "d1")
    await world.run(2)
    await world.until(lambda: world.record.settled, sessions=20)
    record = world.record
    assert record.state is end
    found = await replay(record, world.stream)
    assert found.difference is None and all(one.same is not False for one in found.decisions)
    if end is State.ROLLED_BACK:
        assert record.reason_code == "performance_degradation"
        assert "the reward gate crossed with mean raw total 0." in (record.reason or "")
        assert record.rates["candidate"].raw_totals == record.rates["candidate"].outcomes
