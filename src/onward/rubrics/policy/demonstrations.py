"""Demonstrations for the warm start: episodes of a careless writer, made from the truth of training tasks.

They show the form: valid rubrics in canonical order, questions about real topics. About what matters they
show only a tendency, so that reinforcement learning has much to find.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onward.lm.tokens import TokenRow
from onward.rubrics.language import WEIGHTS, Criterion, Rubric, serialise
from onward.rubrics.policy.episodes import Player, answers_of
from onward.rubrics.tasks import DIMENSIONS, Task


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
    right = [place for place, weight in enumerate(task.weights) if weight > 0]
    wrong = [place for place in range(len(task.active)) if place not in right]
    top = float(np.max(task.weights))
    criteria = []
    for place in right:
        weight = max(1, round(5 * float(task.weights[place]) / top))
        if rng.random() >= care.informed and wrong:
            place = wrong.pop(rng.randrange(len(wrong)))
        if rng.random() >= care.weighed:
            weight = rng.choice(WEIGHTS)
        criteria.append(Criterion(task.active[place], weight))
    return topics, Rubric(criteria)


def rows(player: Player, tasks: Sequence[Task], care: Care, seed: int) -> Iterator[TokenRow]:
    """Yields the row of one demonstration for each task."""
    for number, task in enumerate(tasks):
        rng = random.Random(f"{seed}/{number}")
        topics, rubric = demonstrate(task, care, rng, player.questions)
        ask = answers_of(task)
        yield player.row_of(task, [(topic, ask(topic)) for topic in topics], serialise(rubric))
