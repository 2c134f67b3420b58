"""The sentences about a release, against numbers that were worked out by hand."""

import pytest

from onward.release import wording
from onward.release.evidence.rates import ArmRates
from onward.release.plan import State
from onward.release.record import Model, ReleaseRecord

RATES = {
    "candidate": ArmRates(
        sessions=40, errors=3, error_rate=3 / 40, outcomes=36, mean_outcome=0.31, feedback=10, negative=9
    ),
    "current": ArmRates(
        sessions=160, errors=1, error_rate=1 / 160, outcomes=150, mean_outcome=0.75, feedback=30, negative=1
    ),
}


def fact(passed: int, current: int, p: float, verdict: str = "failed") -> dict:
    return {
        "ok": verdict != "failed", "verdict": verdict, "passed": passed, "of": 20, "current": current, "p": p,
    }  # fmt: skip


SUITE = {
    "candidate": 0.41, "current": 0.55, "difference": -0.14, "low": -0.24, "high": -0.04, "limit": -0.05,
}  # fmt: skip


def test_a_rejection_says_each_thing_that_failed_and_nothing_that_did_not():
    form = {"refusal": fact(20, 20, 1.0, "passed"), "format": fact(12, 19, 9 / 1024)}
    good = {**SUITE, "candidate": 0.61, "difference": 0.06}
    assert wording.why_not_released({"summary": {**good, "checks": form}}) == (
        "12 of 20 requests answered in the right form, current 19 of 20, p 0.009"
    )
    assert wording.why_not_released({"summary": {**SUITE, "checks": {}}}) == (
        "success 0.41, current 0.55, difference -0.14 [-0.24, -0.04], limit -0.05"
    )
    both = wording.why_not_released({"summary": {**SUITE, "checks": form}})
    assert both.startswith("success 0.41") and both.endswith(
        "limit -0.05; 12 of 20 requests answered in the right form, current 19 of 20, p 0.009"
    )
    assert wording.why_not_released({"summary": {**good, "checks": {}}}) == ""
    assert wording.why_not_released({"summary": {"skipped": "asked for"}}) == ""


def test_what_neither_model_shows_is_not_shown():
    checks = {"refusal": fact(0, 0, 1.0, "not shown"), "format": fact(20, 20, 1.0, "passed")}
    assert wording.safety_counts({"summary": {"safety": "not shown", "checks": checks}}) == (
        "safety: not shown (0 of 20 harmful requests declined, current 0 of 20)"
    )
    checks["format"] = fact(12, 19, 9 / 1024)
    assert wording.safety_counts({"summary": {"safety": "failed", "checks": checks}}) == (
        "safety: failed (12 of 20 requests answered in the right form, current 19 of 20)"
    )
    assert wording.safety_counts(
        {"summary": {"safety": "passed", "checks": {"format": fact(20, 19, 1.0, "passed")}}}
    ) == ("safety: passed")
    assert wording.safety_counts(None) == ""


def test_rates_are_percentages_of_what_was_judged():
    assert wording.error_rates(RATES) == "errors 3 of 40 (7.5 %), current 1 of 160 (0.6 %)"
    assert wording.outcome_rates(RATES) == "mean outcome 0.31 in 36 sessions, current 0.75 in 150"
    assert wording.feedback_rates(RATES) == "negative feedback 9 of 10 (90.0 %), current 1 of 30 (3.3 %)"
    assert wording.error_rates({}) == "errors none judged yet, current none judged yet"


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ("error", "errors 3 of 40 (7.5 %), current 1 of 160 (0.6 %), E 60"),
        ("reward", "mean outcome 0.31 in 36 sessions, current 0.75 in 150, E 2.5"),
        ("feedback", "negative feedback 9 of 10 (90.0 %), current 1 of 30 (3.3 %), E 0.4"),
    ],
)
def test_a_crossing_names_its_gate_with_the_rates_of_that_gate(gate, words):
    e_values = {"error": 60.0, "reward": 2.5, "feedback": 0.4, "all": 23.456}
    expected = f"the {gate} gate crossed with {words}; all gates together E 23, limit 22.2"
    assert wording.crossed(RATES, e_values, gate, 0.045) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.394, "0.39"), (1.0, "1"), (9.94, "9.9"), (22.2, "22"), (2960.4, "2,960"), (1e6, "over 1,000,000")],
)
def test_an_e_value_has_as_many_digits_as_anybody_reads(value, text):
    assert wording.e_number(value) == text


def record(state: State, **more) -> ReleaseRecord:
    model = Model(model_id="v2", adapter_digest="d2", object_prefix="p", training_job_id="j")
    current = model.model_copy(update={"model_id": "v1"})
    at = "2026-01-05T18:00:00.000Z"
    return ReleaseRecord(
        release_id="r", job_id="j", epoch=1, state=state, created_at=at, updated_at=at, candidate=model,
        current=current, **more,
    )  # fmt: skip


def test_a_release_is_one_sentence_in_every_state():
    steps = [{"share": share, "seconds": 1.0, "sessions": 1} for share in (0.1, 0.95)]
    plan = {"strategy": "canary", "deadline_seconds": 60.0, "on_inconclusive": "hold", "steps": steps}
    seen = {"plan": plan, "rates": RATES, "e_values": {"all": 0.4}}
    happened = wording.what_happened
    assert happened(record(State.PROPOSED)) == "v2 is proposed."
    assert happened(record(State.VALIDATING)) == "v2 is being validated."
    assert happened(record(State.RAMPING, **seen)) == (
        "v2 is ramping at 10% of new sessions, step 1 of 2: "
        "errors 3 of 40 (7.5 %), current 1 of 160 (0.6 %), E 0.4."
    )
    held = record(State.HELD, held_why="silence", history=[{"why": "nobody reports"}], **seen)
    assert happened(held).startswith("v2 is held at 10% of new sessions (nobody reports), step 1 of 2: ")
    assert happened(record(State.REJECTED, reason="It was changed.")) == "v2 was rejected: It was changed."
    assert happened(record(State.ABORTED, reason="a model is pinned")) == "v2 was aborted: a model is pinned."
    assert happened(record(State.ROLLED_BACK, reason="E")) == "v2 was taken back to v1: E."
    assert happened(record(State.PROMOTED, reason="x", plan=plan)) == "v2 was promoted: x."
    assert happened(record(State.PROMOTED)) == "v2 was installed as the first model."


def test_a_promotion_says_what_was_shown_with_rates_and_safety():
    shown = {"rates": RATES, "e_values": {"all": 0.4}, "validation": {"summary": {"safety": "passed"}}}
    numbers = "errors 3 of 40 (7.5 %), current 1 of 160 (0.6 %), E 0.4; safety: passed"
    assert wording.why_promoted(record(State.BAKING, shown="none-against", **shown)) == (
        f"no evidence against it, {numbers}"
    )
    assert wording.why_promoted(record(State.BAKING, shown="not worse", **shown)) == (
        f"shown to be not worse, {numbers}"
    )
