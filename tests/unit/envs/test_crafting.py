"""Rules of crafting on a book written by hand, and what every drawn book promises."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from onward.envs.crafting import CRAFTED, CRAFTING, GOALS, MAX_PLAN, RAW, Book, Recipe, draw

LAMP = Book(
    goal="brass lamp",
    depth=2,
    recipes=(
        Recipe("glass tile", 2, (("sand", 3),)),
        Recipe("brass lamp", 1, (("glass tile", 3), ("tin ore", 1))),
        Recipe("oak box", 1, (("oak log", 2), ("glass tile", 1))),
    ),
)


def test_the_task_shows_every_recipe_and_the_goal() -> None:
    assert CRAFTING.world(LAMP).describe() == (
        "Crafting commands:\n"
        "craft 2 glass tile using 3 sand\n"
        "craft 1 brass lamp using 3 glass tile, 1 tin ore\n"
        "craft 1 oak box using 2 oak log, 1 glass tile\n"
        "\n"
        "Goal: craft brass lamp."
    )


def test_the_plan_gets_raw_material_once_and_crafts_as_often_as_needed() -> None:
    """3 tiles at 2 a time: twice, so 6 sand."""
    assert LAMP.plan() == [
        "get 6 sand",
        "get 1 tin ore",
        "craft 2 glass tile using 3 sand",
        "craft 2 glass tile using 3 sand",
        "craft 1 brass lamp using 3 glass tile, 1 tin ore",
    ]


def test_a_game_by_hand() -> None:
    world = CRAFTING.world(LAMP)
    said = [
        world.act(command).observation
        for command in (
            "inventory",
            "get 3 sand",
            "craft 2 glass tile using 3 sand",
            "craft 2 glass tile using 3 sand",
            "Get 9 Sand",
            "craft 2 glass tile using 3 sand",
            "craft 1 brass lamp using 1 tin ore, 3 glass tile",
            "get 1 tin ore",
            "inventory",
        )
    ]
    assert said == [
        "Inventory: You are not carrying anything.",
        "Got 3 sand",
        "Crafted 2 glass tile",
        "Could not find enough items to craft glass tile: you lack 3 sand",
        "Got 9 sand",
        "Crafted 2 glass tile",
        "Could not find enough items to craft brass lamp: you lack 1 tin ore",
        "Got 1 tin ore",
        "Inventory: 4 glass tile, 6 sand, 1 tin ore",
    ]
    effect = world.act("craft 1 brass lamp using 1 tin ore, 3 glass tile")
    assert (effect.observation, effect.reward, effect.done, effect.success) == (
        "Crafted 1 brass lamp",
        1.0,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("get 1 glass tile", "Could not find glass tile: it has to be crafted"),
        ("get 1 brass lamp", "Could not find brass lamp: it has to be crafted"),
        ("get 1 gold ore", "Could not find gold ore"),
        ("get 0 sand", "Could not get 0 sand: ask for 1 to 99"),
        ("get 100 sand", "Could not get 100 sand: ask for 1 to 99"),
        ("get sand", "Could not execute get sand"),
        ("look", "Could not execute look"),
        ("", "Could not execute "),
        (
            "craft 1 glass tile using 3 sand",
            "There is no such crafting command: craft 1 glass tile using 3 sand",
        ),
        (
            "craft 2 glass tile using 2 sand",
            "There is no such crafting command: craft 2 glass tile using 2 sand",
        ),
        (
            "craft 2 glass tile using 1 sand, 2 sand",
            "There is no such crafting command: craft 2 glass tile using 1 sand, 2 sand",
        ),
        ("craft 1 stone using air", "There is no such crafting command: craft 1 stone using air"),
    ],
)
def test_what_cannot_be_done_is_told(command: str, said: str) -> None:
    effect = CRAFTING.world(LAMP).act(command)
    assert (effect.observation, effect.reward, effect.done) == (said, 0.0, False)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_drawn_book_has_the_depth_its_distractors_and_a_plan_that_works(depth: int) -> None:
    for seed in range(60):
        book = draw("train", depth, random.Random(seed))
        assert _depth(book, book.goal) == book.depth == depth
        made = [recipe.item for recipe in book.recipes]
        assert len(made) == len(set(made))
        assert book.raw <= set(RAW)
        needed = _needed(book, book.goal)
        assert 3 <= len(set(made) - needed) <= 6
        assert len(book.plan()) <= MAX_PLAN
        assert _carried_out(book) == 1


def _depth(book: Book, item: str) -> int:
    recipe = book.recipe(item)
    return 1 + max(_depth(book, part) for part, _ in recipe.ingredients) if recipe else 0


def _needed(book: Book, item: str) -> set[str]:
    recipe = book.recipe(item)
    return {item}.union(*(_needed(book, part) for part, _ in recipe.ingredients)) if recipe else set()


def _carried_out(book: Book) -> int:
    """An independent, strict count of the plan: how often the goal is made, never with less than needed."""
    has: Counter[str] = Counter()
    for command in book.plan():
        words = command.split(" ", 2)
        if words[0] == "get":
            has[words[2]] += int(words[1])
            continue
        what, _, using = words[2].partition(" using ")
        for part in using.split(", "):
            count, _, item = part.partition(" ")
            has[item] -= int(count)
            assert has[item] >= 0
        has[what] += int(words[1])
    return 1 if has[book.goal] >= 1 else 0


def test_goals_of_the_splits_are_apart_and_cover_all_crafted_items() -> None:
    assert sorted(goal for goals in GOALS.values() for goal in goals) == sorted(CRAFTED)
    assert min(len(goals) for goals in GOALS.values()) >= 15


def test_depths_come_in_turn() -> None:
    assert [CRAFTING.task(CRAFTING.ref("test", index)).depth for index in range(8)] == [1, 2, 3, 4] * 2
