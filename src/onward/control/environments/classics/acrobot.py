"""Acrobot in numpy (Sutton 1996, the book's equations), step-equal to Gymnasium's ``Acrobot-v1``.

Invariants: a step is one fourth-order Runge-Kutta step of 0.2 s. Terms come in the order of Gymnasium's
source, or the last bits would differ.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Flags
from onward.control.environments.classics.base import Floats, NumpyTask

STEP_SECONDS = 0.2
GRAVITY = 9.8
TOP_SPEEDS = np.array([[4 * np.pi], [9 * np.pi]])


class Acrobot(NumpyTask):
    """State: angles and speeds of both links. Reward −1 for every step until the tip is one link above."""

    parameters: ClassVar[dict[str, float]] = {
        "LINK_LENGTH_1": 1.0,
        "LINK_MASS_1": 1.0,
        "LINK_MASS_2": 1.0,
        "LINK_COM_POS_1": 0.5,
        "LINK_COM_POS_2": 0.5,
        "LINK_MOI": 1.0,
    }
    width = 4
    _torques = np.array([-1.0, 0.0, 1.0])

    def _start(self, generator: np.random.Generator) -> NDArray[np.float32]:
        return generator.uniform(-0.1, 0.1, size=(4,)).astype(np.float32)

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], Flags]:
        torque = self._torques[actions]
        states, half = self.states, STEP_SECONDS / 2.0
        k1 = self._slope(states, torque)
        k2 = self._slope(states + half * k1, torque)
        k3 = self._slope(states + half * k2, torque)
        k4 = self._slope(states + STEP_SECONDS * k3, torque)
        states += STEP_SECONDS / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        _wrap(states[:2])
        np.clip(states[2:], -TOP_SPEEDS, TOP_SPEEDS, out=states[2:])
        terminated = -np.cos(states[0]) - np.cos(states[1] + states[0]) > 1.0
        return np.where(terminated, np.float32(0.0), np.float32(-1.0)), terminated

    def _slope(self, states: Floats, torque: Floats) -> Floats:
        """Returns the time derivative (4, N) of ``states``."""
        c = self.constants
        m1, m2, l1 = c["LINK_MASS_1"], c["LINK_MASS_2"], c["LINK_LENGTH_1"]
        lc1, lc2, moi = c["LINK_COM_POS_1"], c["LINK_COM_POS_2"], c["LINK_MOI"]
        angle1, angle2, speed1, speed2 = states
        cos2, sin2 = np.cos(angle2), np.sin(angle2)
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + moi + moi
        d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + moi
        phi2 = m2 * lc2 * GRAVITY * np.cos(angle1 + angle2 - np.pi / 2.0)
        phi1 = (
            -m2 * l1 * lc2 * np.square(speed2) * sin2
            - 2 * m2 * l1 * lc2 * speed2 * speed1 * sin2
            + (m1 * lc1 + m2 * l1) * GRAVITY * np.cos(angle1 - np.pi / 2)
            + phi2
        )
        up2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * np.square(speed1) * sin2 - phi2) / (
            m2 * lc2**2 + moi - np.square(d2) / d1
        )
        return np.stack((speed1, speed2, -(d2 * up2 + phi1) / d1, up2))

    def _observe(self, states: Floats) -> NDArray[np.float32]:
        angle1, angle2, speed1, speed2 = states
        parts = (np.cos(angle1), np.sin(angle1), np.cos(angle2), np.sin(angle2), speed1, speed2)
        return np.stack(parts, axis=1).astype(np.float32)


def _wrap(angles: Floats) -> None:
    """Wraps ``angles`` into −π … π, in place, by whole turns."""
    while (high := angles > np.pi).any():
        angles[high] -= 2 * np.pi
    while (low := angles < -np.pi).any():
        angles[low] += 2 * np.pi
