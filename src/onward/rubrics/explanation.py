"""A rubric on the designed outputs of a task, criterion by criterion, beside the truth. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from onward.rubrics.check import Check
from onward.rubrics.language import Rubric
from onward.rubrics.reward import ROBUST, RubricReward, RubricRewardSettings, reward_of
from onward.rubrics.tasks import RubricTask, describe


@dataclass(frozen=True)
class CriterionView:
    """A criterion: what it weighs here and in the truth, and which outputs it separates."""

    check: Check
    question: str
    weight: int
    share: float
    """Its part of the rubric's score."""
    true_share: float
    """Weight of the check in the truth."""
    holds: tuple[int, ...]
    """Numbers of the outputs that satisfy it, from 1."""
    fails: tuple[int, ...]
    gap: float | None
    """Mean true score of the outputs that satisfy it, less that of the others; None if it separates none."""


@dataclass(frozen=True)
class OutputView:
    """A designed output with both scores."""

    number: int
    satisfied: tuple[str, ...]
    """Checks of the task that it satisfies."""
    score: float
    truth: float


@dataclass(frozen=True)
class Explanation:
    """Everything about one rubric for one task."""

    task: RubricTask
    rubric: Rubric
    criteria: tuple[CriterionView, ...]
    outputs: tuple[OutputView, ...]
    missing: tuple[tuple[Check, float], ...]
    """Checks that count in the truth and that the rubric lacks, with their weights, the heaviest first."""
    reward: RubricReward

    def as_dict(self) -> dict[str, Any]:
        """Returns the explanation as JSON."""
        return {
            "task": name_of(self.task),
            "brief": self.task.brief,
            "criteria": [{**asdict(one), "check": str(one.check)} for one in self.criteria],
            "outputs": [asdict(one) for one in self.outputs],
            "missing": {str(check): weight for check, weight in self.missing},
            "reward": asdict(self.reward),
        }


def signed(value: float, digits: int = 2) -> str:
    """Returns a number with its sign; what rounds to 0 is +0."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def name_of(task: RubricTask) -> str:
    return f"{task.family}/{task.seed}"


def explained(
    rubric: Rubric, task: RubricTask, *, questions: int = 0, settings: RubricRewardSettings = ROBUST
) -> Explanation:
    """Returns what each criterion of ``rubric`` does on the designed outputs of ``task``.

    The rubric has checks of the task alone (``language.parse``). ``questions``: those that its writer asked.
    """
    probes = np.asarray(task.probes(), dtype=bool)
    places = {check: place for place, check in enumerate(task.active)}
    truth = task.score(probes)
    columns = probes[:, [places[check] for check in rubric.checks]]
    scores = columns @ rubric.weights
    criteria = tuple(
        CriterionView(
            one.check,
            describe(one.check),
            one.weight,
            float(share),
            float(task.weights[places[one.check]]),
            tuple(int(n) + 1 for n in np.flatnonzero(column)),
            tuple(int(n) + 1 for n in np.flatnonzero(~column)),
            float(truth[column].mean() - truth[~column].mean()) if 0 < column.sum() < len(column) else None,
        )
        for one, share, column in zip(rubric.criteria, rubric.weights, columns.T, strict=True)
    )
    outputs = tuple(
        OutputView(
            number,
            tuple(str(check) for check, holds in zip(task.active, row, strict=True) if holds),
            float(score),
            float(true),
        )
        for number, (row, score, true) in enumerate(zip(probes, scores, truth, strict=True), 1)
    )
    left = [
        (check, float(weight))
        for check, weight in zip(task.active, task.weights, strict=True)
        if weight > 0 and check not in rubric.checks
    ]
    missing = tuple(sorted(left, key=lambda pair: -pair[1]))
    reward = reward_of(rubric, task, questions, settings)
    return Explanation(task, rubric, criteria, outputs, missing, reward)
