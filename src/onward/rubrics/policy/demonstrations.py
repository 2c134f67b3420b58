"""Demonstrations for the warm start: episodes of a careless writer, made from the truth of training tasks.

They show the form (valid rubrics in canonical order, questions about real topics) and how a brief is read:
the notes are right. What a rubric makes of the notes they show only as a tendency, so that reinforcement
learning has much to find.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onward.lm.tokens import TokenRow
from onward.rubrics.language import WEIGHTS, Criterion, Rubric, serialise
from onward.rubrics.policy.episodes import Player, answers_of
from onward.rubrics.tasks import DIMENSIONS, Task
from onward.rubrics.tasks.baselines import expected_weights
from onward.rubrics.tasks.rounding import rounded


@dataclass(frozen=True)
class Care:
    """Habits of the writer of demonstrations."""

    informed: float = 0.6
    """Share of questions about what is hidden, and of criteria that are right. The other questions are any,
    and the other criteria are wrong."""
    weighed: float = 0.6
    """Share of weights that follow the truth; the others are any weight."""


def demonstrate(task: Task, care: Care, rng: random.Random, most_questions: int) -> tuple[list[str], Rubric]:
    """Returns the topics that the writer asks about, and its rubric."""
    topics: list[str] = []
    for _ in range(rng.randint(0, most_questions)):
        useful = [topic for topic in task.hidden if topic not in topics]
        left = (
            useful if useful and rng.random() < care.informed else [t for t in DIMENSIONS if t not in topics]
        )
        topics.append(rng.choice(left))
    return topics, rubric_by(task, known_levels(task, topics), care, rng)


def rubric_by(task: Task, known: Mapping[str, int | None], care: Care, rng: random.Random) -> Rubric:
    """Returns the rubric of a more or less careful writer that knows some levels. What it does not know it
    takes for the average of the family."""
    weights = rounded(expected_weights(task, {name: level for name, level in known.items() if level is not None}))
    wrong = np.flatnonzero(weights == 0).tolist()
    criteria = []
    for place in np.flatnonzero(weights).tolist():
        weight = int(weights[place])
        if rng.random() >= care.informed and wrong:
            place = wrong.pop(rng.randrange(len(wrong)))
        if rng.random() >= care.weighed:
            weight = rng.choice(WEIGHTS)
        criteria.append(Criterion(task.active[place], weight))
    return Rubric(criteria)


def rows(player: Player, tasks: Sequence[Task], care: Care, seed: int) -> Iterator[TokenRow]:
    """Yields the row of one demonstration for each task."""
    for number, task in enumerate(tasks):
        rng = random.Random(f"{seed}/{number}")
        topics, rubric = demonstrate(task, care, rng, player.questions)
        ask = answers_of(task)
        turns = [(topic, ask(topic)) for topic in topics]
        yield player.row_of(task, turns, known_levels(task, topics), serialise(rubric))


def known_levels(task: Task, topics: Sequence[str]) -> dict[str, int | None]:
    """Returns the levels that the brief and the answers about ``topics`` state; None for the others."""
    return {
        name: task.levels[name] if name not in task.hidden or name in topics else None for name in DIMENSIONS
    }
