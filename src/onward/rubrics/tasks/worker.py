"""The guided worker: it follows a rubric as far as its effort goes. So a good rubric leads to good work."""

from __future__ import annotations

import random

import numpy as np

from onward.rubrics.tasks.task import RubricTask

BUDGET = 4
"""Checks that the worker satisfies because the rubric asks for them."""
BY_CHANCE = 0.25
"""Probability of every other check."""


def guided_bits(
    task: RubricTask, weights: np.ndarray, *, budget: int = BUDGET, by_chance: float = BY_CHANCE
) -> np.ndarray:
    """Returns the checks that the worker satisfies, given the weights of a rubric: one per active check.

    It takes the heaviest checks first, equal ones in an order that the task decides. Chance is decided by
    the task too, so the writer of a rubric cannot draw again.
    """
    draw = random.Random(f"worker/{task.family}/{task.seed}")
    done = np.array([draw.random() < by_chance for _ in task.active])
    ties = [draw.random() for _ in task.active]
    asked = [place for place, weight in enumerate(weights) if weight > 0]
    done[sorted(asked, key=lambda place: (-weights[place], ties[place]))[:budget]] = True
    return done


def guided_score(task: RubricTask, weights: np.ndarray) -> float:
    """Returns the true score of the work that a rubric leads to."""
    return float(guided_bits(task, weights) @ task.weights)
