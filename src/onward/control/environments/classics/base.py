"""Base of the tasks written in numpy: all slots advance in one call, resets happen within the step.

Invariants: slot i draws from its own generator, seeded and read in the same way as by Gymnasium's
environment. So the same seed and actions give the same episodes in both.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Environments, EnvSpec, Flags, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout, Leaf, Obs, put, take, to_env
from onward.errors import ControlError

Floats = NDArray[np.float64]


def vector_layout(width: int) -> Layout:
    """Returns the layout of a Box of ``width`` numbers."""
    return Layout(width, leaves=(Leaf((), "numbers", (width,)),))


class NumpyTask(Environments):
    """N slots of one task; a subclass defines how its states start, advance and are observed."""

    parameters: ClassVar[dict[str, float]]
    """Names and defaults of the physical constants that ``make`` accepts."""
    width: ClassVar[int]
    """Numbers in one slot's state."""

    def __init__(self, spec: EnvSpec, num: int, parameters: dict[str, float] | None = None) -> None:
        """Raises ControlError for a parameter that the task does not have, or that is not a finite number."""
        unknown = sorted(set(parameters or {}) - set(self.parameters))
        if unknown:
            raise ControlError(
                f"{spec.id} has no parameter {unknown[0]!r}: choose among {', '.join(self.parameters)}."
            )
        for name, value in (parameters or {}).items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ControlError(f"{spec.id}: {name} is {value!r}: give a finite number.")
        self.spec, self.num = spec, num
        self.constants = {**self.parameters, **(parameters or {})}
        self.states: Floats = np.zeros((self.width, num), np.float64)
        self.elapsed = np.zeros(num, np.int64)
        self.generators: list[np.random.Generator] = []
        self._choices = spec.actions.sizes[0] if spec.actions.kind == "discrete" else 0
        self._limit = spec.max_steps or np.iinfo(np.int64).max
        self._never: Flags = np.zeros(num, np.bool_)

    @abstractmethod
    def _start(self, generator: np.random.Generator) -> Any:
        """Returns the state (width,) at the start of an episode."""

    @abstractmethod
    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], Flags | None]:
        """Advances ``states`` by one step. Returns rewards (N,), and terminated (N,) or None for nowhere."""

    @abstractmethod
    def _observe(self, states: Floats) -> Obs:
        """Returns observations (M, …) of ``states`` (width, M)."""

    def reset(self, seed: int) -> tuple[Obs, Flags | None]:
        """Implements ``Environments``."""
        self.generators = [
            np.random.Generator(np.random.PCG64(np.random.SeedSequence(slot)))
            for slot in Seeds(seed).slots(self.num)
        ]
        self.elapsed[:] = 0
        for slot, generator in enumerate(self.generators):
            self.states[:, slot] = self._start(generator)
        return self._observe(self.states), None

    def step(self, actions: NDArray[Any]) -> Step:
        """Implements ``Environments``."""
        if not self.generators:
            raise ControlError(f"{self.spec.id} was stepped before its first reset: call reset(seed) first.")
        given = to_env(self.spec.actions, actions)
        try:
            if self._choices and given.min() < 0:
                raise IndexError("numpy counts them from the end")
            reward, terminated = self._advance(given)
        except (IndexError, ValueError) as error:
            whole = f"whole numbers from 0 to {self._choices - 1}" if self._choices else "one number per slot"
            raise ControlError(
                f"{self.spec.id} cannot take the actions {actions.tolist()}: give {whole}."
            ) from error
        self.elapsed += 1
        truncated = self.elapsed >= self._limit
        if terminated is None:
            terminated, ended = self._never.copy(), truncated
        else:
            ended = truncated | terminated
            truncated &= ~terminated
        obs = self._observe(self.states)
        final_obs = self._restart(obs, np.flatnonzero(ended)) if ended.any() else None
        return Step(obs, reward, terminated, truncated, final_obs)

    def _restart(self, obs: Obs, slots: NDArray[np.intp]) -> Obs:
        final_obs = take(obs, slots)
        for slot in slots.tolist():
            self.states[:, slot] = self._start(self.generators[slot])
        self.elapsed[slots] = 0
        put(obs, slots, self._observe(self.states[:, slots]))
        return final_obs

    def state_dict(self) -> dict[str, Any]:
        """Implements ``Environments``."""
        return {
            "states": self.states.copy(),
            "elapsed": self.elapsed.copy(),
            "random": [generator.bit_generator.state for generator in self.generators],
        }

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Obs, Flags | None]:
        """Implements ``Environments``."""
        states = np.asarray(state["states"], np.float64)
        if states.shape != self.states.shape:
            raise ControlError(
                f"The saved state has {states.shape[-1]} slots of {self.spec.id} and {self.num} were made: "
                f"resume with the same environment and number of slots."
            )
        self.states[:] = states
        self.elapsed[:] = state["elapsed"]
        self.generators = []
        for saved in state["random"]:
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = saved
            self.generators.append(generator)
        return self._observe(self.states), None


def discrete(choices: int) -> ActionSpec:
    """Returns the actions of a Discrete space from 0."""
    return ActionSpec("discrete", (choices,), start=(0,))


def box(low: float, high: float) -> ActionSpec:
    """Returns the actions of a Box of one number."""
    return ActionSpec("box", low=(low,), high=(high,), shape=(1,))
