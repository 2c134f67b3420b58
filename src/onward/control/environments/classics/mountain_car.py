"""MountainCar in numpy (Moore 1990), discrete and continuous, step-equal to Gymnasium's.

The continuous task has its state in float32 after an episode's first step, as Gymnasium's does, so its
arithmetic is float32 as well.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Flags
from onward.control.environments.classics.base import Floats, NumpyTask

LEFT_WALL, RIGHT_WALL = -1.2, 0.6
TOP_SPEED = 0.07


class MountainCar(NumpyTask):
    """State: position and speed. Reward −1 for every step until the flag at 0.5."""

    parameters: ClassVar[dict[str, float]] = {"goal_velocity": 0.0, "force": 0.001, "gravity": 0.0025}
    width = 2
    _pushes = np.array([-1, 0, 1])

    def _start(self, generator: np.random.Generator) -> tuple[float, float]:
        return generator.uniform(-0.6, -0.4), 0.0

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], Flags]:
        c = self.constants
        position, speed = self.states
        speed += self._pushes[actions] * c["force"] + np.cos(3 * position) * (-c["gravity"])
        np.clip(speed, -TOP_SPEED, TOP_SPEED, out=speed)
        position += speed
        np.clip(position, LEFT_WALL, RIGHT_WALL, out=position)
        speed[(position == LEFT_WALL) & (speed < 0)] = 0.0
        return np.full(self.num, -1.0, np.float32), (position >= 0.5) & (speed >= c["goal_velocity"])

    def _observe(self, states: Floats) -> NDArray[np.float32]:
        return states.T.astype(np.float32, order="C")


class MountainCarContinuous(NumpyTask):
    """State: position and speed. Reward 100 at the flag at 0.45, minus 0.1·force² for every step."""

    parameters: ClassVar[dict[str, float]] = {"goal_velocity": 0.0, "power": 0.0015}
    width = 2

    def _start(self, generator: np.random.Generator) -> tuple[float, float]:
        return generator.uniform(-0.6, -0.4), 0.0

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], Flags]:
        force = actions[:, 0]
        position = self.states[0]
        tripled = 3 * position
        angle = np.where(self.elapsed == 0, tripled, tripled.astype(np.float32))
        pull = (0.0025 * np.cos(angle)).astype(np.float32)
        speed = self.states[1].astype(np.float32)
        speed += force * np.float32(self.constants["power"]) - pull
        np.clip(speed, np.float32(-TOP_SPEED), np.float32(TOP_SPEED), out=speed)
        moved = (position + speed).astype(np.float32)
        np.clip(moved, np.float32(LEFT_WALL), np.float32(RIGHT_WALL), out=moved)
        speed[(moved == np.float32(LEFT_WALL)) & (speed < 0)] = 0.0
        terminated = (moved >= np.float32(0.45)) & (speed >= np.float32(self.constants["goal_velocity"]))
        self.states[0], self.states[1] = moved, speed
        reward = terminated * 100.0 - np.square(force.astype(np.float64)) * 0.1
        return reward.astype(np.float32), terminated

    def _observe(self, states: Floats) -> NDArray[np.float32]:
        return states.T.astype(np.float32, order="C")
