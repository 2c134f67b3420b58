"""Demonstrations for the warm start: episodes of a writer that is not always careful, on exercises.

The notes are right, and the rubric is the best one by what is known, but for some wrong criteria and weights.
All tokens of an episode are trained. Episodes alone teach a small network slowly to read, so some
demonstrations are short and end with the notes. What counts in a family, when to ask and how to avoid the
demonstrations' mistakes is left to reinforcement learning.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onward.lm.options import refuse_out_of_range
from onward.lm.tokens import TokenRow
from onward.rubrics.language import WEIGHTS, Criterion, Rubric, serialise
from onward.rubrics.policy.episodes import Player, answers_of
from onward.rubrics.policy.exercises import LISTS, Exercise, Exercises
from onward.rubrics.policy.prompts import known_levels
from onward.rubrics.tasks import DIMENSIONS, RubricTask
from onward.rubrics.tasks.rounding import rounded

READING = 0.3
"""Share of the demonstrations that are short and train reading alone."""
CURIOUS = 0.5
"""Share of the others whose writer asks until it knows all that it may."""


@dataclass(frozen=True)
class Care:
    """Habits of the writer of demonstrations."""

    informed: float = 1.0
    """Share of questions about what is hidden, and of criteria that are right. The other questions are any,
    and the other criteria are wrong."""
    weighed: float = 0.3
    """Share of weights that are right; the others are any weight. How much a check counts is left to
    reinforcement learning."""

    def __post_init__(self) -> None:
        refuse_out_of_range(self, informed=0 <= self.informed <= 1, weighed=0 <= self.weighed <= 1)


def rows(
    player: Player, tasks: Sequence[RubricTask], care: Care, count: int, seed: int
) -> Iterator[TokenRow]:
    """Yields the rows of ``count`` demonstrations, from the words and checks of the families of ``tasks``."""
    rng = random.Random(f"{seed}/demonstrations")
    exercises = Exercises(tasks, rng, min(LISTS, count))
    for _ in range(count):
        one = exercises.draw(rng)
        if player.notes and rng.random() < READING:
            yield _read(player, one.task, rng)
        else:
            yield _whole(player, one, care, rng)


def _read(player: Player, task: RubricTask, rng: random.Random) -> TokenRow:
    """Returns the row of a short episode that lists no checks. It ends with the notes, which alone are
    trained."""
    said = task.brief.partition(". ")[2]
    topics = rng.sample(task.hidden, min(len(task.hidden), player.questions))
    ask = answers_of(task)
    turns = [(topic, ask(topic)) for topic in topics]
    return player.reading_of(replace(task, brief=said, active=()), turns, known_levels(task, topics))


def _whole(player: Player, one: Exercise, care: Care, rng: random.Random) -> TokenRow:
    topics, rubric = demonstrate(one, care, rng, player.questions)
    ask = answers_of(one.task)
    turns = [(topic, ask(topic)) for topic in topics]
    return player.row_of(one.task, turns, known_levels(one.task, topics), serialise(rubric))


def demonstrate(
    one: Exercise, care: Care, rng: random.Random, most_questions: int
) -> tuple[list[str], Rubric]:
    """Returns the topics that a more or less careful writer asks about, and its rubric."""
    task, topics = one.task, list[str]()
    for _ in range(most_questions if rng.random() < CURIOUS else rng.randint(0, most_questions)):
        left = [topic for topic in DIMENSIONS if topic not in topics]
        if rng.random() < care.informed:
            left = [topic for topic in left if topic in task.hidden]
        if not left:
            break
        topics.append(rng.choice(left))
    known = {name: level for name, level in known_levels(task, topics).items() if level is not None}
    weights = rounded(one.expected(known))
    wrong = np.flatnonzero(weights == 0).tolist()
    criteria = []
    for place in np.flatnonzero(weights).tolist():
        weight = int(weights[place])
        if rng.random() >= care.informed and wrong:
            place = wrong.pop(rng.randrange(len(wrong)))
        if rng.random() >= care.weighed:
            weight = rng.choice(WEIGHTS)
        criteria.append(Criterion(task.active[place], weight))
    return topics, Rubric(criteria)
