"""Interface of an environment: tasks by name, a world per attempt, and policies that need no model.

A new environment derives from ``Environment`` and ``World`` (docs/environments.md). Serving it over HTTP,
playing it in a terminal and learning from it then work as for the built-in ones.

Invariants: an attempt is one ``Instance`` with a world of its own, so attempts share no state.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from onward.envs.failures import EnvironmentFailure
from onward.envs.rollouts import Reply
from onward.envs.tasks import TaskRef, panel_hash
from onward.errors import ConflictError, NotFoundError, OnwardError

Player = Callable[[str], str]
"""Observation → action: a policy of one episode that needs no model. It may store earlier observations."""

MAX_ANSWER_CHARACTERS = 10_000
_ACTION = re.compile(r"Action:[ \t]*\n?[ \t]*([^\n]*)")


@dataclass(frozen=True)
class Effect:
    """Effect of an action: ``reward`` is this action's alone. ``success`` counts once ``done``."""

    observation: str
    reward: float = 0.0
    done: bool = False
    success: bool = False


class World(ABC):
    """The state of one attempt at one task."""

    @abstractmethod
    def describe(self) -> str:
        """Returns the first observation: the task in words."""

    @abstractmethod
    def act(self, action: str) -> Effect:
        """Plays one action. An invalid action is reported in words and costs a turn like any other."""

    def give_up(self) -> Effect:
        """Returns the verdict when the turns are spent: earlier actions earn nothing more."""
        return Effect("", done=True)


class Environment(ABC):
    """A kind of task, fully determined by ``TaskRef``: no global random state, no files, no clock."""

    name: str
    """Letters, digits and ``_``; task ids begin with it."""
    version: str
    """Must change with every change to a task's meaning or reward."""
    instructions: str
    """System message, which explains the actions."""
    horizon: int
    """Turns after which an attempt ends without success."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Range of the score at the end of an attempt."""
    panels: ClassVar[Mapping[str, int]]
    """Split → number of tasks."""
    held_out: str = "test"
    """Split on which success rates are reported."""

    @abstractmethod
    def make_task(self, task: TaskRef) -> Any:
        """Returns the content of a task that ``check`` accepted. Equal names always give equal content."""

    @abstractmethod
    def definition(self, task: Any) -> object:
        """Returns everything that defines a task, as JSON: the input of the panel hash."""

    @abstractmethod
    def world(self, task: Any) -> World:
        """Starts a new attempt at a task."""

    @abstractmethod
    def reference(self, task: Any) -> Player:
        """Returns a player that solves ``task``. It may use facts hidden from the agent."""

    @abstractmethod
    def random(self, task: Any, rng: random.Random) -> Player:
        """Returns a player that takes any sensible action: the baseline that a policy must beat."""

    def parse(self, answer: str) -> str:
        """Returns the action in a model's answer. Raises ValueError with a text for the agent."""
        return parse_action(answer)

    def check(self, task: TaskRef) -> TaskRef:
        """Returns ``task``, if it is one of this environment. Raises NotFoundError."""
        size = self.panels.get(task.split)
        if size is None:
            raise NotFoundError(
                f"{self.name} has no split {task.split[:20]!r}: choose one of {', '.join(self.panels)}."
            )
        if not 0 <= task.index < size or task.seed < 0:
            raise NotFoundError(
                f"{self.name} has no task {task.index} in {task.split} with seed {task.seed}: "
                f"give an index from 0 to {size - 1} and a seed of 0 or more."
            )
        return task

    def ref(self, split: str, index: int, seed: int = 0) -> TaskRef:
        """Returns the name of one task. Raises NotFoundError."""
        return self.check(TaskRef(self.name, split, index, seed))

    def panel(self, split: str, seed: int = 0, n: int | None = None) -> list[TaskRef]:
        """Returns the first ``n`` tasks of a split, all by default. Raises NotFoundError."""
        self.ref(split, 0, seed)
        size = self.panels[split] if n is None else min(n, self.panels[split])
        return [TaskRef(self.name, split, index, seed) for index in range(size)]

    def task(self, ref: TaskRef) -> Any:
        """Returns the content of a task. Raises NotFoundError."""
        return _task(self, self.check(ref))

    def panel_hash(self, split: str | None = None, seed: int = 0) -> str:
        """Returns a hash of every task of a split (default: the held-out one) and of the version."""
        return _panel_hash(self, split or self.held_out, seed)

    def start(self, ref: TaskRef) -> Instance:
        """Starts a new attempt. Raises NotFoundError."""
        return Instance(self, ref, self.world(self.task(ref)))


@lru_cache(maxsize=4096)
def _task(environment: Environment, ref: TaskRef) -> Any:
    return environment.make_task(ref)


@lru_cache(maxsize=256)
def _panel_hash(environment: Environment, split: str, seed: int) -> str:
    tasks = [environment.definition(environment.task(ref)) for ref in environment.panel(split, seed)]
    return panel_hash([environment.name, environment.version, environment.horizon, *tasks])


class Instance:
    """One running attempt: the last observation, this turn's reward, the score so far."""

    def __init__(self, environment: Environment, ref: TaskRef, world: World) -> None:
        self._environment, self.ref, self._world = environment, ref, world
        self.observation = world.describe()
        self.reward = 0.0
        self.score = 0.0
        self.done = False
        self.success: bool | None = None
        self.turns = 0

    def step(self, answer: str) -> Reply:
        """Plays one answer of an agent. Raises ConflictError once the attempt is done."""
        if self.done:
            raise ConflictError(f"This attempt at {self.ref.task_id} is done: reset it or start another.")
        self.turns += 1
        effect = self._effect(answer)
        if not effect.done and self.turns >= self._environment.horizon:
            last = self._world.give_up()
            effect = Effect(
                effect.observation or last.observation, effect.reward + last.reward, True, last.success
            )
        self.observation, self.reward, self.done = effect.observation, effect.reward, effect.done
        self.score += effect.reward
        if self.done:
            self.success = effect.success
        return Reply(self.observation, self.reward, self.score, self.done, self.success)

    def _effect(self, answer: str) -> Effect:
        if len(answer) > MAX_ANSWER_CHARACTERS:
            return Effect(f"That answer is longer than {MAX_ANSWER_CHARACTERS} characters. Say less.")
        try:
            action = self._environment.parse(answer)
        except ValueError as error:
            return Effect(str(error))
        return self._world.act(action)


class _LocalPlay:
    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.first = instance.observation

    async def step(self, answer: str) -> Reply:
        with _breaking(self._instance.ref):
            reply = self._instance.step(answer)
        if not math.isfinite(reply.score):
            raise EnvironmentFailure(
                "env_error", f"The reward in {self._instance.ref.task_id} is not a finite number."
            )
        return reply


class LocalSource:
    """An environment in this process, as a source of episodes for ``rollouts``."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.name = environment.name
        self.instructions = environment.instructions
        self.horizon = environment.horizon
        self.panel_hash = environment.panel_hash()

    def panel(self, split: str | None = None, seed: int = 0, n: int | None = None) -> list[TaskRef]:
        """Returns the first ``n`` tasks of a split, by default all held-out ones. Raises NotFoundError."""
        return self.environment.panel(split or self.environment.held_out, seed, n)

    @contextlib.asynccontextmanager
    async def open(self, task: TaskRef) -> AsyncIterator[_LocalPlay]:
        """Opens an episode. Raises NotFoundError (unknown task), EnvironmentFailure (it cannot begin)."""
        with _breaking(task):
            instance = self.environment.start(task)
        yield _LocalPlay(instance)


@contextlib.contextmanager
def _breaking(ref: TaskRef) -> Iterator[None]:
    """Converts an environment's exception to EnvironmentFailure: it fails the episode, not the run."""
    try:
        yield
    except OnwardError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise EnvironmentFailure("env_error", f"The environment broke in {ref.task_id} ({what}).") from error


def parse_action(answer: str) -> str:
    """Returns the line after ``Action:``, or the whole answer where there is none; repeated spaces are
    removed. Raises ValueError when an answer names two actions."""
    found = _ACTION.findall(answer)
    if len(found) > 1:
        raise ValueError("Only one 'Action:' is allowed in an answer. Nothing was done.")
    text = found[0] if found else answer
    return " ".join(text.split()).strip("`'\"*. ")
