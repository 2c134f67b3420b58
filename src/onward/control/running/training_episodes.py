"""Training episodes of a run: raw returns and lengths, and the test of the last hundred for a solution.

Returns are sums of raw rewards, whatever the algorithm does to them; streams (``core.streams``) are summed
alike. An episode counts when it ends, by termination or by truncation.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Step

WINDOW = 100
"""Episodes whose mean return is compared with the threshold, as in Gymnasium's leaderboard."""


class TrainingEpisodes:
    """Counts the episodes that end in ``num`` slots."""

    def __init__(self, num: int) -> None:
        self._returns = np.zeros(num)
        self._lengths = np.zeros(num, np.int64)
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.streams: dict[str, deque[float]] = {}
        """Name → sums over the last episodes, of the streams seen so far."""
        self._sums: dict[str, NDArray[np.float64]] = {}
        self.count = 0
        """Episodes that ended since the start of the run."""

    def add(self, step: Step) -> bool:
        """Adds one step; True where an episode ended."""
        self._returns += step.reward
        self._lengths += 1 if step.alive is None else step.alive
        for name, values in step.streams.items():
            self._sums.setdefault(name, np.zeros(len(self._returns)))
            self._sums[name] += values
        ended = step.ended
        if not ended.any():
            return False
        for slot in np.flatnonzero(ended):
            self.end(float(self._returns[slot]), int(self._lengths[slot]))
            for name, sums in self._sums.items():
                self.streams.setdefault(name, deque(maxlen=WINDOW)).append(float(sums[slot]))
        for sums in self._sums.values():
            sums[ended] = 0.0
        self._returns[ended] = 0.0
        self._lengths[ended] = 0
        return True

    def end(self, episode_return: float, length: int) -> None:
        """Adds one whole episode."""
        self.returns.append(episode_return)
        self.lengths.append(length)
        self.count += 1

    def drop_running(self) -> None:
        """Discards the running episodes of all slots."""
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self._sums.clear()

    def stream_means(self) -> dict[str, float]:
        """Returns each stream's mean per episode over the window."""
        return {name: float(np.mean(window)) for name, window in self.streams.items()}

    def mean_return(self) -> float:
        """Returns the mean over the window; NaN before the first episode."""
        return float(np.mean(self.returns)) if self.returns else float("nan")

    def reach(self, threshold: float) -> bool:
        """True where the window is full and its mean is at least ``threshold``, up to rounding."""
        return len(self.returns) == WINDOW and self.mean_return() >= threshold - 1e-9

    def row(self) -> dict[str, float]:
        """Returns metrics of the window; only the count before the first episode ended."""
        row = {"episodes": float(self.count)}
        if self.returns:
            row |= {"return_mean": self.mean_return(), "length_mean": float(np.mean(self.lengths))}
        return row | {f"{name}_mean": mean for name, mean in self.stream_means().items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "running": [self._returns.copy(), self._lengths.copy()],
            "window": [list(self.returns), list(self.lengths)],
            "count": self.count,
            "streams": {name: list(window) for name, window in self.streams.items()},
            "sums": {name: sums.copy() for name, sums in self._sums.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._returns[:], self._lengths[:] = state["running"]
        self.returns.extend(state["window"][0])
        self.lengths.extend(state["window"][1])
        self.count = state["count"]
        for name, window in state.get("streams", {}).items():
            self.streams[name] = deque(window, maxlen=WINDOW)
        self._sums = {name: np.array(sums) for name, sums in state.get("sums", {}).items()}
