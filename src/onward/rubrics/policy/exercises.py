"""Tasks for the warm start: words of the training families, drawn preferences, invented lists of checks.

The families are few. A writer that imitates rubrics of their own tasks knows their lists by heart, and finds
the best rubric of each without reading its brief. Here each task has other preferences, and a list of checks
that no family has: what is left to learn is how a brief is read, and what a rubric makes of it. No truth of a
task is in an exercise, and no pair of preferences that is kept for judging.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onward.rubrics.check import Check
from onward.rubrics.tasks import DIMENSIONS, RubricTask
from onward.rubrics.tasks.designs import ACTIVE
from onward.rubrics.tasks.family import Pick, family_of
from onward.rubrics.tasks.phrases import brief_sentence, brief_text
from onward.rubrics.tasks.task import HIDDEN, STATED_ALL
from onward.rubrics.tasks.truth import TruthTable, truth_table

LISTS = 400
"""Invented lists of checks."""
SEEDS = 1_000_000
"""Seeds of exercises, which decide the wording of answers."""


@dataclass(frozen=True)
class Exercise:
    """A task with drawn preferences, and all truths that its list of checks may have."""

    task: RubricTask
    table: TruthTable

    def expected(self, known: dict[str, int]) -> np.ndarray:
        """Returns the mean weight of each active check, given the levels of some dimensions."""
        return self.table.posterior(known)


class Exercises:
    """Draws exercises from the families of some tasks."""

    def __init__(self, tasks: Sequence[RubricTask], rng: random.Random, lists: int = LISTS) -> None:
        self._tasks = tasks
        families = sorted({task.family for task in tasks})
        picks = [one for family in families for one in family_of(family).picks]
        self._lists = [_invented(picks, rng) for _ in range(lists)]

    def draw(self, rng: random.Random) -> Exercise:
        task, (active, table) = rng.choice(self._tasks), rng.choice(self._lists)
        row = rng.choice(table.training_rows)
        levels = dict(zip(DIMENSIONS, map(int, table.levels[row]), strict=True))
        hidden = () if rng.random() < STATED_ALL else rng.sample(DIMENSIONS, HIDDEN)
        stated = rng.sample(
            [name for name in DIMENSIONS if name not in hidden], len(DIMENSIONS) - len(hidden)
        )
        noun, goal = family_of(task.family).noun, f"{task.brief.partition('. ')[0]}."
        said = [brief_sentence(name, levels[name], noun, rng) for name in stated]
        drawn = replace(
            task,
            seed=rng.randrange(SEEDS),
            brief=brief_text(goal, said, noun, states_all=not hidden),
            active=active,
            weights=table.weights[row],
            levels=levels,
            hidden=tuple(name for name in DIMENSIONS if name in hidden),
        )
        return Exercise(drawn, table)


def _invented(picks: Sequence[Pick], rng: random.Random) -> tuple[tuple[Check, ...], TruthTable]:
    """Returns a list, in canonical order, with a check about each dimension and others of different kinds. A
    kind counts as much as in the families on the average, since no list shows what it counts in its own."""
    mixed, chosen = rng.sample(picks, len(picks)), dict[str, Pick]()
    first = [next(one for one in mixed if one.dimension == name) for name in DIMENSIONS]
    for one in (*first, *mixed):
        if len(chosen) < ACTIVE:
            chosen.setdefault(one.name, one)
    bases = {name: float(np.mean([one.base for one in picks if one.name == name])) for name in chosen}
    checks = {Check(one.name, rng.choice(one.training_args)): one for one in chosen.values()}
    active = tuple(sorted(checks))
    return active, truth_table(tuple((checks[check].dimension, bases[check.name]) for check in active))
