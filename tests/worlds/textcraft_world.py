"""A world of recipes, written by hand, with TextCraft's rules and texts, and an AgentGym server of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from environment_served import served_in_a_thread
from fastapi import FastAPI

from onward.http.server import Server

RECIPES = """\
craft 4 oak planks using 1 oak log
craft 4 birch planks using 1 birch log
craft 4 stick using 2 planks
craft 1 ladder using 7 stick
craft 1 hoe using 2 stick, 2 planks
craft 1 lamp using 1 moon dust
craft 1 lamp using 1 torch
craft 1 torch using 1 stick, 1 coal"""


class World:
    """TextCraft's rules: base items can be collected, groups (planks) and crafted ones cannot."""

    base = frozenset({"oak log", "birch log", "coal"})

    def __init__(self, goal: str) -> None:
        self.goal, self.owned, self.is_solved = goal, Counter[str](), False

    def step(self, answer: str) -> str:
        action = answer.removeprefix("Action: ")
        if got := re.fullmatch(r"get (\d+) (.+)", action):
            if got[2] not in self.base:
                return f"Could not find {got[2]}"
            self.owned[got[2]] += int(got[1])
            return f"Got {got[1]} {got[2]}"
        made = re.fullmatch(r"craft (\d+) (.+) using (.+)", action)
        if made is None:
            return f"Could not execute {action}"
        parts = [part.split(" ", 1) for part in made[3].split(", ")]
        lacking = any(self.owned[name] < int(count) for count, name in parts)
        general = ", ".join(f"{n} {'planks' if name.endswith(' planks') else name}" for n, name in parts)
        if lacking or f"craft {made[1]} {made[2]} using {general}" not in RECIPES.splitlines():
            return f"Could not find enough items to craft minecraft:{made[2].replace(' ', '_')}"
        for count, name in parts:
            self.owned[name] -= int(count)
        self.owned[made[2]] += int(made[1])
        self.is_solved = made[2] == self.goal
        return f"Crafted {made[1]} minecraft:{made[2].replace(' ', '_')}"

    @property
    def start(self) -> str:
        return f"Crafting commands:\n{RECIPES}\n\nGoal: craft {self.goal}."


GOALS = ("oak planks", "birch planks", "stick", "coal pit", "ladder", "hoe", "lamp", "torch")
"""Goals by index; nobody can make a coal pit."""


def helpless() -> Callable[[str], str]:
    """A player that solves nothing."""
    return lambda observation: "Action: inventory"


@contextmanager
def served_textcraft() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Serves the world as AgentGym's server does: address, and what was asked for."""
    app, worlds, asked = FastAPI(), list[World](), list[tuple[str, dict[str, Any]]]()

    @app.get("/")
    def hello() -> str:
        return "This is environment TextCraft."

    @app.post("/create")
    def create(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(("create", body))
        worlds.append(World(GOALS[0]))
        return {"id": len(worlds) - 1, "observation": worlds[-1].start, "done": False, "reward": 0}

    @app.post("/reset")
    def reset(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(("reset", body))
        worlds[body["id"]] = world = World(GOALS[body["data_idx"] % len(GOALS)])
        return {"id": body["id"], "observation": world.start, "done": False, "reward": 0}

    @app.post("/step")
    def step(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(("step", body))
        world = worlds[body["id"]]
        observation = world.step(body["action"])
        return {"observation": observation, "reward": int(world.is_solved), "done": world.is_solved}

    with served_in_a_thread(lambda: Server(app, "127.0.0.1", 0)) as address:
        yield address, asked
