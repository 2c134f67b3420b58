"""CartPole in numpy (Barto, Sutton, Anderson 1983), step-equal to Gymnasium's ``CartPole-v0`` and ``-v1``.

Invariants: operations come in the order of Gymnasium's source, or the last bits would differ.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import EnvSpec, Flags
from onward.control.environments.classics.base import Floats, NumpyTask

ANGLE_LIMIT = 12 * 2 * math.pi / 360
POSITION_LIMIT = 2.4


class CartPole(NumpyTask):
    """State: position and speed of the cart, angle and speed of the pole. +1 per step, also the last."""

    parameters: ClassVar[dict[str, float]] = {
        "gravity": 9.8,
        "masscart": 1.0,
        "masspole": 0.1,
        "length": 0.5,  # half of the pole's length
        "force_mag": 10.0,
        "tau": 0.02,  # seconds of one step
        "sutton_barto_reward": False,  # 0 for every step, −1 for the last
    }
    width = 4

    def __init__(self, spec: EnvSpec, num: int, parameters: dict[str, float] | None = None) -> None:
        """Prepares the constants; arguments as in ``NumpyTask``."""
        super().__init__(spec, num, parameters)
        self._forces = np.array([-self.constants["force_mag"], self.constants["force_mag"]])
        self._limits = np.array([[POSITION_LIMIT], [ANGLE_LIMIT]])
        self._change: Floats = np.zeros((4, num))

    def _start(self, generator: np.random.Generator) -> Floats:
        return generator.uniform(-0.05, 0.05, size=(4,))

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], Flags]:
        c = self.constants
        total = c["masspole"] + c["masscart"]
        moment = c["masspole"] * c["length"]
        angle, spin = self.states[2], self.states[3]
        cos, sin = np.cos(angle), np.sin(angle)
        push = (self._forces[actions] + moment * np.square(spin) * sin) / total
        spin_up = (c["gravity"] * sin - cos * push) / (
            c["length"] * (4.0 / 3.0 - c["masspole"] * np.square(cos) / total)
        )
        change = self._change
        change[0::2] = self.states[1::2]
        change[1] = push - moment * spin_up * cos / total
        change[3] = spin_up
        change *= c["tau"]
        self.states += change
        beyond = np.abs(self.states[0::2]) > self._limits
        terminated = beyond[0] | beyond[1]
        reward = np.ones(self.num, np.float32)
        if c["sutton_barto_reward"]:
            reward = -terminated.astype(np.float32)
        return reward, terminated

    def _observe(self, states: Floats) -> NDArray[np.float32]:
        return states.T.astype(np.float32, order="C")
