"""The rule by which a rubric writer passes its validation, with numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from onward.config import RubricsSettings
from onward.training.writers.rule import verdict


def figures(**changes: Any) -> dict[str, Any]:
    """Figures that pass with the default settings: better than the warm start, and none is released."""
    gain = {"mean": 0.2, "low": 0.1, "high": 0.3}
    return {"skill": 0.25, "invalid": 0.0, "degenerate": 0.0, "skill_gain": gain, **changes}


def versus(low: float, mean: float = 0.0, high: float = 0.05) -> dict[str, Any]:
    return {"released": "rubric-writer-v1", "versus_released": {"mean": mean, "low": low, "high": high}}


@pytest.mark.parametrize(
    ("found", "settings", "passes", "words"),
    [
        ({}, {}, True, "Shown to be better than its warm start"),
        ({"skill_gain": {"mean": 0.1, "low": 0.0, "high": 0.2}}, {}, False, "Not shown to be better"),
        (versus(-0.02), {}, True, "Shown to be not worse than rubric-writer-v1"),
        (versus(-0.021), {}, False, "needed: lower end at least -0.020"),
        (versus(-0.021), {"margin": 0.03}, True, "at least -0.030"),
        (versus(0.0, 0.02), {"margin": 0}, True, "at least 0)"),
        (versus(0.0, 0.02), {"rule": "better"}, False, "lower end above 0)"),
        (versus(0.001, 0.02), {"rule": "better"}, True, "Shown to be better than rubric-writer-v1"),
        ({"invalid": 0.02}, {}, False, "2.0% of its rubrics are invalid, above rubrics.max_invalid = 0.01."),
        ({"invalid": 0.01}, {}, True, ""),
        ({"degenerate": 0.05, **versus(0.5)}, {}, False, "5.0% of its rubrics are degenerate"),
        ({"degenerate": 0.05}, {"max_degenerate": 0.05}, True, ""),
        ({"skill": -0.01}, {}, False, "Its skill is -0.010, below rubrics.min_skill = 0"),
        ({"skill": float("nan")}, {}, False, "below rubrics.min_skill"),
        ({"problem": "The files differ."}, {}, False, "compared with the released writer: The files differ."),
    ],
)
def test_the_lower_end_of_the_interval_decides_within_the_limits(
    found: dict[str, Any], settings: dict[str, Any], passes: bool, words: str
) -> None:
    one = verdict(figures(**found), RubricsSettings.model_validate(settings))
    assert one.passed is passes
    assert words in one.why
