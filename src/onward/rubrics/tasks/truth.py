"""Ground truth: levels of six preference dimensions → the weights of the eleven active checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from onward.errors import ConfigError
from onward.rubrics.tasks.checks import DIMENSIONS
from onward.rubrics.tasks.designs import score_variance

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


def weights_of(picks: tuple[tuple[str, int], ...], levels: Mapping[str, int]) -> np.ndarray | None:
    """Returns the weights of the picked checks, in their order; None if the levels break a limit.

    ``picks`` has the dimension and the base of each check. The weight is proportional to base times level.
    The six largest stay; of equal ones the earlier stays.
    """
    raw = np.array([base * levels[dimension] for dimension, base in picks], dtype=np.float64)
    raw[np.argsort(-raw, kind="stable")[MOST_CRITERIA:]] = 0.0
    if np.count_nonzero(raw) < LEAST_CRITERIA or raw.max() > HEAVIEST * raw.sum():
        return None
    return raw / raw.sum()


def is_reserved(levels: Mapping[str, int]) -> bool:
    """Whether the levels have a pair that training never shows."""
    return any((levels[one], levels[two]) == pair for (one, two), pair in RESERVED.items())


@dataclass(frozen=True)
class TruthTable:
    """Every preference that a family can have: levels (n, 6), weights (n, 11), which ones are reserved."""

    levels: np.ndarray
    weights: np.ndarray
    reserved: np.ndarray

    @cached_property
    def training_rows(self) -> list[int]:
        return np.flatnonzero(~self.reserved).tolist()

    @cached_property
    def reserved_rows(self) -> list[int]:
        return np.flatnonzero(self.reserved).tolist()

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


def truth_table(picks: tuple[tuple[str, int], ...]) -> TruthTable:
    """Enumerates the 729 preferences and keeps those within the limits."""
    kept, weights, reserved = [], [], []
    for combination in product(LEVELS, repeat=len(DIMENSIONS)):
        levels = dict(zip(DIMENSIONS, combination, strict=True))
        found = weights_of(picks, levels)
        if found is not None and score_variance(found) >= LEAST_VARIANCE:
            kept.append(combination)
            weights.append(found)
            reserved.append(is_reserved(levels))
    return TruthTable(np.array(kept), np.array(weights), np.array(reserved))
