"""Expected score of the guided worker's output (``tasks.worker``), without its draws.

The worker satisfies the ``effort`` checks of greatest weight in the rubric, ties in any order with equal
probability. Every other check holds by chance. The expectation is exact, so the reward has no noise from it.
"""

from __future__ import annotations

import numpy as np

from onward.rubrics.tasks.worker import BUDGET, BY_CHANCE


def expected_score(
    weights: np.ndarray, truth: np.ndarray, *, effort: int = BUDGET, chance: float = BY_CHANCE
) -> float:
    """Returns the expected score under the truth of an output that follows a rubric.

    ``weights`` is the rubric's weight of each check, 0 for one that it lacks; ``truth`` are shares.
    """
    sure, tied, picks = _chosen(weights, effort)
    odds = np.full(len(weights), chance)
    odds[sure] = 1.0
    if len(tied):
        share = picks / len(tied)
        odds[tied] = share + (1 - share) * chance
    return float(truth @ odds)


def _chosen(weights: np.ndarray, effort: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns the checks that are surely satisfied, those tied for the rest of the effort, and that rest."""
    levels = sorted({float(weight) for weight in weights if weight > 0}, reverse=True)
    sure: list[int] = []
    for level in levels:
        members = np.flatnonzero(weights == level)
        if len(sure) + len(members) > effort:
            return np.array(sure, dtype=int), members, effort - len(sure)
        sure.extend(members)
    return np.array(sure, dtype=int), np.array([], dtype=int), 0
