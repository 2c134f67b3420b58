"""Catch: a task seen as pixels, small enough for an image encoder to learn on a CPU in a minute.

The tasks are Gymnasium environments, ``onward/Catch-v0`` and ``onward/CatchDict-v0``, so that peer libraries
can train on them too; ``environments.make`` registers them.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

SIZE = 10
"""Number of rows and of columns."""
THRESHOLD = 0.9
"""Mean return that counts as solved: 95 % of balls caught."""


class Catch(gymnasium.Env[Any, Any]):
    """A ball falls one row a step; the paddle in the last row moves left, stays or moves right.

    After 9 steps the ball is in the last row: reward 1 if the paddle is under it, else −1; 0 before. Every
    ball can be caught. The task follows that of the same name in bsuite (Osband et al. 2020).
    """

    def __init__(self) -> None:
        """Creates the spaces."""
        self.action_space = spaces.Discrete(3)
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
        self.row = self.column = self.paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Places a new ball in the first row, the paddle in the middle."""
        super().reset(seed=seed)
        self.row, self.paddle = 0, SIZE // 2
        self.column = int(self.np_random.integers(SIZE))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Moves the paddle, then the ball."""
        self.paddle = min(max(self.paddle + int(action) - 1, 0), SIZE - 1)
        self.row += 1
        landed = self.row == SIZE - 1
        reward = (1.0 if self.paddle == self.column else -1.0) if landed else 0.0
        return self._observe(), reward, landed, False, {}

    def _observe(self) -> Any:
        frame = self._ball()
        frame[SIZE - 1, self.paddle] = 255
        return frame

    def _ball(self) -> NDArray[np.uint8]:
        frame = np.zeros((SIZE, SIZE), np.uint8)
        frame[self.row, self.column] = 255
        return frame


class CatchDict(Catch):
    """Catch with only the ball in the image and the paddle's column as a number: both parts are needed."""

    def __init__(self) -> None:
        """Creates the spaces."""
        super().__init__()
        image = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
        self.observation_space = spaces.Dict(ball=image, paddle=spaces.Discrete(SIZE))

    def _observe(self) -> Any:
        return {"ball": self._ball(), "paddle": self.paddle}


def register() -> None:
    """Registers both with Gymnasium; repeated calls do no harm."""
    for env_id, task in (("onward/Catch-v0", "Catch"), ("onward/CatchDict-v0", "CatchDict")):
        if env_id not in gymnasium.registry:
            entry_point = f"{__name__}:{task}"
            gymnasium.register(env_id, entry_point, reward_threshold=THRESHOLD, max_episode_steps=SIZE)
