"""Tabular Q-learning (Watkins 1989): the smallest value method, exact where states can be counted.

A state is a row of zeros and ones (Discrete, MultiDiscrete, MultiBinary observations and tuples of them). It
is found in a dictionary, so only visited states take memory. As a network, the table has one hidden unit per
state, which is 1 in that state and 0 in all others.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from onward.control.algorithms.base import Algorithm
from onward.control.core.config import QLearningConfig
from onward.control.core.contract import EnvSpec, Flags, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionKind, Obs
from onward.control.explore.epsilon import epsilon_greedy, linear_epsilon
from onward.control.explore.ucb import ucb_choice
from onward.control.policies.policy import Layer, PolicyParts
from onward.errors import ControlError


class QLearning(Algorithm):
    """Q-learning: Q(s, a) ← Q(s, a) + η (r + γ max Q(s′, ·) − Q(s, a)), without max after a termination."""

    action_kinds: ClassVar[tuple[ActionKind, ...]] = ("discrete",)
    images: ClassVar[bool] = False
    tabular: ClassVar[bool] = True

    def __init__(self, spec: EnvSpec, num: int, config: QLearningConfig, seeds: Seeds) -> None:
        if spec.actions.kind != "discrete" or not spec.layout.flat:
            raise ControlError(
                f"q_learning keeps a table of Discrete actions over countable states, which {spec.id} lacks: "
                "use dqn (images, MultiDiscrete, MultiBinary) or sac (Box)."
            )
        self.spec, self.num, self.config = spec, num, config
        self.choices = spec.actions.sizes[0]
        self._rng = seeds.generator("explore")
        self._index: dict[bytes, int] = {}
        self._table = np.zeros((64, self.choices))
        self._visits = np.zeros((64, self.choices), np.int64)
        self._pending: list[tuple[int, int, float, int, bool, list[bool]]] = []
        self._alive: Flags | None = None

    @property
    def epsilon(self) -> float:
        """Share of random actions now."""
        c = self.config
        budget = (self.steps, self.total_steps)
        return linear_epsilon(*budget, c.epsilon_start, c.epsilon_end, c.epsilon_fraction)

    def values(self, obs: Obs) -> NDArray[np.float64]:
        """Returns the values (N, actions) of states ``obs``."""
        return self._table[self._states(obs)]

    def act(self, obs: Obs, mask: Flags | None) -> NDArray[Any]:
        """Returns epsilon-greedy actions, ties broken at random; with ``ucb`` greedy means optimistic."""
        states = self._states(obs)
        values = self._table[states]
        if self.config.ucb:
            greedy = ucb_choice(values, self._visits[states], self.config.ucb, mask)
        else:
            legal = values if mask is None else np.where(mask, values, -np.inf)
            ties = legal == legal.max(axis=1, keepdims=True)
            greedy = np.where(ties, self._rng.random(values.shape), -1.0).argmax(axis=1)
        return epsilon_greedy(greedy, self.epsilon, self.choices, self._rng, mask)

    def observe(self, obs: Obs, actions: NDArray[Any], step: Step) -> None:
        """Stores a step for the next ``update``; the maximum is over the actions that are legal after it."""
        legal = np.ones((self.num, self.choices), bool)
        if step.action_mask is not None:
            legal[~step.ended] = step.action_mask[~step.ended]
        rows = zip(
            self._states(obs).tolist(),
            actions.tolist(),
            step.reward.tolist(),
            self._states(step.next_obs()).tolist(),
            step.terminated.tolist(),
            legal.tolist(),
            strict=True,
        )
        alive = [True] * self.num if self._alive is None else self._alive.tolist()
        self._pending += [row for row, lives in zip(rows, alive, strict=True) if lives]
        self._alive = step.alive
        self.steps += self.num

    def environments_reset(self) -> None:
        """Every slot is alive again; stored steps stay whole."""
        self._alive = None

    def due(self) -> bool:
        return bool(self._pending)

    def update(self) -> dict[str, float]:
        """Learns from all stored steps, one after the other: slots may have visited the same state."""
        distance = 0.0
        for state, action, reward, following, terminated, legal in self._pending:
            best = 0.0 if terminated else float(self._table[following][legal].max())
            error = reward + self.config.gamma * best - self._table[state, action]
            self._table[state, action] += self.config.learning_rate * error
            self._visits[state, action] += 1
            distance += abs(error)
        count = len(self._pending)
        self._pending = []
        return {"td_error": distance / count, "states": float(len(self._index)), "epsilon": self.epsilon}

    def networks(self) -> PolicyParts:
        """Returns the table as a network of one hidden unit per state. relu(W x + b) is 1 for the state x and
        0 for others: W is ±1, b is 1 minus the state's ones."""
        count = max(1, len(self._index))
        states = self._state_rows(count).astype(np.float32)
        find = Layer(2 * states - 1, 1 - states.sum(axis=1), "relu")
        table = self._table[:count].T.astype(np.float32)
        worth = Layer(table, np.zeros(self.choices, np.float32))
        return PolicyParts(self.spec.layout, self.spec.actions, "q", [find, worth])

    def state_dict(self) -> dict[str, Any]:
        count = len(self._index)
        return {
            "steps": self.steps,
            "states": self._state_rows(count),
            "table": self._table[:count].copy(),
            "visits": self._visits[:count].copy(),
            "pending": [list(row) for row in self._pending],
            "alive": self._alive,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start_from(state)
        self.steps = int(state["steps"])
        self._pending = [(s, a, r, f, t, list(legal)) for s, a, r, f, t, legal in state["pending"]]
        self._alive = None if state["alive"] is None else np.asarray(state["alive"])
        self._rng.bit_generator.state = state["rng"]

    def start_from(self, state: dict[str, Any]) -> None:
        self._index = {}
        if len(state["states"]):
            self._states(np.asarray(state["states"], np.float32))
        self._table[: len(self._index)] = state["table"]
        self._visits[: len(self._index)] = state["visits"]

    def _state_rows(self, count: int) -> NDArray[np.uint8]:
        """Returns (count, width) zeros and ones of the first ``count`` states."""
        if not self._index:
            return np.zeros((count, self.spec.layout.width), np.uint8)
        packed = np.frombuffer(b"".join(self._index), np.uint8).reshape(len(self._index), -1)
        return np.unpackbits(packed, axis=1, count=self.spec.layout.width)

    def _states(self, obs: Obs) -> NDArray[np.int64]:
        """Returns (N,) rows of the table; a new state gets a new one."""
        assert not isinstance(obs, dict)
        if not ((obs == 0) | (obs == 1)).all():
            raise ControlError(
                f"q_learning keeps a table, and an observation of {self.spec.id} is not made of zeros and "
                "ones: use dqn for what is measured."
            )
        packed = np.packbits(obs.astype(bool), axis=1)
        states = np.array([self._index.setdefault(row.tobytes(), len(self._index)) for row in packed])
        while len(self._index) > len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._visits = np.concatenate([self._visits, np.zeros_like(self._visits)])
        return states
