"""A rubric of the finite language: three to seven weighted checks in canonical order."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from onward.errors import OnwardError
from onward.rubrics.check import Check

LEAST_CRITERIA = 3
MOST_CRITERIA = 7
WEIGHTS = (1, 2, 3, 4, 5)


class InvalidRubric(OnwardError):
    """A rubric, or a text for one, that the language does not have. The message says why."""


@dataclass(frozen=True, order=True)
class Criterion:
    """One check and its weight, an int. Raises InvalidRubric for anything but a whole number from 1 to 5."""

    check: Check
    weight: int

    def __post_init__(self) -> None:
        try:
            weight = 0 if isinstance(self.weight, bool) else operator.index(self.weight)
        except TypeError:
            weight = 0
        object.__setattr__(self, "weight", weight or self.weight)
        if weight not in WEIGHTS:
            raise InvalidRubric(
                f"The weight of {self.check} is {self.weight!r}: use a whole number from {WEIGHTS[0]} to "
                f"{WEIGHTS[-1]}."
            )


@dataclass(frozen=True, init=False)
class Rubric:
    """Criteria in canonical order: by check, then by weight. Raises InvalidRubric for fewer than 3 or more
    than 7.

    A check may occur twice. Such a rubric is valid, and the reward's quality term counts the repeats.
    """

    criteria: tuple[Criterion, ...]

    def __init__(self, criteria: Iterable[Criterion]) -> None:
        ordered = tuple(sorted(criteria))
        if not LEAST_CRITERIA <= len(ordered) <= MOST_CRITERIA:
            raise InvalidRubric(
                f"The rubric has {len(ordered)} criteria: use {LEAST_CRITERIA} to {MOST_CRITERIA}."
            )
        object.__setattr__(self, "criteria", ordered)

    @property
    def checks(self) -> tuple[Check, ...]:
        return tuple(criterion.check for criterion in self.criteria)

    @property
    def weights(self) -> np.ndarray:
        """Weights of the criteria as shares that sum to 1."""
        weights = np.array([criterion.weight for criterion in self.criteria], dtype=np.float64)
        return weights / weights.sum()

    @property
    def duplicates(self) -> tuple[Check, ...]:
        """Checks that occur more than once, each named once."""
        checks = self.checks
        return tuple(dict.fromkeys(check for check in checks if checks.count(check) > 1))

    def score(self, holds: Iterable[bool]) -> float:
        """Returns the score of one output from 0 to 1. ``holds``: one result for each criterion, in order."""
        results = np.array(list(holds), dtype=np.float64)
        if results.shape != (len(self.criteria),):
            raise ValueError(f"{results.size} results for {len(self.criteria)} criteria: give one for each.")
        return float(self.weights @ results)
