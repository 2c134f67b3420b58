"""Ground truth: levels of six preference dimensions → the weights of the eleven active checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from onward.errors import ConfigError
from onward.rubrics.tasks.checks import DIMENSIONS

LEVELS = (0, 1, 3)
"""Levels of a dimension: it does not matter, it helps, it is decisive."""
LEAST_CRITERIA, MOST_CRITERIA, HEAVIEST, LEAST_VARIANCE = 4, 6, 0.4, 0.01
"""Limits of a truth: criteria that count, weight of one of them, variance of the score on the probes."""
RESERVED: Mapping[tuple[str, str], tuple[int, int]] = {
    ("accuracy", "brevity"): (3, 3),
    ("completeness", "actionability"): (1, 3),
    ("compliance", "traceability"): (3, 1),
}
"""Pairs of dimensions and pairs of their levels that only the split ``new_preferences`` has."""


def weights_of(picks: tuple[tuple[str, float], ...], levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the weights of the picked checks for each row of ``levels`` (n, 6), and which are valid.

    ``picks`` has the dimension and the base of each check. The weight is proportional to base times level.
    The six largest stay; of equal ones the earlier stays.
    """
    raw = levels[:, [DIMENSIONS.index(name) for name, _ in picks]] * np.array(
        [base for _, base in picks], float
    )
    dropped = np.argsort(-raw, axis=1, kind="stable")[:, MOST_CRITERIA:]
    np.put_along_axis(raw, dropped, 0.0, axis=1)
    weights = raw / np.maximum(raw.sum(axis=1, keepdims=True), 1.0)
    within = (raw > 0).sum(axis=1) >= LEAST_CRITERIA
    within &= weights.max(axis=1) <= HEAVIEST
    within &= (weights * weights).sum(axis=1) / 4 >= LEAST_VARIANCE  # designs.score_variance
    return weights, within


def is_reserved(levels: np.ndarray) -> np.ndarray:
    """Returns which rows of ``levels`` have a pair that training never shows."""
    found = np.zeros(len(levels), dtype=bool)
    for names, pair in RESERVED.items():
        found |= (levels[:, [DIMENSIONS.index(name) for name in names]] == pair).all(axis=1)
    return found


@dataclass(frozen=True)
class TruthTable:
    """Every preference that a family can have: levels (n, 6), weights (n, 11), which ones are reserved."""

    levels: np.ndarray
    weights: np.ndarray
    reserved: np.ndarray

    @cached_property
    def training_rows(self) -> list[int]:
        """Rows without a reserved pair."""
        return np.flatnonzero(~self.reserved).tolist()

    @cached_property
    def reserved_rows(self) -> list[int]:
        """Rows with a reserved pair whose weights no row of training has."""
        trained = {weights.tobytes() for weights in self.weights[~self.reserved]}
        return [
            row
            for row in np.flatnonzero(self.reserved).tolist()
            if self.weights[row].tobytes() not in trained
        ]

    def posterior(self, known: Mapping[str, int]) -> np.ndarray:
        """Returns the mean weights given the levels of some dimensions, over what training shows.

        Without such a preference it is the mean over all preferences that agree with ``known``.
        """
        agree = np.ones(len(self.levels), dtype=bool)
        for dimension, level in known.items():
            agree &= self.levels[:, DIMENSIONS.index(dimension)] == level
        usual = agree & ~self.reserved
        chosen = usual if usual.any() else agree
        if not chosen.any():
            raise ConfigError(f"No preference of this family has the levels {dict(known)}: give others.")
        return self.weights[chosen].mean(axis=0)


def truth_table(picks: tuple[tuple[str, float], ...]) -> TruthTable:
    """Enumerates the 729 preferences and keeps those within the limits."""
    levels = np.array(list(product(LEVELS, repeat=len(DIMENSIONS))))
    weights, within = weights_of(picks, levels)
    return TruthTable(levels[within], weights[within], is_reserved(levels[within]))
