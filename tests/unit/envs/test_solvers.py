"""Scripted players for servers: TextCraft's solver against a world of recipes written by hand."""

from __future__ import annotations

import pytest
from textcraft_world import World

from onward.envs.solvers import TextCraftSolver, find_solver
from onward.errors import ConfigError, NotFoundError


def play(goal: str, turns: int = 30) -> list[str]:
    world, solver, answers = World(goal), TextCraftSolver(), list[str]()
    observation = world.start
    while not world.is_solved and len(answers) < turns:
        answers.append(solver(observation))
        observation = world.step(answers[-1])
    assert world.is_solved, answers
    return answers


def test_an_item_is_made_from_what_can_be_collected() -> None:
    assert play("oak planks") == ["Action: get 1 oak log", "Action: craft 4 oak planks using 1 oak log"]


def test_a_group_in_a_recipe_stands_for_one_of_its_members() -> None:
    """Planks are nothing that one can have: seven sticks need two crafts of two planks each, from one log."""
    answers = play("ladder")
    assert answers[-1] == "Action: craft 1 ladder using 7 stick"
    assert answers[-3:-1] == ["Action: craft 4 stick using 2 oak planks"] * 2
    assert "Action: get 1 oak log" in answers


def test_two_parts_do_not_share_what_there_is_of_one() -> None:
    """Two sticks take two planks, the hoe two more: all four of one log, or the plan fails on the way."""
    answers = play("hoe")
    assert answers[-1] == "Action: craft 1 hoe using 2 stick, 2 oak planks"
    assert answers.count("Action: craft 4 oak planks using 1 oak log") == 1


def test_another_recipe_is_tried_where_a_part_cannot_be_found() -> None:
    answers = play("lamp")
    assert answers[0] == "Action: get 1 moon dust"
    assert answers[-1] == "Action: craft 1 lamp using 1 torch"


def test_a_solver_of_ones_own_is_found_by_its_place_and_mistakes_are_told() -> None:
    assert find_solver("textcraft") is TextCraftSolver
    assert find_solver("onward.envs.solvers:TextCraftSolver") is TextCraftSolver
    with pytest.raises(NotFoundError, match="no solver 'babyai'"):
        find_solver("babyai")
    with pytest.raises(NotFoundError, match="cannot be loaded"):
        find_solver("onward.envs.solvers:Nobody")
    with pytest.raises(ConfigError, match="is a dict: give a callable"):
        find_solver("onward.envs.solvers:SOLVERS")
