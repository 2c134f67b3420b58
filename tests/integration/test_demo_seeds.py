"""The demonstration lands on any machine: five seeds at rest and beside load, and SmolLM2 on three seeds.

Not one good run but what most runs do; the same program makes the figures of the README.
"""

from __future__ import annotations

from typing import Any

import pytest

import demo_runs

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]


def runs_of(model: str, cases: list[tuple[int, bool]]) -> list[dict[str, Any]]:
    return [demo_runs.run(model, seed, loaded, None) for seed, loaded in cases]


def test_nine_of_ten_runs_rise_by_a_quarter_and_reject_nothing_for_its_form() -> None:
    runs = runs_of("tiny", [(seed, loaded) for loaded in (False, True) for seed in range(5)])
    table = "\n".join(demo_runs.row(one) for one in runs)
    assert sum(demo_runs.rise(one) >= 0.25 - 1e-9 for one in runs) >= 9, table
    assert sum(demo_runs.rejected_for_form(one) == 0 for one in runs) >= 9, table
    assert all(one["result"]["lost"] == one["result"]["duplicates"] == 0 for one in runs), table


def test_smollm2_rises_by_a_quarter_within_fifteen_minutes_on_two_of_three_seeds() -> None:
    runs = runs_of("smollm2", [(seed, False) for seed in range(3)])
    table = "\n".join(demo_runs.row(one) for one in runs)
    landed = [demo_runs.rise(one) >= 0.25 - 1e-9 and one["seconds"] <= 900 for one in runs]
    assert sum(landed) >= 2, table
