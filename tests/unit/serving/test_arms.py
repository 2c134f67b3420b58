import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.contracts.buckets import Assignment, Desired
from onward.serving.routing.arms import (
    Arm,
    Routes,
    assign,
    base_routes,
    choose,
    desired_of,
    fraction,
    routes_of,
    session_key,
)

CURRENT = Arm("current", "agent-zero-rl-v1", "a" * 64, 0.9)
CANDIDATE = Arm("candidate", "agent-zero-rl-v2", "b" * 64, 0.1)


def _routes(weight=0.1, release="r1"):
    candidate = Arm("candidate", "agent-zero-rl-v2", "b" * 64, weight)
    return Routes(3, release, 0, CURRENT, candidate)


def test_assignment_is_deterministic_and_close_to_the_weight():
    arms = [choose("r1", f"s{n}", 0.1) for n in range(20_000)]
    assert arms == [choose("r1", f"s{n}", 0.1) for n in range(20_000)]
    share = arms.count("candidate") / len(arms)
    assert abs(share - 0.1) < 4 * (0.1 * 0.9 / 20_000) ** 0.5


def test_two_releases_assign_independently():
    both = sum(choose("r1", f"s{n}", 0.5) == choose("r2", f"s{n}", 0.5) for n in range(20_000))
    assert abs(both / 20_000 - 0.5) < 0.015


@given(st.text(min_size=1), st.text(min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_growing_weight_never_takes_a_session_from_the_candidate(release, session, one, other):
    low, high = sorted((one, other))
    assert 0 <= fraction(release, session) < 1
    if choose(release, session, low) == "candidate":
        assert choose(release, session, high) == "candidate"


def test_no_weight_and_full_weight_are_exact():
    assert all(choose("r", str(n), 0.0) == "current" for n in range(1000))
    assert all(choose("r", str(n), 1.0) == "candidate" for n in range(1000))


def test_after_a_rollback_the_candidates_sessions_are_served_by_current():
    rolled_back = Routes(4, "r1", 0, CURRENT)
    assert rolled_back.arm("candidate") == CURRENT
    assert not rolled_back.open and rolled_back.weight == 0.0


def test_an_assignment_remembers_earlier_releases():
    first = assign(_routes(), "s", "2026-01-01T00:00:00.000Z")
    second = assign(_routes(release="r2"), "s", "2026-01-02T00:00:00.000Z", first)
    assert second.release_id == "r2" and second.earlier == ("r1",)
    assert Assignment.load(second.dump()) == second


def test_desired_state_goes_there_and_back():
    routes = Routes(7, "r1", 2, CURRENT, CANDIDATE)
    assert routes_of(Desired.load(desired_of(routes).dump())) == routes


@pytest.mark.parametrize(
    "arms",
    [
        [],
        [{"arm": "candidate", "model_id": "m", "adapter_digest": None, "weight": 1.0}],
        [{"arm": "current", "model_id": "m", "adapter_digest": None, "weight": 1.5}],
        [{"arm": "current", "model_id": "m", "adapter_digest": None, "weight": 1}] * 2,
        [{"arm": "current", "adapter_digest": None, "weight": 1}],
        [{"arm": "current", "model_id": "m", "adapter_digest": None}],
        [{"arm": "other", "model_id": "m", "adapter_digest": None, "weight": 1}],
        "nonsense",
    ],
)
def test_a_desired_state_that_cannot_be_served_is_refused(arms):
    with pytest.raises(ValueError):
        Desired.load(json.dumps({"revision": 1, "release_id": None, "step": 0, "arms": arms}).encode())


def test_keys_of_sessions_are_safe_and_of_fixed_length():
    assert session_key("../ > *") != session_key("../ > * ")
    assert len(session_key("x" * 512)) == 32


def test_before_any_release_the_base_serves():
    routes = base_routes("tiny")
    assert routes.current.adapter_digest is None and not routes.open and routes.digests == set()
