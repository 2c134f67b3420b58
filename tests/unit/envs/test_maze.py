"""Rules of the maze on one drawn by hand, and that every drawn one is a spanning tree."""

from __future__ import annotations

import random

import pytest

from onward.envs.maze import MAZE, Maze, draw

#  +---+---+---+
#  | S   .   . |
#  +---+---+   +
#  | G   .   . |
#  +   +---+---+
#  | .   .   . |
#  +---+---+---+
BY_HAND = Maze(
    side=3,
    passages=frozenset(
        {
            ((0, 0), (0, 1)),
            ((0, 1), (0, 2)),
            ((0, 2), (1, 2)),
            ((1, 1), (1, 2)),
            ((1, 0), (1, 1)),
            ((1, 0), (2, 0)),
            ((2, 0), (2, 1)),
            ((2, 1), (2, 2)),
        }
    ),
    start=(0, 0),
    goal=(1, 0),
)


def test_the_shortest_way_goes_around_the_walls() -> None:
    assert BY_HAND.shortest_path() == ["right", "right", "down", "left", "left"]


def test_observations_name_place_goal_and_the_walls_of_the_own_cell_only() -> None:
    world = MAZE.world(BY_HAND)
    assert world.describe() == (
        "The maze has 3 rows and 3 columns. You are at row 1, column 1. The goal is at row 2, column 1. "
        "Walls: up, down, left."
    )
    assert world.act("right").observation == (
        "You are at row 1, column 2. The goal is at row 2, column 1. Walls: up, down."
    )


def test_a_wall_is_told_and_one_stays() -> None:
    world = MAZE.world(BY_HAND)
    assert world.act("down").observation.startswith(
        "There is a wall: you stay where you are. You are at row 1"
    )
    assert world.act("up").observation.startswith("There is a wall")
    assert "row 1, column 2" in world.act("MOVE Right").observation


def test_an_unknown_move_is_told_with_the_known_ones() -> None:
    said = MAZE.world(BY_HAND).act("north").observation
    assert said.startswith(
        "'north' is no move: answer with up, down, left or right. You are at row 1, column 1."
    )


def test_the_goal_ends_it_with_reward_one() -> None:
    world = MAZE.world(BY_HAND)
    effects = [world.act(move) for move in ("right", "right", "down", "left", "left")]
    assert [effect.reward for effect in effects] == [0, 0, 0, 0, 1]
    assert effects[-1].done and effects[-1].success and not effects[-2].done


@pytest.mark.parametrize("side", [3, 4, 5, 6])
def test_a_drawn_maze_is_a_spanning_tree_with_a_way_of_the_promised_length(side: int) -> None:
    for seed in range(20):
        maze = draw(side, random.Random(seed))
        assert len(maze.passages) == side * side - 1
        cells = [(row, column) for row in range(side) for column in range(side)]
        assert all(maze.shortest_path(cell) or cell == maze.goal for cell in cells)
        assert side <= len(maze.shortest_path()) <= 14
        for a, b in maze.passages:
            assert abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1
