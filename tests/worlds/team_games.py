"""Small games of several agents with PettingZoo's parallel interface, whose best returns are known."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class Game:
    """Base of the games: agents ``a`` and ``b``, ``length`` steps, spaces alike for both."""

    length = 10
    choices = 2
    seen = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.possible_agents = ["a", "b"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self.seen

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(self.choices)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        return self.draw(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents)
        rewards = self.score(actions)
        self.steps += 1
        over = self.steps >= self.length
        ends = {agent: False for agent in self.agents}
        cuts = {agent: over for agent in self.agents}
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        seen = self.draw()
        if over:
            self.agents = []
        return seen, rewards, ends, cuts, infos

    def draw(self) -> dict[str, Any]:
        self.bits = {agent: int(self.rng.integers(2)) for agent in self.possible_agents}
        return {agent: np.array([2.0 * bit - 1.0], np.float32) for agent, bit in self.bits.items()}

    def score(self, actions: dict[str, int]) -> dict[str, float]:
        raise NotImplementedError


class BothRight(Game):
    """Each agent sees a bit of its own. Both get 1 if each has chosen its bit: 10 at best, 2.5 by chance."""

    def score(self, actions: dict[str, int]) -> dict[str, float]:
        right = float(all(actions[agent] == self.bits[agent] for agent in actions))
        return {agent: right for agent in actions}


class HigherBid(Game):
    """The higher of two bids wins 1, the lower one loses 1. The highest bid, 4, never loses."""

    choices = 5
    length = 4

    def score(self, actions: dict[str, int]) -> dict[str, float]:
        won = float(np.sign(actions["a"] - actions["b"]))
        return {"a": won, "b": -won}


class Leaves(Game):
    """Agent ``a`` is done after one step, ``b`` after three; each step earns 1."""

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents)
        self.steps += 1
        acted = list(self.agents)
        ends = {agent: self.steps >= (1 if agent == "a" else 3) for agent in acted}
        seen = {agent: np.array([self.steps / 10], np.float32) for agent in acted}
        self.agents = [agent for agent in acted if not ends[agent]]
        none = {agent: False for agent in acted}
        return seen, {agent: 1.0 for agent in acted}, ends, none, {agent: {} for agent in acted}
