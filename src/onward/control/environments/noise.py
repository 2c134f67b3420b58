"""Noise on observations, for training under it or for measuring how much of it a policy tolerates.

Only the float32 part of observations changes; dynamics, rewards and images stay as they are. Deviations are
absolute, or in running deviations of the observations so far.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onward.control.core.contract import Environments, Flags, Step, put_back, saved_state
from onward.control.core.normalise import RunningNorm
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs, copy, rows_of, zeros
from onward.errors import ControlError


class NoisyObservations(Environments):
    """Adds independent Gaussian noise to every observation of ``inner``."""

    def __init__(self, inner: Environments, deviation: ArrayLike, relative: bool = False) -> None:
        """Wraps ``inner``. ``deviation``: one number or (width,). ``relative``: it multiplies the running
        deviation of each number, learned here from observations without noise. Raises ControlError where it
        does not fit."""
        width = inner.spec.layout.width
        sigma = np.asarray(deviation, np.float32)
        if not width:
            raise ControlError(f"{inner.spec.id} shows images only, which take no noise: leave it out.")
        if sigma.shape not in ((), (width,)) or not np.isfinite(sigma).all() or (sigma < 0).any():
            raise ControlError(
                f"obs_noise is {deviation!r}: give one deviation of at least 0, or {width}, one per number."
            )
        self.inner, self.spec, self.num = inner, inner.spec, inner.num
        self._sigma = sigma
        self._met = RunningNorm(width) if relative else None
        self._generator = Seeds(0).generator("obs_noise")
        self._obs: Obs = zeros(inner.spec.layout, (inner.num,))

    def reset(self, seed: int) -> tuple[Obs, Flags | None]:
        """Implements ``Environments``; the noise has its own stream of ``seed``."""
        self._generator = Seeds(seed).generator("obs_noise")
        obs, mask = self.inner.reset(seed)
        self._meet(obs)
        self._obs = self._noisy(obs)
        return copy(self._obs), mask

    def step(self, actions: NDArray[Any]) -> Step:
        """Implements ``Environments``."""
        step = self.inner.step(actions)
        self._meet(step.obs)
        self._obs = self._noisy(step.obs)
        final_obs = None if step.final_obs is None else self._noisy(step.final_obs)
        return replace(step, obs=copy(self._obs), final_obs=final_obs)

    def _meet(self, obs: Obs) -> None:
        if self._met is not None:
            self._met.update_obs(obs)

    def _deviation(self) -> NDArray[np.float32]:
        if self._met is None:
            return self._sigma
        known = self._met.count > 1  # one row has no deviation
        return self._sigma * self._met.std.astype(np.float32) * np.float32(known)

    def _noisy(self, obs: Obs) -> Obs:
        shape = (rows_of(obs), self.spec.layout.width)
        noise = self._deviation() * self._generator.standard_normal(shape, np.float32)
        if isinstance(obs, dict):
            return {**obs, "vector": obs["vector"] + noise}
        return obs + noise

    def state_dict(self) -> dict[str, Any]:
        """Implements ``Environments``."""
        return {
            "inner": saved_state(self.inner),
            "random": self._generator.bit_generator.state,
            "obs": copy(self._obs),
            "met": None if self._met is None else self._met.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Obs, Flags | None]:
        """Implements ``Environments``. The running deviations are restored even where ``inner`` cannot be."""
        self._generator.bit_generator.state = state["random"]
        self._obs = copy(state["obs"])
        if self._met is not None:
            self._met.load_state_dict(state["met"])
        _, mask = put_back(self.inner, state["inner"])
        return copy(self._obs), mask

    def close(self) -> None:
        """Closes the wrapped environments."""
        self.inner.close()
