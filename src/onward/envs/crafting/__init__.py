"""Crafting: make one item from raw material by recipes, some of which do not lead to the goal.

The words are close to TextCraft's, so that a policy can move between the two. The recipes are Onward's own,
drawn per task (``recipes.py``). Depths 1 to 4 alternate over the tasks.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from onward.envs.crafting.recipes import MAX_DEPTH, Book, Recipe, draw
from onward.envs.environment import Effect, Environment, Player, World
from onward.envs.tasks import TaskRef

MOST = 99
"""Maximum items of one ``get``."""

_GET = re.compile(r"get (\d{1,4}) (.+)")
_CRAFT = re.compile(r"craft (\d{1,4}) (.+?) using (.+)")
_AMOUNT = re.compile(r"(\d{1,4}) (.+)")


class CraftingEnvironment(Environment):
    """Reward 1 for the goal, else 0."""

    name = "crafting"
    version = "1"
    horizon = 30
    panels: ClassVar[Mapping[str, int]] = {"train": 1000, "validation": 100, "test": 100}
    instructions = (
        "Craft the goal. Answer with one command: 'get N ITEM' brings raw material, which has no recipe; "
        "'craft N ITEM using N ITEM, N ITEM' follows one of the crafting commands exactly as it is listed; "
        "'inventory' tells what you have. Some commands are of no use for the goal."
    )

    def make_task(self, task: TaskRef) -> Book:
        return draw(task.split, task.index % MAX_DEPTH + 1, random.Random(f"{task.task_id}/1"))

    def definition(self, task: Book) -> object:
        return task.definition()

    def world(self, task: Book) -> World:
        return _Workshop(task)

    def reference(self, task: Book) -> Player:
        commands = iter(task.plan())
        return lambda observation: next(commands)

    def random(self, task: Book, rng: random.Random) -> Player:
        """Returns a player that follows a listed recipe or gets up to four of a raw material, with equal
        probability."""
        raw, recipes = sorted(task.raw), task.recipes

        def player(observation: str) -> str:
            if rng.random() < 0.5:
                return rng.choice(recipes).command
            return f"get {rng.randint(1, 4)} {rng.choice(raw)}"

        return player


class _Workshop(World):
    def __init__(self, book: Book) -> None:
        self._book = book
        self._has: Counter[str] = Counter()

    def describe(self) -> str:
        listed = "\n".join(recipe.command for recipe in self._book.recipes)
        return f"Crafting commands:\n{listed}\n\nGoal: craft {self._book.goal}."

    def act(self, action: str) -> Effect:
        command = action.lower()
        if command == "inventory":
            return Effect(self._inventory())
        if found := _GET.fullmatch(command):
            return self._get(int(found[1]), found[2])
        if found := _CRAFT.fullmatch(command):
            return self._craft(int(found[1]), found[2], found[3])
        return Effect(f"Could not execute {action[:80]}")

    def _inventory(self) -> str:
        items = ", ".join(f"{count} {item}" for item, count in sorted(self._has.items()) if count)
        return f"Inventory: {items or 'You are not carrying anything.'}"

    def _get(self, count: int, item: str) -> Effect:
        if self._book.recipe(item) is not None:
            return Effect(f"Could not find {item}: it has to be crafted")
        if item not in self._book.raw:
            return Effect(f"Could not find {item[:80]}")
        if not 1 <= count <= MOST:
            return Effect(f"Could not get {count} {item}: ask for 1 to {MOST}")
        self._has[item] += count
        return Effect(f"Got {count} {item}")

    def _craft(self, count: int, item: str, using: str) -> Effect:
        recipe = self._book.recipe(item)
        if recipe is None or recipe.count != count or _amounts(using) != dict(recipe.ingredients):
            return Effect(f"There is no such crafting command: craft {count} {item[:80]} using {using[:80]}")
        lacking = self._lacking(recipe)
        if lacking:
            return Effect(f"Could not find enough items to craft {item}: you lack {', '.join(lacking)}")
        self._has.subtract(dict(recipe.ingredients))
        self._has[item] += count
        said = f"Crafted {count} {item}"
        if item == self._book.goal:
            return Effect(said, reward=1.0, done=True, success=True)
        return Effect(said)

    def _lacking(self, recipe: Recipe) -> list[str]:
        short = {item: count - self._has[item] for item, count in recipe.ingredients}
        return [f"{count} {item}" for item, count in short.items() if count > 0]


def _amounts(using: str) -> dict[str, int] | None:
    """Returns item → count of ``2 oak rod, 1 sand``; None if a part is no amount or an item occurs twice."""
    amounts: dict[str, int] = {}
    for part in using.split(","):
        found = _AMOUNT.fullmatch(part.strip())
        if found is None or found[2] in amounts:
            return None
        amounts[found[2]] = int(found[1])
    return amounts


CRAFTING = CraftingEnvironment()

__all__ = ["CRAFTING", "Book", "CraftingEnvironment", "Recipe"]
