"""Steps collected by an on-policy algorithm: T steps of N slots in arrays that are allocated once.

Invariants: observations have T + 1 rows, so a step's next observation is the next row. Where an episode
ended, the next row belongs to the next episode, and the last observation of the ended one is in a small side
table. All data is raw, as the environment and the policy produced it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Flags, Step
from onward.control.core.spaces import ActionSpec, Layout, Obs, copy, put, take, zeros
from onward.control.core.streams import Streams

Floats = NDArray[np.float32]
Final = tuple[int, NDArray[np.intp], Obs]
"""(time, slots, their last observations)"""


class Rollout:
    """Arrays of ``steps`` (T) × ``num`` (N)."""

    def __init__(self, layout: Layout, actions: ActionSpec, steps: int, num: int) -> None:
        self.steps, self.num, self.at = steps, num, 0
        self.obs: Obs = zeros(layout, (steps + 1, num))
        """(T + 1, N, …) observations."""
        shape, dtype = (actions.dim,), np.float32 if actions.kind == "box" else np.int64
        self.actions = np.zeros((steps, num, *(() if actions.kind == "discrete" else shape)), dtype)
        self.rewards = np.zeros((steps, num), np.float32)
        self.terminated = np.zeros((steps, num), np.bool_)
        self.truncated = np.zeros((steps, num), np.bool_)
        self.alive = np.ones((steps, num), np.bool_)
        """False where a slot needed no action: nothing is learned from there."""
        self.masks: Flags | None = None
        """(T, N, actions) legal actions; None until a mask was seen."""
        self.streams: Streams = {}
        """Name → (T, N) numbers beside the reward, of the names seen so far."""
        self.finals: list[Final] = []

    @property
    def full(self) -> bool:
        return self.at == self.steps

    @property
    def ended(self) -> Flags:
        """(T, N) steps that ended an episode."""
        return self.terminated | self.truncated

    def add(
        self, obs: Obs, actions: NDArray[Any], step: Step, mask: Flags | None, alive: Flags | None
    ) -> None:
        """Adds one step of all slots; ``mask`` and ``alive`` are those of ``obs``."""
        t = self.at
        if t >= self.steps:
            raise IndexError("a full rollout takes no step before clear()")
        put(self.obs, t, obs)
        if t + 1 == self.steps:
            put(self.obs, t + 1, step.obs)
        self.actions[t] = actions
        self.rewards[t] = step.reward
        self.terminated[t] = step.terminated
        self.truncated[t] = step.truncated
        self.alive[t] = True if alive is None else alive
        if mask is not None and self.masks is None:
            self.masks = np.ones((self.steps, *mask.shape), np.bool_)
        if self.masks is not None:
            self.masks[t] = True if mask is None else mask
        for name in step.streams:
            self.streams.setdefault(name, np.zeros((self.steps, self.num), np.float32))
        for name, rows in self.streams.items():
            rows[t] = step.streams.get(name, 0.0)
        if step.final_obs is not None:
            self.finals.append((t, np.flatnonzero(step.ended), step.final_obs))
        self.at = t + 1

    def next_obs(self) -> Obs:
        """Returns (T, N, …) each step's own next observation, as a copy."""
        following = copy(take(self.obs, np.s_[1:]))
        for t, slots, rows in self.finals:
            put(following, (t, slots), rows)
        return following

    def values(self, value: Callable[[Obs], Floats]) -> tuple[Floats, Floats]:
        """Returns V of each observation (T + 1, N, heads) and of each step's next observation (T, N, heads).

        ``value`` maps rows (M, …) to (M, heads).
        """
        of_obs = value(merged(self.obs)).reshape(self.steps + 1, self.num, -1)
        led_to = of_obs[1:].copy()
        if self.finals:
            times = np.concatenate([np.full(len(slots), t) for t, slots, _ in self.finals])
            slots = np.concatenate([slots for _, slots, _ in self.finals])
            led_to[times, slots] = value(joined([rows for _, _, rows in self.finals]))
        return of_obs, led_to

    def clear(self) -> None:
        """Starts again in the same arrays."""
        self.at = 0
        self.finals = []

    def state_dict(self) -> dict[str, Any]:
        """Returns the steps collected so far."""
        t = self.at
        return {
            "at": t,
            "obs": copy(take(self.obs, np.s_[: t + 1])),
            "masks": None if self.masks is None else self.masks[:t].copy(),
            "finals": [[time, slots.copy(), copy(rows)] for time, slots, rows in self.finals],
            "streams": {name: rows[:t].copy() for name, rows in self.streams.items()},
            **{name: getattr(self, name)[:t].copy() for name in _ROWS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the collected steps."""
        t = self.at = int(state["at"])
        put(self.obs, np.s_[: t + 1], state["obs"])
        for name in _ROWS:
            getattr(self, name)[:t] = state[name]
        self.masks = None
        if state["masks"] is not None:
            self.masks = np.ones((self.steps, *np.shape(state["masks"])[1:]), np.bool_)
            self.masks[:t] = state["masks"]
        self.streams = {}
        for name, rows in state.get("streams", {}).items():
            self.streams[name] = np.zeros((self.steps, self.num), np.float32)
            self.streams[name][:t] = rows
        self.finals = [(int(time), np.asarray(slots), rows) for time, slots, rows in state["finals"]]


_ROWS = ("actions", "rewards", "terminated", "truncated", "alive")


def merged(obs: Obs) -> Obs:
    """Reshapes (T, N, …) to rows (T·N, …); views."""
    return {key: in_rows(array) for key, array in obs.items()} if isinstance(obs, dict) else in_rows(obs)


def in_rows(array: NDArray[Any]) -> NDArray[Any]:
    """Reshapes one array like ``merged``: actions, masks, values."""
    return array.reshape(-1, *array.shape[2:])


def joined(parts: list[Obs]) -> Obs:
    """Concatenates the rows of all ``parts`` in order."""
    if isinstance(parts[0], dict):
        return {key: np.concatenate([cast(dict[str, Any], part)[key] for part in parts]) for key in parts[0]}
    return np.concatenate(cast(list[NDArray[Any]], parts))
