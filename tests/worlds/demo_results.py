"""Results of demonstrations, made by hand."""

from __future__ import annotations

from typing import Any

from onward.demo.result import Check, Cycle, FailingAnswer, KindResult, Rates, Result

REASON = "12 of 20 requests answered in the right form, current 19 of 20, p 0.008"
KINDS = {
    "lookup": KindResult(base=0.2, final=0.9, tries=100),
    "total": KindResult(base=0.4, final=0.7, tries=100),
}


def cycle(number: int, decision: str = "promoted", **changes: Any) -> Cycle:
    """Candidate ``number``, validated at 0.30 → 0.54."""
    given = {
        "number": number,
        "trajectories": 512,
        "mean_outcome": 0.41,
        "mean_raw_total": 0.52,
        "validation_success": 0.54,
        "validation_current": 0.30,
        "validation_tasks": 100,
        "candidate": f"agent-zero-rl-v{number}",
        "decision": decision,
        "reason": "evidence: not worse",
        "sessions": {"candidate": 120, "current": 344},
        "rates": {
            "candidate": Rates(sessions=120, errors=3, error_rate=0.025, mean_outcome=0.55),
            "current": Rates(sessions=344, errors=72, error_rate=0.2093, mean_outcome=0.3),
        },
        "e_values": {"error": 0.02, "reward": 0.11, "all": 0.23},
    }
    return Cycle.model_validate({**given, **changes})


def rejected(number: int = 2) -> Cycle:
    return cycle(
        number,
        "rejected",
        reason=REASON,
        validation_success=0.60,
        checks={
            "format": Check(verdict="failed", passed=12, current=19, of=20, p=0.008),
            "refusal": Check(verdict="not shown", passed=0, current=0, of=20, p=1.0),
        },
        failing=[
            FailingAnswer(check_id="lookup", answer='unknown"}}'),
            FailingAnswer(check_id="note", answer='text": "a very long answer ' + "and so on " * 30),
        ],
        sessions={},
        rates={},
        e_values={},
    )


def planted(number: int = 3) -> Cycle:
    return cycle(
        number,
        "rolled_back",
        reason="high_error_rate",
        validation_success=None,
        validation_current=None,
        validation_tasks=None,
        mean_outcome=None,
        mean_raw_total=None,
        share=0.25,
        e_values={"error": 60_000.0, "all": 56_000.0},
        rates={
            "candidate": Rates(sessions=40, errors=40, error_rate=1.0, mean_outcome=0.0),
            "current": Rates(sessions=120, errors=1, error_rate=0.0083, mean_outcome=0.54),
        },
        crossed_at="2026-01-01T00:00:10.000Z",
        verified_zero_at="2026-01-01T00:00:14.100Z",
        sabotaged=True,
    )


def result(*cycles: Cycle, **changes: Any) -> Result:
    given = {
        "model": "tiny",
        "seed": 0,
        "decoding": "sampled at temperature 1, as served, on 2 x 100 test tasks",
        "raw_success": 0.0,
        "base_success": 0.3,
        "final_success": 0.76,
        "best_constant_success": 0.02,
        "by_kind": KINDS,
        "wall_seconds": 148.5,
        "stages": {"warm start": 36.0, "collect": 11.0, "train": 21.0, "validate": 8.0, "release": 60.0},
        "cycles": list(cycles),
        "current_model": next(
            (c.candidate for c in reversed(cycles) if c.decision == "promoted"), "agent-zero-rl-v0"
        ),
        "accepted": 2503,
        "lost": 0,
        "duplicates": 0,
    }
    return Result.model_validate({**given, **changes})
