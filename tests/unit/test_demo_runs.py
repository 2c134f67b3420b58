"""What the benchmark of the demonstration makes of its runs: values by hand."""

from __future__ import annotations

from typing import Any

import demo_runs


def one(base: float, final: float, seconds: float, *reasons: str) -> dict[str, Any]:
    cycles = [{"decision": "rejected" if reason else "promoted", "reason": reason} for reason in reasons]
    result = {"base_success": base, "final_success": final, "cycles": cycles}
    return {"seed": 0, "load": "quiet", "seconds": seconds, "result": result}


def test_median_range_and_rejections_for_form_are_counted_per_run() -> None:
    runs = [
        one(0.30, 0.55, 100.0, "", ""),
        one(0.20, 0.30, 300.0, "12 of 20 requests answered in the right form, current 19 of 20, p 0.008", ""),
        one(0.30, 0.70, 200.0, "success 0.41, current 0.55", ""),
    ]
    found = demo_runs.summary(runs)
    assert [round(found["rise"][name], 3) for name in ("median", "least", "most")] == [0.25, 0.1, 0.4]
    assert found["rise_of_0.25_or_more"] == 2, "0.55 - 0.30 counts, whatever floating point makes of it"
    assert found["without_rejection_for_form"] == 2
    assert found["seconds"] == {"median": 200.0, "least": 100.0, "most": 300.0}
