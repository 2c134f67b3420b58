"""Two turns of left or right; only the *first* choice counts. Every so many worlds may break."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar

from onward.envs.environment import Effect, Environment, Player, World
from onward.envs.tasks import TaskRef

WORDS = ("left", "right")


class Arms(Environment):
    name = "arms"
    version = "1"
    instructions = "Choose."
    horizon = 2
    panels: ClassVar[Mapping[str, int]] = {"train": 16, "test": 64}
    breaks: ClassVar[int] = 0
    """Every so many worlds one breaks; 0: none."""
    opened: ClassVar[int] = 0

    def make_task(self, task: TaskRef) -> int:
        return task.index

    def definition(self, task: int) -> object:
        return task

    def world(self, task: int) -> World:
        Arms.opened += 1
        return _Choice(bool(Arms.breaks and Arms.opened % Arms.breaks == 0))

    def reference(self, task: int) -> Player:
        return lambda observation: "left"

    def random(self, task: int, rng: random.Random) -> Player:
        return lambda observation: rng.choice(WORDS)


class _Choice(World):
    def __init__(self, breaks: bool) -> None:
        self._breaks = breaks
        self._first = ""

    def describe(self) -> str:
        return "left or right"

    def act(self, action: str) -> Effect:
        if self._breaks:
            raise RuntimeError("the world is gone")
        if not self._first:
            self._first = action or "nothing"
            return Effect("left or right")
        won = self._first == "left"
        return Effect("over", reward=float(won), done=True, success=won)


ARMS = Arms()
