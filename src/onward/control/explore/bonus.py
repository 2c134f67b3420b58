"""Interface of exploration bonuses to algorithms, and the scale of a bonus stream.

A bonus is a second reward that changes during training. On-policy methods value it by a separate head.
Off-policy methods compute it when they sample, so an old transition gets its present bonus. Its scale is that
of its discounted sum, filtered forward in time in each slot (Burda et al. 2018, 1810.12894), so arrays passed
to ``observe`` always have time first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.config import BonusConfig
from onward.control.core.contract import EnvSpec, Flags
from onward.control.core.normalise import RunningNorm
from onward.control.core.spaces import Layout, Obs
from onward.errors import ControlError

Floats = NDArray[np.float32]
MAX_INPUTS = 16_384
"""Most numbers of one observation that a bonus can use."""


class Bonus(ABC):
    """Exploration bonus, made by ``make_bonus``. Observations and actions are raw.

    ``random_steps``: environment steps that the algorithm takes at random and passes to ``prime`` only.
    """

    episodic: bool
    """True where the bonus return ends with the episode. False: the next episode's bonus counts too."""

    def __init__(self, spec: EnvSpec, config: BonusConfig, random_steps: int) -> None:
        check_spec(spec, config)
        self.layout = spec.layout
        self.random_steps = random_steps
        self.norm = RunningNorm(flat_width(spec.layout))
        self.primed_by = 0
        """Random steps passed to ``prime`` so far."""

    @property
    def primed(self) -> bool:
        """False while the algorithm must act at random, learn nothing, and call ``prime``."""
        return self.primed_by >= self.random_steps

    def prime(self, next_obs: Obs) -> None:
        """Sets the first statistics from observations (N, …) that random actions led to."""
        rows = flat_rows(next_obs, self.layout)
        self.norm.update(rows)
        self.primed_by += len(rows)

    @abstractmethod
    def observe(
        self, obs: Obs, actions: NDArray[Any], next_obs: Obs, ended: Flags, alive: Flags | None = None
    ) -> None:
        """Records new steps: all arrays (T, N, …), in the order of time. To be called once per step.

        ``next_obs`` is the step's own next observation (``Step.next_obs``), never the first of the next
        episode. ``alive``: slots that acted; the others are ignored. None: all acted.
        """

    @abstractmethod
    def reward(self, obs: Obs, actions: NDArray[Any], next_obs: Obs) -> Floats:
        """Returns the present bonus of each transition, scaled: arrays (…, width) give (…,)."""

    @abstractmethod
    def update(self, obs: Obs, actions: NDArray[Any], next_obs: Obs) -> dict[str, float]:
        """Trains on rows (B, …); returns metrics whose names begin with ``bonus_``."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state; ``load_state_dict`` continues from it bit for bit."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``. Raises ControlError where it belongs to another bonus."""


class ReturnFilter:
    """Running deviation of a discounted sum of rewards, by which a stream is divided.

    The sum runs forward in time, separately in each slot: f_t = γ·f_(t−1) + r_t. The deviation is over every
    f so far (Welford, float64). With ``episodic``, f restarts after an episode's end.
    """

    def __init__(self, num: int, gamma: float, episodic: bool) -> None:
        self.gamma = gamma
        self.episodic = episodic
        self.filtered = np.zeros(num)
        self.norm = RunningNorm(1)

    def observe(self, rewards: NDArray[Any], ended: Flags) -> None:
        """Adds ``rewards`` and ``ended``, (T, N) with time first. Raises ControlError for another shape."""
        if rewards.ndim != 2 or rewards.shape[1:] != self.filtered.shape:
            raise ControlError(
                f"A bonus of {len(self.filtered)} slots was given rewards of shape {rewards.shape}: "
                f"give (time, {len(self.filtered)})."
            )
        sums = np.empty(rewards.shape)
        for t in range(len(rewards)):
            self.filtered = self.gamma * self.filtered + rewards[t]
            sums[t] = self.filtered
            if self.episodic:
                self.filtered = np.where(ended[t], 0.0, self.filtered)
        self.norm.update(sums.reshape(-1, 1))

    @property
    def std(self) -> float:
        """Deviation so far; 1 while there is no data or all values are equal."""
        std = float(self.norm.std[0])
        return std if std > 1e-8 else 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"filtered": self.filtered.copy(), "norm": self.norm.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state. Raises ControlError where the number of slots differs."""
        filtered = np.array(state["filtered"], dtype=np.float64)
        if filtered.shape != self.filtered.shape:
            raise ControlError(
                f"The saved bonus has {filtered.size} slots, this run has {self.filtered.size}: "
                "resume with the same number of environments."
            )
        self.filtered = filtered
        self.norm.load_state_dict(state["norm"])


def bonus_weight(config: BonusConfig, progress: float) -> float:
    """Returns the bonus' weight at ``progress`` (0 … 1): constant, or falling to 0 at ``bonus_until``."""
    if config.bonus_until >= 1:
        return config.bonus_weight
    return config.bonus_weight * max(0.0, 1.0 - progress / max(config.bonus_until, 1e-9))


def flat_rows(obs: Obs, layout: Layout) -> Floats:
    """Returns (…, numbers) of any layout: the vector and each image's bytes / 255, concatenated."""
    if not isinstance(obs, dict):
        return np.asarray(obs, dtype=np.float32)
    parts = [np.asarray(obs["vector"], dtype=np.float32)] if layout.width else []
    for key, _ in layout.images:
        image = obs[key]
        parts.append((image.reshape(*image.shape[:-3], -1) / np.float32(255)).astype(np.float32))
    return np.concatenate(parts, axis=-1)


def living_rows(rows: Floats, alive: Flags | None) -> Floats:
    """Returns the rows of (T, N, width) that belong to slots that acted, as (M, width)."""
    return rows.reshape(-1, rows.shape[-1]) if alive is None else rows[alive]


def flat_width(layout: Layout) -> int:
    """Returns the numbers in ``flat_rows``. Raises ControlError where they are too many without a CNN."""
    width = layout.width + sum(height * width * channels for _, (height, width, channels) in layout.images)
    if width > MAX_INPUTS:
        raise ControlError(
            f"A bonus looks at {width} numbers of an observation, at most {MAX_INPUTS} fit: "
            "make the images smaller (gymnasium.wrappers.ResizeObservation), or train without a bonus."
        )
    return width


def check_spec(spec: EnvSpec, config: BonusConfig) -> None:
    """Raises ControlError where this bonus cannot work with this environment or these settings."""
    flat_width(spec.layout)
    if config.bonus == "icm" and getattr(config, "n_step", 1) > 1:
        raise ControlError(
            f"bonus=icm predicts one step ahead but n_step is {getattr(config, 'n_step', 1)}: "
            "set n_step=1, or use bonus=rnd."
        )


def check_kind(state: dict[str, Any], kind: str) -> None:
    """Raises ControlError where a saved state is not of this kind of bonus."""
    if state.get("bonus") != kind:
        raise ControlError(
            f"The saved state belongs to bonus={state.get('bonus', 'none')}, this run has bonus={kind}: "
            "resume with the settings it was saved with."
        )
