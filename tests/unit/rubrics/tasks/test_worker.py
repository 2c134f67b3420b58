"""The guided worker over many tasks: a good rubric leads to good work, a bad one to chance."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from onward.rubrics.tasks import TRAINING_FAMILIES, guided_bits, guided_score, make_task

TRUTH = np.array([0.30, 0.25, 0.20, 0.15, 0.10])
TASKS = [make_task(family, seed) for family in TRAINING_FAMILIES for seed in range(100)]
Rubric = Callable[[list[int]], dict[int, float]]


def mean_score(rubric: Rubric) -> float:
    """Returns the mean true score of guided work; the five right checks are at random places of each task."""
    scores = []
    for task in TASKS:
        order = random.Random(f"{task.family}{task.seed}").sample(range(11), 11)
        truth, weights = np.zeros(11), np.zeros(11)
        truth[order[:5]] = TRUTH
        for place, weight in rubric(order).items():
            weights[place] = weight
        scores.append(float(guided_bits(task, weights) @ truth))
    return float(np.mean(scores))


@pytest.mark.parametrize(
    ("rubric", "expected"),
    [
        (lambda order: dict(zip(order, TRUTH, strict=False)), 0.92),
        (lambda order: dict.fromkeys(order[:3], 1.0), 0.81),
        (lambda order: dict.fromkeys(order[:3] + order[5:7], 1.0), 0.70),
        (lambda order: dict.fromkeys(order, 1.0), 0.53),
        (lambda order: dict.fromkeys(order[5:], 1.0), 0.25),
        (lambda order: {}, 0.25),
    ],
    ids=["exact", "3 of 5", "3 right and 2 wrong", "all 11", "wrong", "empty"],
)
def test_guided_work_has_the_published_scores(rubric: Rubric, expected: float) -> None:
    """Four standard errors over 2,400 tasks: the deviation of one score is at most 0.23."""
    assert mean_score(rubric) == pytest.approx(expected, abs=4 * 0.23 / np.sqrt(len(TASKS)))


def test_effort_goes_to_the_heaviest_checks_and_chance_is_the_tasks() -> None:
    task = make_task("sla_report", 3)
    weights = np.array([0, 5, 4, 0, 3, 2, 1, 0, 0, 0, 0])
    alone = guided_bits(task, np.zeros(11))
    assert guided_bits(task, weights).tolist() == [
        bool(alone[place]) or place in (1, 2, 4, 5) for place in range(11)
    ]
    assert guided_bits(task, weights, budget=0).tolist() == alone.tolist()
    assert guided_bits(task, weights, budget=11, by_chance=0.0).tolist() == (weights > 0).tolist()
    assert guided_bits(task, weights * 2).tolist() == guided_bits(task, weights).tolist()
    assert guided_score(task, task.weights) == float(guided_bits(task, task.weights) @ task.weights)


def test_the_task_decides_which_of_equal_checks_the_worker_takes() -> None:
    taken = np.zeros(11)
    for task in TASKS:
        found = guided_bits(task, np.ones(11), by_chance=0.0)
        assert found.sum() == 4
        taken += found
    # 2,400 tasks: four standard errors of a share of 4/11 are 0.04.
    assert taken / len(TASKS) == pytest.approx(np.full(11, 4 / 11), abs=0.04)
