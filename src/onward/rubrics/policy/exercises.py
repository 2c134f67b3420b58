"""Exercises for the warm start: how a brief is read, and what a rubric makes of notes.

A writer that learns from whole episodes alone finds the best rubric for every task at once, and never reads
the brief: few of an episode's tokens depend on it, and only through two steps. An exercise is one of the
steps. Reading: statements and answers are context, the notes are trained. Writing: the notes are context, and
there is no brief.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from onward.lm.tokens import TokenRow
from onward.rubrics.language import serialise
from onward.rubrics.policy.demonstrations import Care, rubric_by
from onward.rubrics.policy.episodes import Player
from onward.rubrics.tasks import DIMENSIONS, Task
from onward.rubrics.tasks.family import family_of, truth_table_of
from onward.rubrics.tasks.phrases import answer, brief_sentence
from onward.rubrics.tasks.truth import LEVELS

READING = 0.7
"""Share of the exercises that train reading; the others train writing."""
WITH_CHECKS = 0.5
"""Share of the reading exercises that list checks, as episodes do; the others are shorter."""
SEEDS = 1_000_000
"""Seeds of exercises, which decide the wording of answers."""


CAREFUL = Care(informed=1.0, weighed=1.0)


def exercise_rows(player: Player, tasks: Sequence[Task], count: int, seed: int) -> Iterator[TokenRow]:
    """Yields ``count`` exercises about the families of ``tasks``. Their preferences are drawn, not a task's:
    no truth of a task is in them."""
    rng = random.Random(f"{seed}/exercises")
    for _ in range(count):
        task = rng.choice(tasks)
        if rng.random() < READING:
            yield _reading(player, task, rng)
        else:
            yield _writing(player, task, rng)


def _reading(player: Player, task: Task, rng: random.Random) -> TokenRow:
    levels = {name: rng.choice(LEVELS) for name in DIMENSIONS}
    order = rng.sample(DIMENSIONS, len(DIMENSIONS))
    stated, rest = order[: (split := rng.randint(1, len(order)))], order[split:]
    asked = rest[: rng.randint(min(1, player.questions), player.questions)]
    noun, goal = family_of(task.family).noun, task.brief.partition(". ")[0]
    said = [brief_sentence(name, levels[name], noun, rng) for name in stated]
    drawn = rng.randrange(SEEDS)
    turns = [(name, answer(task.family, drawn, name, levels[name])) for name in asked]
    listed = task.active if rng.random() < WITH_CHECKS else ()
    shown = replace(task, brief=" ".join((f"{goal}.", *said)), active=listed)
    return player.reading_of(shown, turns, {name: levels[name] for name in (*stated, *asked)})


def _writing(player: Player, task: Task, rng: random.Random) -> TokenRow:
    table = truth_table_of(task.family)
    levels = dict(zip(DIMENSIONS, map(int, table.levels[rng.choice(table.training_rows)]), strict=True))
    known = {name: levels[name] for name in rng.sample(DIMENSIONS, rng.randint(3, len(DIMENSIONS)))}
    rubric = serialise(rubric_by(task, known, CAREFUL, rng))
    return player.writing_of(replace(task, brief=""), known, rubric)
