"""The phrase that ``onward jobs`` shows for the result of a job of each kind."""

from __future__ import annotations

from typing import Any

import pytest

from onward.cli.jobs import result_phrase


@pytest.mark.parametrize(
    ("metrics", "phrase"),
    [
        (
            {
                "version": "rubric-writer-v2",
                "passed": True,
                "released_now": True,
                "why": "Shown.",
                "policy": "rubrics/j/1",
            },
            "rubric-writer-v2 released: Shown.",
        ),
        (
            {"version": "rubric-writer-v3", "passed": False, "released_now": False, "why": "Worse."},
            "rubric-writer-v3 not passed: Worse.",
        ),
        (
            {"version": "rubric-writer-v3", "passed": True, "released_now": False, "why": "Shown."},
            "rubric-writer-v3 passed, not released: Shown.",
        ),
        ({"policy": "control/j/1"}, "a policy under control/j/1"),
        ({"loss": 0.5}, "a checkpoint that waits for its release"),
        (None, "a checkpoint that waits for its release"),
    ],
)
def test_a_completed_job_of_each_kind_has_its_own_phrase(metrics: dict[str, Any] | None, phrase: str) -> None:
    job = {"state": "completed", "error": None, "release": None, "percent": 100.0, "metrics": metrics}
    assert result_phrase(job) == phrase
