"""Crafting: make one item from raw material by recipes, some of which do not lead to the goal.

The words are close to TextCraft's, so that a policy can move between the two. The recipes are Onward's own,
drawn per task; each book is one tree with the goal at its root and raw materials as leaves. The split of a
task is a function of its goal's name, so a held-out goal is never a goal in training. Depths 1 to 4
alternate over the tasks.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from onward.envs.environment import Effect, Environment, Player, World
from onward.envs.tasks import TaskRef, split_of

RAW = (
    *("beeswax", "birch log", "bone", "clay", "coal", "copper ore", "cotton", "feather", "flax", "gold ore"),
    *("honey", "iron ore", "leather", "oak log", "quartz", "reed", "resin", "river stone", "salt", "sand"),
    *("silver ore", "straw", "tin ore", "wool"),
)
MATERIALS = (
    "amber", "birch", "bone", "brass", "bronze", "clay", "copper", "glass", "iron", "linen", "oak", "stone",
)  # fmt: skip
THINGS = (
    *("bell", "bowl", "box", "chain", "frame", "gear", "hammer", "handle", "hinge", "hook", "lamp", "lens"),
    *("panel", "pipe", "plate", "rod", "rope", "spring", "tile", "wheel"),
)
CRAFTED = tuple(f"{material} {thing}" for material in MATERIALS for thing in THINGS)
GOALS = {
    split: tuple(name for name in CRAFTED if split_of(f"crafting/{name}") == split)
    for split in ("train", "validation", "test")
}

MAX_DEPTH = 4
MAX_PLAN = 18
"""Maximum commands of the reference solution."""


@dataclass(frozen=True)
class Recipe:
    """``count`` of ``item`` from ``ingredients``, which are (item, count), each item once."""

    item: str
    count: int
    ingredients: tuple[tuple[str, int], ...]

    @property
    def command(self) -> str:
        """The recipe's text, which is also the command for it."""
        used = ", ".join(f"{count} {item}" for item, count in self.ingredients)
        return f"craft {self.count} {self.item} using {used}"


@dataclass(frozen=True)
class Book:
    """A task: craft one ``goal``. ``depth`` is the number of recipes on the longest path to raw material."""

    goal: str
    depth: int
    recipes: tuple[Recipe, ...]

    def recipe(self, item: str) -> Recipe | None:
        return next((recipe for recipe in self.recipes if recipe.item == item), None)

    @property
    def raw(self) -> frozenset[str]:
        """Items available by ``get``: every ingredient that no recipe makes."""
        made = {recipe.item for recipe in self.recipes}
        return frozenset(item for recipe in self.recipes for item, _ in recipe.ingredients) - made

    def plan(self) -> list[str]:
        """Returns the reference solution: all raw material first, then the recipes from the leaves up."""
        need: Counter[str] = Counter({self.goal: 1})
        crafts: list[str] = []
        for item in self._from_the_goal_down():
            recipe = self.recipe(item)
            if recipe is None:
                continue
            times = math.ceil(need[item] / recipe.count)
            crafts += [recipe.command] * times
            for ingredient, count in recipe.ingredients:
                need[ingredient] += times * count
        gets = [f"get {need[item]} {item}" for item in sorted(self.raw) if need[item]]
        return gets + crafts[::-1]

    def definition(self) -> object:
        """Returns the book as JSON."""
        return [self.goal, self.depth, [recipe.command for recipe in self.recipes]]

    def _from_the_goal_down(self) -> list[str]:
        """Returns the crafted items of the goal's tree, each after the one that needs it."""
        order, queue = [], [self.goal]
        while queue:
            recipe = self.recipe(queue.pop(0))
            if recipe is not None:
                order.append(recipe.item)
                queue += [item for item, _ in recipe.ingredients]
        return order


def draw(split: str, depth: int, rng: random.Random) -> Book:
    """Draws a book of ``depth`` with three to six distractors, solvable in ``MAX_PLAN`` commands."""
    while True:
        goal = rng.choice(GOALS[split])
        names = [name for name in CRAFTED if name != goal]
        rng.shuffle(names)
        recipes = _grow(goal, depth, names, rng)
        made = [recipe.item for recipe in recipes if recipe.item != goal]
        for _ in range(rng.randint(3, 6)):
            known = rng.sample([*RAW, *made], 2)
            recipes.append(_recipe(names.pop(), [(item, rng.randint(1, 4)) for item in known], rng))
        rng.shuffle(recipes)
        book = Book(goal, depth, tuple(recipes))
        if len(book.plan()) <= MAX_PLAN:
            return book


def _grow(item: str, depth: int, names: list[str], rng: random.Random) -> list[Recipe]:
    """Draws the recipes of ``item`` and of everything below it; removes the used names from ``names``."""
    below: list[Recipe] = []
    ingredients: list[tuple[str, int]] = []
    depths = [depth - 1] if depth > 1 else []
    if depth > 2 and rng.random() < 0.3:
        depths.append(rng.randint(1, depth - 2))
    for each in depths:
        name = names.pop()
        ingredients.append((name, rng.randint(1, 2)))
        below += _grow(name, each, names, rng)
    for raw in rng.sample(RAW, rng.randint(0 if depths else 1, 2)):
        ingredients.append((raw, rng.randint(1, 4)))
    rng.shuffle(ingredients)
    return [_recipe(item, ingredients, rng), *below]


def _recipe(item: str, ingredients: list[tuple[str, int]], rng: random.Random) -> Recipe:
    return Recipe(item, rng.choice((1, 1, 1, 2, 4)), tuple(ingredients))


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
        """Returns a player that follows any listed recipe or gets up to four of any raw material."""
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
