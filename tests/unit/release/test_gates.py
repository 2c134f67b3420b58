"""The gates against a slow numpy reference, hand values, and what their guarantee promises."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.release.evidence.gates import (
    CeilingGate,
    Gates,
    MeanGate,
    RateGate,
    RatioGuard,
    candidate_share,
    log_mean_exp,
)

R = np.exp(np.linspace(np.log(1.25), np.log(40), 16))
CEIL = np.array([0.5, 1, 2, 4, 8, 12, 16])
MEAN = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])

weights = st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.95])
events = st.lists(
    st.one_of(
        st.tuples(st.just("error"), st.booleans(), st.booleans(), weights),
        st.tuples(st.just("feedback"), st.booleans(), st.booleans(), weights),
        st.tuples(st.just("reward"), st.booleans(), st.floats(0, 1), weights),
    ),
    max_size=60,
)


def feed(gates: Gates, sequence) -> Gates:
    for kind, candidate, value, weight in sequence:
        if kind == "error":
            gates.observe_error(candidate, value, weight)
        elif kind == "feedback":
            gates.observe_feedback(candidate, value, weight)
        else:
            gates.observe_reward(candidate, value)
    return gates


def theta(w, r):
    return w * r / (w * r + 1 - w)


def reference(sequence, c=0.05, delta=0.05):
    """Products in plain float64, gate by gate, straight from the formulas."""
    a, f, b = np.ones(16), np.ones(16), np.ones(7)
    for kind, z, failed, w in sequence:
        if kind in ("error", "feedback") and failed:
            rho = 1.0 if kind == "error" else 2.0
            factor = theta(w, rho * R) / theta(w, rho) if z else (1 - theta(w, rho * R)) / (1 - theta(w, rho))
            if kind == "error":
                a = a * factor
            else:
                f = f * factor
        if kind == "error" and z:
            b = b * (1 + CEIL * (failed - c))
    e_reward, stable, waiting = np.ones(7), [], []
    for kind, z, value, _ in sequence:
        if kind != "reward":
            continue
        (waiting if z else stable).append(value)
        if stable and waiting:
            d = np.mean(stable) - np.mean(waiting) - delta
            e_reward = e_reward * (1 + MEAN / (1 + delta) * d)
            stable, waiting = [], []
    error = min(a.mean(), b.mean())
    total = error / 3 + 4 / 9 * e_reward.mean() + 2 / 9 * f.mean()
    return error, e_reward.mean(), f.mean(), total


@given(events)
@settings(max_examples=150, deadline=None)
def test_gates_equal_the_formulas(sequence):
    found = feed(Gates(ceiling=0.05, margin=0.05), sequence).e_values()
    error, reward, feedback, total = reference(sequence)
    assert found["error"] == pytest.approx(error, rel=1e-9)
    assert found["reward"] == pytest.approx(reward, rel=1e-9)
    assert found["feedback"] == pytest.approx(feedback, rel=1e-9)
    assert found["all"] == pytest.approx(total, rel=1e-9)


@given(events, st.integers(0, 60))
@settings(max_examples=80, deadline=None)
def test_state_restores_bit_for_bit_at_any_point(sequence, cut):
    whole = feed(Gates(ceiling=0.05, margin=0.05), sequence)
    half = feed(Gates(ceiling=0.05, margin=0.05), sequence[:cut])
    again = feed(Gates.from_state(json.loads(json.dumps(half.state()))), sequence[cut:])
    assert again.state() == whole.state()
    assert again.e_values() == whole.e_values()


def test_no_data_is_one():
    gates = Gates(ceiling=0.05, margin=0.05)
    assert gates.log_e() == {"error": 0.0, "reward": 0.0, "feedback": 0.0}
    assert gates.log_e_all == pytest.approx(0.0, abs=1e-12)
    assert not gates.crossed(0.045)


def test_rate_gate_by_hand():
    gate = RateGate(1.0)
    gate.failure(True, 0.5)  # the factor of ratio r is 2r/(r+1)
    assert gate.log_e == pytest.approx(math.log(np.mean(2 * R / (R + 1))))
    gate.failure(False, 0.5)  # and then 2/(r+1)
    assert gate.log_e == pytest.approx(math.log(np.mean(4 * R / (R + 1) ** 2)))


def test_rate_gate_is_fair_at_the_border():
    """E[factor] = 1 when the candidate fails exactly as often as allowed, for every weight."""
    for weight in (0.05, 0.3, 0.95):
        for allowed in (1.0, 2.0):
            share = candidate_share(weight, allowed)
            up, down = RateGate(allowed), RateGate(allowed)
            up.failure(True, weight)
            down.failure(False, weight)
            assert share * math.exp(up.log_e) + (1 - share) * math.exp(down.log_e) == pytest.approx(1.0)


def test_a_session_that_could_not_go_elsewhere_says_nothing():
    gate, guard = RateGate(1.0), RatioGuard()
    gate.failure(True, 1.0)
    guard.session(True, 1.0)
    assert gate.log_e == 0.0 and guard.log_e == 0.0


def test_ceiling_gate_by_hand():
    gate = CeilingGate(0.05)
    gate.outcome(True)
    assert gate.log_e == pytest.approx(math.log(np.mean(1 + CEIL * 0.95)))
    gate.outcome(False)
    assert gate.log_e == pytest.approx(math.log(np.mean((1 + CEIL * 0.95) * (1 - CEIL * 0.05))))


def test_mean_gate_blocks_by_hand():
    gate = MeanGate(0.05)
    gate.value(False, 0.6)
    gate.value(False, 1.0)
    assert gate.log_e == 0.0  # no candidate yet
    gate.value(True, 0.5)  # 0.8 - 0.5 - 0.05
    first = 1 + MEAN / 1.05 * 0.25
    assert gate.log_e == pytest.approx(math.log(first.mean()))
    gate.value(True, 0.2)  # waits: no current value since the last block
    gate.value(True, 0.4)
    assert gate.log_e == pytest.approx(math.log(first.mean()))
    gate.value(False, 0.9)  # 0.9 - 0.3 - 0.05
    assert gate.log_e == pytest.approx(math.log((first * (1 + MEAN / 1.05 * 0.55)).mean()))
    with pytest.raises(ValueError, match="0 to 1"):
        gate.value(True, 1.5)


def test_support_grows_when_the_candidate_is_better():
    gate = MeanGate(0.05, support=True)
    for _ in range(60):
        gate.value(False, 0.5)
        gate.value(True, 0.7)
    assert math.exp(gate.log_e) > 10


def test_ratio_guard_fires_on_a_wrong_split_both_ways_and_not_on_a_right_one():
    rng = np.random.default_rng(0)
    for share, fires in ((0.05, True), (0.1, False), (0.2, True)):
        guard = RatioGuard()
        best = 0.0
        for candidate in rng.random(3000) < share:
            guard.session(bool(candidate), 0.1)
            best = max(best, guard.log_e)
        assert (best >= math.log(1000)) is fires


def test_a_shared_outage_does_not_fire():
    rng = np.random.default_rng(1)
    for seed in range(40):
        gates = Gates(ceiling=0.05, margin=0.05)
        rng = np.random.default_rng(seed)
        for candidate, failed in zip(rng.random(2000) < 0.1, rng.random(2000) < 0.3, strict=True):
            gates.observe_error(bool(candidate), bool(failed), 0.1)
            assert not gates.crossed(0.045)


def test_leading_gate_names_the_reason():
    errors = Gates(ceiling=0.05, margin=0.05)
    worse = Gates(ceiling=0.05, margin=0.05)
    hated = Gates(ceiling=0.05, margin=0.05)
    for _ in range(40):
        errors.observe_error(True, True, 0.1)
        worse.observe_reward(False, 0.9)
        worse.observe_reward(True, 0.1)
        hated.observe_feedback(True, True, 0.1)
    assert (errors.leading(), worse.leading(), hated.leading()) == ("error", "reward", "feedback")
    assert all(gates.crossed(0.045) for gates in (errors, worse, hated))


def test_e_values_stay_finite_numbers():
    gates = Gates(ceiling=0.05, margin=0.05)
    for _ in range(5000):
        gates.observe_error(True, True, 0.1)
    assert all(math.isfinite(value) for value in gates.e_values().values())


def test_log_mean_exp_by_hand():
    assert log_mean_exp([math.log(2), math.log(4)]) == pytest.approx(math.log(3))


def _first_crossing(seed: int, w: float, error: float, mean_drop: float, total: int = 6000) -> int | None:
    """Total sessions until Σ ω·E crosses; errors 1 % and success 0.75 on current."""
    rng = np.random.default_rng(seed)
    gates = Gates(ceiling=0.05, margin=0.05)
    for n in range(1, total + 1):
        candidate = bool(rng.random() < w)
        gates.observe_error(candidate, bool(rng.random() < (error if candidate else 0.01)), w)
        gates.observe_reward(candidate, float(rng.random() < (0.75 - mean_drop if candidate else 0.75)))
        if gates.crossed(0.045):
            return n
    return None


@pytest.mark.parametrize(
    ("w", "error", "drop", "at_most"),
    [(0.1, 0.5, 0.0, 90), (0.1, 1.0, 0.0, 40), (0.25, 0.5, 0.0, 40), (0.1, 0.01, 0.5, 480)],
)
def test_detection_delay_is_what_the_table_promises(w, error, drop, at_most):
    """Medians of delivery section 2.4 (73, 28, 30; a fall of a binary outcome is noisier) with room."""
    found = [_first_crossing(seed, w, error, drop) for seed in range(15)]
    assert all(found)
    assert np.median([n for n in found if n is not None]) <= at_most
