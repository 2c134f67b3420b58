"""Pendulum in numpy, step-equal to Gymnasium's ``Pendulum-v1``.

It never terminates, so every episode ends by truncation and its value at the end is not zero.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from onward.control.environments.classics.base import Floats, NumpyTask

TOP_SPEED = 8.0
STEP_SECONDS = 0.05


class Pendulum(NumpyTask):
    """State: angle (0 is upright) and speed. Reward −(angle² + 0.1·speed² + 0.001·torque²)."""

    parameters: ClassVar[dict[str, float]] = {"g": 10.0, "m": 1.0, "l": 1.0}
    width = 2
    _highest = np.array([np.pi, 1.0])

    def _start(self, generator: np.random.Generator) -> Floats:
        return generator.uniform(-self._highest, self._highest)

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], None]:
        g, m, length = self.constants["g"], self.constants["m"], self.constants["l"]
        torque = actions[:, 0]
        angle, speed = self.states
        upright = ((angle + np.pi) % (2 * np.pi)) - np.pi
        cost = np.square(upright) + 0.1 * np.square(speed) + 0.001 * np.square(torque)
        gain = 3.0 / (m * length**2)
        speed += (3 * g / (2 * length) * np.sin(angle) + gain * torque) * STEP_SECONDS
        np.clip(speed, -TOP_SPEED, TOP_SPEED, out=speed)
        angle += speed * STEP_SECONDS
        return (-cost).astype(np.float32), None

    def _observe(self, states: Floats) -> NDArray[np.float32]:
        angle, speed = states
        return np.stack((np.cos(angle), np.sin(angle), speed), axis=1).astype(np.float32)
