"""The reward gate judges the outcome, and the raw total where it is known."""

import itertools
import math

import pytest
from release_world import Policy, World

from onward.config import ReleaseSettings
from onward.release.evidence.event import Event
from onward.release.evidence.evidence import Evidence, GateRules
from onward.release.evidence.gates import MEAN_BETS, OUTCOME, RewardGate
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


def test_the_raw_total_is_judged_beside_the_outcome_with_half_of_the_capital():
    found = judged((False, 1.0, 0.1), (True, 1.0, 0.9), (False, 1.0, 0.8), (True, 1.0, 0.5))
    before = capital(1.0 - 1.0 - 0.05)
    halves = {
        "reward_outcome": capital(1.0 - 1.0 - 0.05, 1.0 - 1.0 - 0.05),
        "reward_raw_total": before * capital(0.8 - 0.5 - 0.05),
    }
    e_values = found.gates.e_values()
    assert {name: e_values[name] for name in halves} == pytest.approx(halves)
    assert e_values["reward"] == pytest.approx(sum(halves.values()) / 2)
    arms = found.summary()["arms"]
    assert arms["candidate"]["mean_raw_total"] == pytest.approx(0.7)
    assert arms["candidate"]["mean_outcome"] == 1.0
    assert arms["current"]["mean_raw_total"] == pytest.approx(0.45) and arms["current"]["raw_known"] == 2


def test_the_capital_is_split_at_the_end_of_the_first_block_with_a_raw_total():
    """Not before: without raw totals the outcome has all of it. The block itself counts for the outcome."""
    before = capital(1.0 - 0.0 - 0.05)
    alone = judged((False, 1.0, None), (True, 0.0, None))
    assert alone.gates.e_values()["reward"] == pytest.approx(before)
    split = judged((False, 1.0, 0.8), (True, 0.0, 0.1))
    assert split.gates.e_values()["reward"] == pytest.approx(before)
    found = judged((False, 1.0, 0.8), (True, 0.0, 0.1), (False, 1.0, 0.8), (True, 1.0, 0.5))
    halves = capital(0.95, -0.05), before * capital(0.25)
    assert found.gates.e_values()["reward"] == pytest.approx(sum(halves) / 2)


def test_with_the_outcome_as_signal_raw_totals_have_no_effect():
    found = judged((False, 1.0, 0.8), (True, 1.0, 0.1), reward_signal="outcome")
    assert found.gates.e_values()["reward"] == pytest.approx(capital(1.0 - 1.0 - 0.05))
    assert found.summary()["arms"]["candidate"]["mean_raw_total"] is None


def test_a_raw_total_is_never_compared_with_an_outcome():
    first = (False, 1.0, 0.5), (True, 1.0, 0.5)
    found = judged(*first, (False, 1.0, 0.6), (True, 1.0, None), (False, 1.0, None), (True, 0.0, 0.4))
    outcome = capital(1.0 - 1.0 - 0.05, 1.0 - 1.0 - 0.05, 1.0 - 0.0 - 0.05)
    halves = outcome, capital(1.0 - 1.0 - 0.05) * capital(0.6 - 0.4 - 0.05)
    assert found.gates.e_values()["reward"] == pytest.approx(sum(halves) / 2)


def test_the_gate_is_fair_when_raw_totals_are_known_later_and_more_often_on_one_arm():
    """The expectation over all results of equal arms is 1 at margin 0."""
    pattern = [
        (False, False), (True, False), (False, True), (True, True), (True, False), (True, True),
        (False, True), (False, False), (True, True),
    ]  # fmt: skip
    expected = 0.0
    for drawn in itertools.product((False, True), repeat=len(pattern)):
        gate = RewardGate(0.0)
        for (candidate, known), high in zip(pattern, drawn, strict=True):
            gate.session(candidate, 1.0 if high else 0.5, (0.8 if high else 0.2) if known else None)
        expected += 0.5 ** len(pattern) * math.exp(gate.log_e)
    assert expected == pytest.approx(1.0)


def test_the_gate_is_fair_when_it_depends_on_the_outcome_whether_a_raw_total_is_known():
    """Raw totals (which are all equal) are known of the candidate's sessions that do better than the current
    one before them: the split must not spare the outcome's capital the bets that it loses there."""
    expected = 0.0
    for drawn in itertools.product((0.0, 1.0), repeat=8):
        gate, before = RewardGate(0.0), 0.0
        for number, value in enumerate(drawn):
            candidate = number % 2 == 1
            gate.session(candidate, value, 0.5 if candidate and value > before else None)
            before = value
        expected += 0.5 ** len(drawn) * math.exp(gate.log_e)
    assert expected == pytest.approx(1.0)


def test_that_a_candidate_is_not_worse_is_shown_by_its_outcomes():
    raw, none = (judged((False, 1.0, value), (True, 1.0, value)) for value in (0.8, None))
    assert raw.gates.e_values()["support"] == none.gates.e_values()["support"] > 1


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


@pytest.mark.parametrize(("signal", "end"), [("both", State.ROLLED_BACK), ("outcome", State.PROMOTED)])
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
