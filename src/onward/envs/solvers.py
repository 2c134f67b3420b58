"""Scripted players for servers that have no reference solution: what they solve is shown to a policy.

A solver reads only what an agent may read, the observations, and need not solve every task: a demonstration
counts only if the server gave full reward for it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from onward.envs.environment import Player
from onward.envs.registry import load
from onward.errors import ConfigError

MakeSolver = Callable[[], Player]
"""Makes the player of one episode: observation → answer."""

_RECIPE = re.compile(r"craft (\d+) (.+?) using (.+)")
_PART = re.compile(r"(\d+) (.+)")
_GOAL = re.compile(r"Goal: craft (.+)\.")
_MISSING = re.compile(r"Could not find (.+)")
_MOST_ACTIONS = 200


@dataclass(frozen=True)
class _Recipe:
    made: int
    item: str
    parts: tuple[tuple[str, int], ...]
    line: str


class TextCraftSolver:
    """Solves a task of AgentGym's TextCraft from its list of recipes: it collects what a recipe needs, crafts
    each part before it is used, and tries another recipe if something cannot be found.

    Some recipes name a group, such as planks: any item whose name ends with this word is one of the group.
    """

    def __init__(self) -> None:
        self._recipes: list[_Recipe] = []
        self._goal = ""
        self._missing: set[str] = set()
        """Items that cannot be collected."""
        self._owned: Counter[str] = Counter()
        self._plan: deque[str] = deque()
        self._last = ""

    def __call__(self, observation: str) -> str:
        """Returns the next answer."""
        if not self._goal:
            self._read(observation)
        else:
            self._look(observation)
        if not self._plan:
            self._plan.extend(self._steps())
        self._last = self._plan.popleft() if self._plan else "inventory"
        return f"Action: {self._last}"

    def _read(self, observation: str) -> None:
        goal = _GOAL.search(observation)
        self._goal = goal[1] if goal is not None else "?"
        for line in observation.splitlines():
            found = _RECIPE.fullmatch(line.strip())
            parts = [_PART.fullmatch(part.strip()) for part in found[3].split(",")] if found else []
            if found is not None and all(parts):
                needs = tuple((part[2], int(part[1])) for part in parts if part is not None)
                self._recipes.append(_Recipe(int(found[1]), found[2], needs, found[0]))

    def _look(self, observation: str) -> None:
        """Notes what the last action did. After a failure the rest of the plan is void."""
        collected, crafted = re.fullmatch(r"get (\d+) (.+)", self._last), _RECIPE.fullmatch(self._last)
        if observation.startswith("Got ") and collected is not None:
            self._owned[collected[2]] += int(collected[1])
        elif observation.startswith("Crafted ") and crafted is not None:
            self._owned[crafted[2]] += int(crafted[1])
            for part in crafted[3].split(","):
                count, _, item = part.strip().partition(" ")
                self._owned[item] -= int(count)
        else:
            missing = _MISSING.fullmatch(observation)
            if missing is not None and collected is not None:
                self._missing.add(collected[2])
            elif crafted is not None:  # the server knows it under other conditions: not again
                self._recipes = [one for one in self._recipes if one.item != crafted[2]] or self._recipes
            self._plan.clear()

    def _steps(self) -> list[str]:
        """Returns the actions from what is owned to the goal; empty if no way is known."""
        owned = Counter(self._owned)
        steps = self._make(self._goal, 1, owned, ())
        return steps if steps is not None and len(steps) <= _MOST_ACTIONS else []

    def _make(self, item: str, count: int, owned: Counter[str], above: tuple[str, ...]) -> list[str] | None:
        """Returns actions after which ``owned`` holds ``count`` of ``item``; None if there is no way."""
        lacking = count - owned[item]
        if lacking <= 0:
            return []
        recipes = [one for one in self._recipes if one.item == item]
        if not recipes:
            if item in self._missing:
                return None
            owned[item] += lacking
            return [f"get {lacking} {item}"]
        for recipe in recipes:
            trial = Counter(owned)
            steps = self._craft(recipe, math.ceil(lacking / recipe.made), trial, (*above, item))
            if steps is not None:
                owned.clear()
                owned.update(trial)
                return steps
        return None

    def _craft(
        self, recipe: _Recipe, times: int, owned: Counter[str], above: tuple[str, ...]
    ) -> list[str] | None:
        steps: list[str] = []
        chosen: list[tuple[str, int]] = []
        for part, count in recipe.parts:
            for name in self._names(part):
                if name in above:
                    continue
                trial = Counter(owned)
                made = self._make(name, count * times, trial, above)
                if made is not None:
                    trial[name] -= count * times
                    owned.clear()
                    owned.update(trial)
                    steps += made
                    chosen.append((name, count))
                    break
            else:
                return None
        using = ", ".join(f"{count} {name}" for name, count in chosen)
        owned[recipe.item] += recipe.made * times
        return steps + [f"craft {recipe.made} {recipe.item} using {using}"] * times

    def _names(self, part: str) -> Iterator[str]:
        """Yields the items that may stand for a part: itself, or a member if it names a group."""
        if part not in self._missing:
            yield part
        for name in dict.fromkeys(one.item for one in self._recipes):
            if (name != part and name.endswith(f" {part.removesuffix('s')}")) or name.endswith(f" {part}"):
                yield name


SOLVERS: dict[str, MakeSolver] = {"textcraft": TextCraftSolver}
"""Name of a dialect → its solver."""


def find_solver(name: str) -> MakeSolver:
    """Returns a solver by the name of a dialect or as ``package.module:object``, a callable without arguments
    that makes the player of one episode. Raises NotFoundError, ConfigError."""
    if name in SOLVERS:
        return SOLVERS[name]
    found = load(name, "solver", SOLVERS)
    if not callable(found):
        raise ConfigError(
            f"The solver {name!r} is a {type(found).__name__}: give a callable that makes the player of one "
            f"episode, which gets an observation and returns an answer."
        )
    return cast(MakeSolver, found)
