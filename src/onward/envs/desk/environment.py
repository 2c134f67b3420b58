"""The desk as an ``Environment``; its rules are in ``episode.py``.

It is not imported by ``desk/__init__``: the agents' process imports that one and needs neither server nor
driver.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar

from onward.envs.desk.episode import MAX_STEPS, Episode
from onward.envs.desk.reference import call, solve
from onward.envs.desk.tasks import PANEL_SIZES, Task, panel_hash, tasks
from onward.envs.desk.tools import DAYS, EVENTS, NOTES, NUMBERS, SMALL, SYSTEM_PROMPT, subjects
from onward.envs.environment import Effect, Environment, Player, World
from onward.envs.tasks import TaskRef


class DeskEnvironment(Environment):
    """Reward at the end: the completion of the attempt, 1 with success."""

    name = "desk"
    version = "1"
    horizon = MAX_STEPS
    panels: ClassVar[Mapping[str, int]] = PANEL_SIZES
    instructions = SYSTEM_PROMPT

    def make_task(self, task: TaskRef) -> Task:
        return _panel(task.split, task.seed)[task.index]

    def definition(self, task: Task) -> object:
        return task.task_id

    def panel_hash(self, split: str | None = None, seed: int = 0) -> str:
        """Returns the hash by which training and releases identify the desk's panels."""
        return _panel_hash(split or self.held_out, seed)

    def world(self, task: Task) -> World:
        return _Work(task)

    def reference(self, task: Task) -> Player:
        answers = iter(solve(task))
        return lambda observation: next(answers)

    def random(self, task: Task, rng: random.Random) -> Player:
        return lambda observation: _any_call(rng)

    def parse(self, answer: str) -> str:
        """Returns the whole answer: the desk itself checks its form, and ends the attempt if it is wrong."""
        return answer


class _Work(World):
    def __init__(self, task: Task) -> None:
        self._episode = Episode(task)

    def describe(self) -> str:
        return self._episode.task.instructions

    def act(self, action: str) -> Effect:
        step = self._episode.step(action)
        if not step.done:
            return Effect(step.observation or "")
        outcome = self._episode.outcome()
        return Effect(step.error or "", reward=outcome.completion, done=True, success=outcome.success)


@lru_cache(maxsize=64)
def _panel(split: str, seed: int) -> tuple[Task, ...]:
    """Draws a panel as a whole: a task needs those before it, so as not to repeat one."""
    return tuple(tasks(split, PANEL_SIZES[split], seed))


@lru_cache(maxsize=64)
def _panel_hash(split: str, seed: int) -> str:
    return panel_hash(split, seed=seed)


def _any_call(rng: random.Random) -> str:
    text = rng.choice((*EVENTS, *map(str, NUMBERS)))
    sum_of_two = f"{rng.choice(SMALL)}{rng.choice('+*')}{rng.choice(SMALL)}"
    return rng.choice(
        (
            call("calculator", expression=sum_of_two),
            call("search", query=rng.choice(subjects())),
            call("calendar", day=rng.choice(DAYS)),
            call("notes_read", name=rng.choice(NOTES)),
            call("notes_save", name=rng.choice(NOTES), text=rng.choice(EVENTS)),
            call("response", text=text),
        )
    )


DESK = DeskEnvironment()
