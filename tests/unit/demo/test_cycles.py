"""What the demonstration takes from the record of a release."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from onward.demo.result import Check, FailingAnswer, Rates
from onward.demo.run import _cycle_of, _rates_of
from onward.release.record import Model, ReleaseRecord

AT = "2026-01-01T00:00:00.000Z"


def record(**changes: Any) -> ReleaseRecord:
    def model(name: str) -> Model:
        return Model(model_id=name, adapter_digest="0" * 64, object_prefix="p", training_job_id="j")

    given: dict[str, Any] = {
        "release_id": "r", "job_id": "j", "epoch": 1, "created_at": AT, "updated_at": AT,
        "candidate": model("agent-zero-rl-v2"), "current": model("agent-zero-rl-v1"),
    }  # fmt: skip
    return ReleaseRecord(**{**given, **changes})


def job(samples: int) -> Any:
    return SimpleNamespace(samples=samples, progress={"metrics": {"outcome_mean": 0.4}})


def test_a_rejected_candidate_keeps_its_counts_and_two_answers_that_failed() -> None:
    answers = [{"check_id": name, "answer": f'{name}"}}}}'} for name in ("lookup", "note", "sum")]
    failed = {"ok": False, "verdict": "failed", "passed": 12, "of": 20, "current": 19, "p": 0.008,
              "failing": answers}  # fmt: skip
    unshown = {"ok": True, "verdict": "not shown", "passed": 0, "of": 20, "current": 0, "p": 1.0,
               "failing": [{"check_id": "spying", "answer": "done"}]}  # fmt: skip
    found = _cycle_of(
        2,
        job(512),
        record(
            decision="rejected",
            reason="12 of 20 requests answered in the right form, current 19 of 20, p 0.008",
            validation={
                "candidate": 0.6,
                "current": 0.5,
                "summary": {"tasks": 100, "checks": {"refusal": unshown, "format": failed}},
            },
        ),
        False,
    )
    assert found.checks["format"] == Check(verdict="failed", passed=12, current=19, of=20, p=0.008)
    assert found.checks["refusal"].verdict == "not shown"
    assert found.failing == [
        FailingAnswer(check_id="lookup", answer='lookup"}}'),
        FailingAnswer(check_id="note", answer='note"}}'),
    ]
    assert (found.validation_tasks, found.share, found.trajectories, found.mean_outcome) == (
        100,
        None,
        512,
        0.4,
    )


def test_a_planted_candidate_learned_from_nothing_and_was_not_validated() -> None:
    summary = {"skipped": "the training job asked for it (skip_validation)"}
    found = _cycle_of(4, job(7), record(decision="aborted", validation={"summary": summary}), True)
    assert (found.trajectories, found.decision, found.sabotaged) == (0, "inconclusive", True)
    assert (found.validation_success, found.validation_tasks, found.checks, found.failing) == (
        None,
        None,
        {},
        [],
    )


def test_rates_are_empty_before_any_session_was_judged() -> None:
    assert _rates_of(record()) == {}
    counted = {
        "candidate": {"sessions": 40, "errors": 2, "error_rate": 0.05, "mean_outcome": 0.6, "outcomes": 38}
    }
    shown: Any = SimpleNamespace(model_dump=lambda **_: {"rates": counted})
    assert _rates_of(shown) == {"candidate": Rates(sessions=40, errors=2, error_rate=0.05, mean_outcome=0.6)}
