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
from onward.rubrics.language import Criterion, Rubric, serialise
from onward.rubrics.policy.episodes import Player, answers_of
from onward.rubrics.tasks import DIMENSIONS, Task

FEWEST, MOST = 3, 7
"""Criteria of a rubric."""


@dataclass(frozen=True)
class Care:
    """Habits of the writer of demonstrations."""

    informed: float = 0.75
    """Share of questions about what is hidden, and of criteria that are chosen by their true weight. The
    others are any."""
    weighed: float = 0.75
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
    order = sorted(range(len(task.active)), key=lambda i: task.active[i])
    count = rng.randint(FEWEST, min(MOST, len(order)))
    chosen: set[int] = set()
    while len(chosen) < count:
        left = [i for i in order if i not in chosen]
        right = [i for i in left if task.weights[i] > 0]
        if right and rng.random() < care.informed:
            chosen.add(rng.choices(right, [float(task.weights[i]) for i in right])[0])
        else:
            chosen.add(rng.choice(left))
    top = float(np.max(task.weights))
    criteria = []
    for i in order:
        if i in chosen:
            weight = rng.randint(1, 5)
            if rng.random() < care.weighed:
                weight = max(1, round(5 * float(task.weights[i]) / top))
            criteria.append(Criterion(task.active[i], weight))
    return topics, Rubric(tuple(criteria))


def rows(player: Player, tasks: Sequence[Task], care: Care, seed: int) -> Iterator[TokenRow]:
    """Yields the row of one demonstration for each task."""
    for number, task in enumerate(tasks):
        rng = random.Random(f"{seed}/{number}")
        topics, rubric = demonstrate(task, care, rng, player.questions)
        ask = answers_of(task)
        yield player.row_of(task, [(topic, ask(topic)) for topic in topics], serialise(rubric))
