"""Running statistics of observations and returns, in float64.

Invariants: the statistics belong to the algorithm. Each observation that is acted on updates them once.
``final_obs`` and evaluation (``frozen``) never update them. Reported rewards are always raw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.config import NetworkConfig
from onward.control.core.spaces import Layout, Obs
from onward.errors import ControlError

EPSILON = 1e-8
"""Added to the variance under the root."""


class RunningNorm:
    """Running mean and variance of rows. Batches are merged by Chan et al. (1979), exact for any split."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = np.zeros(width, np.float64)
        self._squares = np.zeros(width, np.float64)  # sum of squared distances from the mean
        self.frozen = False

    @property
    def var(self) -> NDArray[np.float64]:
        """(width,) population variance; ones until two rows were seen."""
        if self.count < 2:
            return np.ones_like(self.mean)
        return self._squares / self.count

    @property
    def std(self) -> NDArray[np.float64]:
        """(width,) square root of ``var``."""
        return np.sqrt(self.var)

    def update(self, rows: NDArray[Any]) -> None:
        """Updates the statistics with ``rows`` (M, width); does nothing while ``frozen``."""
        if self.frozen or not len(rows):
            return
        rows = np.asarray(rows, np.float64)
        mean = rows.mean(axis=0)
        self._absorb(len(rows), mean, np.square(rows - mean).sum(axis=0))

    def merge(self, other: RunningNorm) -> None:
        """Merges the statistics of ``other`` as if its rows had been seen here, except while ``frozen``."""
        if not self.frozen and other.count:
            self._absorb(other.count, other.mean, other._squares)

    def _absorb(self, count: int, mean: NDArray[np.float64], squares: NDArray[np.float64]) -> None:
        total = self.count + count
        distance = mean - self.mean
        self._squares = self._squares + squares + np.square(distance) * (self.count * count / total)
        self.mean = self.mean + distance * (count / total)
        self.count = total

    def normalise(self, rows: NDArray[Any], clip: float = 10.0) -> NDArray[np.float32]:
        """Returns (rows − mean) / sqrt(var + 1e-8), clipped to ±``clip``; no update. Any leading axes."""
        scaled = (rows - self.mean) / np.sqrt(self.var + EPSILON)
        return np.clip(scaled, -clip, clip).astype(np.float32)

    def update_obs(self, obs: Obs, alive: NDArray[np.bool_] | None = None) -> None:
        """Updates the statistics with the vector part of ``obs``, of slots that are alive."""
        rows = obs.get("vector") if isinstance(obs, dict) else obs
        if rows is not None:
            self.update(rows if alive is None else rows[alive])

    def normalise_obs(self, obs: Obs, clip: float = 10.0) -> Obs:
        """Returns ``obs`` with its vector part normalised; images stay as they are."""
        if not isinstance(obs, dict):
            return self.normalise(obs, clip)
        if "vector" not in obs:
            return obs
        return {**obs, "vector": self.normalise(obs["vector"], clip)}

    def state_dict(self) -> dict[str, Any]:
        """Returns the statistics and ``frozen``."""
        return {
            "count": self.count,
            "mean": self.mean.copy(),
            "squares": self._squares.copy(),
            "frozen": self.frozen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the statistics. Raises ControlError where the widths differ."""
        mean = np.asarray(state["mean"], np.float64)
        if mean.shape != self.mean.shape:
            raise ControlError(
                f"Statistics of {mean.size} numbers do not fit observations of {self.mean.size}: "
                f"load the checkpoint of the same environment."
            )
        self.count = int(state["count"])
        self.mean = mean.copy()
        self._squares = np.asarray(state["squares"], np.float64).copy()
        self.frozen = bool(state["frozen"])


def observation_norm(layout: Layout, config: NetworkConfig) -> RunningNorm | None:
    """Returns statistics for the vector part of observations; None without one, or by ``config``."""
    return RunningNorm(layout.width) if config.normalise_obs and layout.width else None


def normalised(norm: RunningNorm | None, obs: Obs, clip: float) -> Obs:
    """Returns ``obs`` normalised by ``norm``, or unchanged where ``norm`` is None."""
    return obs if norm is None else norm.normalise_obs(obs, clip)


class ReturnScale:
    """Divides rewards by the running deviation of the discounted return, one return per slot.

    The return restarts at 0 where an episode ended, by termination or by truncation.
    """

    def __init__(self, num: int, gamma: float) -> None:
        self.gamma = gamma
        self.returns = np.zeros(num, np.float64)
        self.norm = RunningNorm(1)

    def update(
        self,
        reward: NDArray[Any],
        ended: NDArray[np.bool_],
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        """Updates the deviation with rewards (N,). ``ended``: ``Step.ended``; ``alive``: slots that acted."""
        if self.norm.frozen:
            return
        self.returns = self.returns * self.gamma + reward
        seen = self.returns if alive is None else self.returns[alive]
        self.norm.update(seen[:, None])
        self.returns[ended] = 0.0

    def scale(self, reward: NDArray[Any], clip: float = 10.0) -> NDArray[np.float32]:
        """Returns rewards / sqrt(var + 1e-8), clipped to ±``clip``; no update, no mean subtracted."""
        scaled = reward / np.sqrt(self.norm.var[0] + EPSILON)
        return np.clip(scaled, -clip, clip).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Returns the statistics and the running returns."""
        return {"returns": self.returns.copy(), "norm": self.norm.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state. Raises ControlError where the number of slots differs."""
        returns = np.asarray(state["returns"], np.float64)
        if returns.shape != self.returns.shape:
            raise ControlError(
                f"Returns of {returns.size} slots do not fit {self.returns.size}: "
                f"resume with the same number of environments."
            )
        self.returns = returns.copy()
        self.norm.load_state_dict(state["norm"])
