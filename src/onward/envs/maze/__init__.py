"""Maze: find the way to a named cell while seeing only the walls of the present cell.

Every maze is a spanning tree of a square grid (one way between any two cells), drawn by depth-first search.
Sides are 3 to 6 cells, in turn over the tasks. The way to the goal has at least as many steps as the side.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from onward.envs.environment import Effect, Environment, Player, World
from onward.envs.tasks import TaskRef, split_of

Cell = tuple[int, int]
"""Row and column, from 0; row 0 is on top."""

MOVES: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
SIDES = (3, 4, 5, 6)
LONGEST = 14
"""Maximum steps from start to goal."""
_DRAW = 15
"""Part of the seed: with this number no maze occurs twice in a panel of seed 0. Mazes of side 3 are few."""


@dataclass(frozen=True)
class Maze:
    """A task. ``passages`` holds each open pair of neighbours once, the smaller cell first."""

    side: int
    passages: frozenset[tuple[Cell, Cell]]
    start: Cell
    goal: Cell

    def open_moves(self, at: Cell) -> list[str]:
        """Returns the moves that no wall stops, in the order of ``MOVES``."""
        return [move for move in MOVES if self.cell_after(at, move) is not None]

    def cell_after(self, at: Cell, move: str) -> Cell | None:
        """Returns the cell that ``move`` leads to from ``at``; None where a wall is."""
        down, right = MOVES[move]
        there = (at[0] + down, at[1] + right)
        return there if (min(at, there), max(at, there)) in self.passages else None

    def shortest_path(self, start: Cell | None = None) -> list[str]:
        """Returns the moves of the shortest way from ``start`` (default: the maze's own) to the goal."""
        begin = self.start if start is None else start
        came: dict[Cell, tuple[Cell, str] | None] = {begin: None}
        queue = deque([begin])
        while queue:
            at = queue.popleft()
            for move in self.open_moves(at):
                there = self.cell_after(at, move)
                if there is not None and there not in came:
                    came[there] = (at, move)
                    queue.append(there)
        moves: list[str] = []
        step = came[self.goal]
        while step is not None:
            moves.append(step[1])
            step = came[step[0]]
        return moves[::-1]

    def definition(self) -> object:
        """Returns the maze as JSON."""
        return [self.side, self.start, self.goal, sorted(self.passages)]


class MazeEnvironment(Environment):
    """Maze with reward 1 for reaching the goal, else 0. Walking into a wall costs a turn."""

    name = "maze"
    version = "1"
    horizon = 30
    panels: ClassVar[Mapping[str, int]] = {"train": 400, "validation": 100, "test": 100}
    instructions = (
        "You are in a maze. Reach the goal. You see the walls of your own cell only. Rows count from the "
        "top, columns from the left. Answer with one move: up, down, left or right."
    )

    def make_task(self, task: TaskRef) -> Maze:
        """Draws until the maze belongs to the task's split: by content, so no two splits share one."""
        side = SIDES[task.index % len(SIDES)]
        rng = random.Random(f"{task.task_id}/{_DRAW}")
        while True:
            maze = draw(side, rng)
            if split_of(f"maze/{maze.definition()}") == task.split:
                return maze

    def definition(self, task: Maze) -> object:
        return task.definition()

    def world(self, task: Maze) -> World:
        return _Walk(task)

    def reference(self, task: Maze) -> Player:
        moves = iter(task.shortest_path())
        return lambda observation: next(moves)

    def random(self, task: Maze, rng: random.Random) -> Player:
        return lambda observation: rng.choice(list(MOVES))


class _Walk(World):
    def __init__(self, maze: Maze) -> None:
        self._maze, self._at = maze, maze.start

    def describe(self) -> str:
        side = self._maze.side
        return f"The maze has {side} rows and {side} columns. {self._seen()}"

    def act(self, action: str) -> Effect:
        move = action.lower().removeprefix("move ").strip()
        if move not in MOVES:
            return Effect(f"{action[:40]!r} is no move: answer with up, down, left or right. {self._seen()}")
        there = self._maze.cell_after(self._at, move)
        if there is None:
            return Effect(f"There is a wall: you stay where you are. {self._seen()}")
        self._at = there
        if there == self._maze.goal:
            return Effect("You reached the goal.", reward=1.0, done=True, success=True)
        return Effect(self._seen())

    def _seen(self) -> str:
        open_moves = self._maze.open_moves(self._at)
        walls = ", ".join(move for move in MOVES if move not in open_moves) or "none"
        return f"You are at {_place(self._at)}. The goal is at {_place(self._maze.goal)}. Walls: {walls}."


def draw(side: int, rng: random.Random) -> Maze:
    """Draws a random maze whose way to the goal has between ``side`` and ``LONGEST`` steps."""
    while True:
        maze = _draw_once(side, rng)
        if side <= len(maze.shortest_path()) <= LONGEST:
            return maze


def _draw_once(side: int, rng: random.Random) -> Maze:
    first = (rng.randrange(side), rng.randrange(side))
    seen, stack, passages = {first}, [first], set[tuple[Cell, Cell]]()
    while stack:
        row, column = stack[-1]
        near = [(row + down, column + right) for down, right in MOVES.values()]
        free = [c for c in near if 0 <= c[0] < side and 0 <= c[1] < side and c not in seen]
        if not free:
            stack.pop()
            continue
        there = rng.choice(free)
        passages.add((min(stack[-1], there), max(stack[-1], there)))
        seen.add(there)
        stack.append(there)
    start, goal = rng.sample([(r, c) for r in range(side) for c in range(side)], 2)
    return Maze(side, frozenset(passages), start, goal)


def _place(cell: Cell) -> str:
    return f"row {cell[0] + 1}, column {cell[1] + 1}"


MAZE = MazeEnvironment()

__all__ = ["MAZE", "MOVES", "Maze", "MazeEnvironment", "draw"]
