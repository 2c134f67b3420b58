"""Recipe books drawn from a seed: recipes that lead to the goal, and distractors that do not.

Every book is one tree: the goal at its root, raw materials as leaves, each crafted item made by one recipe.
The split of a task is a function of its goal's name, so a held-out goal is never a goal in training.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass

from onward.envs.tasks import split_of

RAW = (
    *("beeswax", "birch log", "bone", "clay", "coal", "copper ore", "cotton", "feather", "flax", "gold ore"),
    *("honey", "iron ore", "leather", "oak log", "quartz", "reed", "resin", "river stone", "salt", "sand"),
    *("silver ore", "straw", "tin ore", "wool"),
)
MATERIALS = (
    "amber",
    "birch",
    "bone",
    "brass",
    "bronze",
    "clay",
    "copper",
    "glass",
    "iron",
    "linen",
    "oak",
    "stone",
)
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
