"""The validation of a rubric writer: conditions of use, and differences worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import ConfigError
from onward.rubrics.backend_player import BaselinePlayer
from onward.rubrics.policy import writer as policy_writer
from onward.rubrics.policy.episodes import Attempt
from onward.rubrics.policy.evaluation import judged
from onward.rubrics.policy.plan import Plan
from onward.rubrics.policy.splits import validation_tasks
from onward.rubrics.tasks import RubricTask
from onward.rubrics.tasks.splits import splits
from onward.training.job import rubrics


class Noted:
    """A reference point that notes how it was asked to play."""

    def __init__(self, name: str, calls: list[tuple[float, None]]) -> None:
        self._player, self._calls = BaselinePlayer(name), calls

    def play(
        self, tasks: Sequence[RubricTask], *, stakeholder: Callable[..., Any], **given: Any
    ) -> list[Attempt]:
        self._calls.append((given["temperature"], stakeholder(tasks[0])))
        return self._player.play(tasks, stakeholder=stakeholder, **given)


def test_writers_are_compared_as_they_score_and_by_family(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[float, None]] = []
    monkeypatch.setattr(policy_writer, "load_player", lambda folder: Noted(folder.name, calls))
    monkeypatch.setattr(rubrics, "VALIDATION_TASKS", 16)
    found = rubrics.compared(
        Path("full_oracle"), Path("template"), {"version": "rubric-writer-v1", "folder": "constant"}
    )
    assert calls == [(0.0, None)] * 3  # the likeliest rubric, and no questions, as in scoring
    tasks = validation_tasks(16)
    skills = {name: np.array(judged(BaselinePlayer(name), tasks).skills)
              for name in ("full_oracle", "template", "constant")}  # fmt: skip
    families = np.array([task.family for task in tasks])
    for key, other in (("skill_gain", "template"), ("versus_released", "constant")):
        gain = skills["full_oracle"] - skills[other]
        parts = {family: float(gain[families == family].mean()) for family in splits().validation}
        assert found[f"{key}_by_family"] == pytest.approx(parts)
        assert found[key]["mean"] == pytest.approx(np.mean(list(parts.values())))
        # four tasks of each of four families: the mean of four means, with 12 degrees of freedom
        error = np.sqrt(sum(gain[families == family].var(ddof=1) / 4 for family in parts)) / 4
        assert found[key]["low"] == pytest.approx(found[key]["mean"] - 2.178813 * error)
        assert found[key]["high"] == pytest.approx(found[key]["mean"] + 2.178813 * error)


@pytest.mark.parametrize("family", [*splits().validation, splits().held_out[0], "no_such_family"])
def test_no_run_trains_on_a_family_that_judges_writers(family: str) -> None:
    with pytest.raises(ConfigError, match=f"No run trains on the family '{family}'"):
        Plan(families=("expense_audit", family))
