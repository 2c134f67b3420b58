"""Gymnasium environments as slots of one process: the adapter for every task that is not written in numpy.

Invariants: an environment's observation is copied at once, before the next reset, since many environments
reuse one buffer. A saved state is the start of the episode (seed or states of the generators) and the actions
since; ``load_state_dict`` replays and checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Environments, EnvSpec, Flags, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs, ObsFlattener, copy, take, to_env, zeros
from onward.control.core.streams import streams_of
from onward.control.environments.checked_env import CheckedEnv
from onward.errors import ControlError

if TYPE_CHECKING:
    from gymnasium import Env


class GymSlots(Environments):
    """N Gymnasium environments, stepped one after the other."""

    def __init__(self, envs: Sequence[Env[Any, Any]], spec: EnvSpec) -> None:
        """Raises ControlError where the environments differ in space or are not distinct instances."""
        _check_distinct(envs)
        _check_alike(envs)
        self.spec, self.num = spec, len(envs)
        self.slots = [CheckedEnv(env, spec, slot) for slot, env in enumerate(envs)]
        self._first = 0
        self._flattener = ObsFlattener(spec.layout)
        self._dtype = envs[0].action_space.dtype
        self._obs: Obs = zeros(spec.layout, (self.num,))
        self._mask: Flags | None = None
        self._starts: list[dict[str, Any]] = []
        self._actions: list[list[NDArray[Any]]] = []

    def number_from(self, first: int) -> None:
        """Numbers the slots from ``first`` on, for a part of the slots of a run: seeds and errors follow."""
        self._first = first
        for slot, env in enumerate(self.slots):
            env.slot = first + slot

    def reset(self, seed: int) -> tuple[Obs, Flags | None]:
        """Implements ``Environments``."""
        seeds = Seeds(seed).slots(self._first + self.num)[self._first :]
        self._starts = [{"seed": slot_seed} for slot_seed in seeds]
        self._actions = [[] for _ in self.slots]
        self._mask = None
        for slot, start in enumerate(self._starts):
            self._begin(slot, start, self._obs)
        return copy(self._obs), _copied(self._mask)

    def _begin(self, slot: int, start: dict[str, Any], out: Obs) -> None:
        """Starts an episode from ``start``: from a seed, or from the states of the slot's generators."""
        raw, info = self.slots[slot].reset(start.get("seed"), start)
        self._flattener.write(raw, out, slot)
        self._note_mask(slot, info)

    def step(self, actions: NDArray[Any]) -> Step:
        """Implements ``Environments``. After an error the saved state is that of before the step."""
        if not self._starts:
            raise ControlError(f"{self.spec.id} was stepped before its first reset: call reset(seed) first.")
        given = to_env(self.spec.actions, actions).astype(self._dtype)
        obs = zeros(self.spec.layout, (self.num,))
        reward = np.zeros(self.num, np.float32)
        terminated, truncated = np.zeros(self.num, np.bool_), np.zeros(self.num, np.bool_)
        final_infos: dict[int, Any] = {}
        every_info: list[dict[str, Any]] = []
        for slot, env in enumerate(self.slots):
            raw, reward[slot], terminated[slot], cut, info = env.step(given[slot])
            every_info.append(info)
            self._flattener.write(raw, obs, slot)
            truncated[slot] = cut and not terminated[slot]
            if terminated[slot] or cut:
                final_infos[slot] = info
            else:
                self._note_mask(slot, info)
        streams = streams_of(every_info, self.spec.id)
        final_obs, starts = self._restart(obs, list(final_infos)) if final_infos else (None, {})
        for slot, taken in enumerate(self._actions):
            if slot in starts:
                self._starts[slot], self._actions[slot] = starts[slot], []
            else:
                taken.append(given[slot])
        self._obs = obs
        infos: dict[str, Any] = {"final_info": final_infos} if final_infos else {}
        if streams:
            infos["streams"] = streams
        return Step(copy(obs), reward, terminated, truncated, final_obs, None, _copied(self._mask), infos)

    def _restart(self, obs: Obs, slots: list[int]) -> tuple[Obs, dict[int, dict[str, Any]]]:
        """Resets the ended slots. Returns (last observations, starts of the new episodes)."""
        final_obs = take(obs, np.array(slots))
        starts: dict[int, dict[str, Any]] = {}
        for slot in slots:
            starts[slot] = self.slots[slot].generators.state()
            raw, info = self.slots[slot].reset()
            self._flattener.write(raw, obs, slot)
            self._note_mask(slot, info)
        return final_obs, starts

    def _note_mask(self, slot: int, info: dict[str, Any]) -> None:
        mask = info.get("action_mask")
        if mask is None:
            return
        if self._mask is None:
            self._mask = np.ones((self.num, sum(self.spec.actions.sizes)), np.bool_)
        self._mask[slot] = np.asarray(mask).ravel()

    def without_shaping(self) -> None:
        """Implements ``Environments``."""
        for slot in self.slots:
            own = getattr(slot.env.unwrapped, "without_shaping", None)
            if callable(own):
                own()

    def state_dict(self) -> dict[str, Any]:
        """Implements ``Environments``."""
        shape = (0, *self.spec.actions.shape)
        actions = [np.stack(taken) if taken else np.zeros(shape, self._dtype) for taken in self._actions]
        return {"starts": [dict(start) for start in self._starts], "actions": actions, "obs": copy(self._obs)}

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Obs, Flags | None]:
        """Implements ``Environments``; raises ControlError where replaying the actions leads elsewhere."""
        if len(state["starts"]) != self.num:
            raise ControlError(
                f"The saved state has {len(state['starts'])} slots of {self.spec.id}, not {self.num}: "
                f"resume with the same environment and number of slots."
            )
        self._starts = [dict(start) for start in state["starts"]]
        self._actions = [list(np.asarray(taken)) for taken in state["actions"]]
        self._mask = None
        for slot, start in enumerate(self._starts):
            self._begin(slot, start, self._obs)
            for action in self._actions[slot]:
                raw, _, _, _, info = self.slots[slot].step(action)
                self._flattener.write(raw, self._obs, slot)
                self._note_mask(slot, info)
        if not _equal(self._obs, state["obs"]):
            raise ControlError(
                f"from the same random state the same actions led {self.spec.id} to another observation than "
                f"the saved one; its episodes repeat only where it draws everything from self.np_random"
            )
        return copy(self._obs), _copied(self._mask)

    def close(self) -> None:
        """Closes every environment."""
        for slot in self.slots:
            slot.env.close()


def _copied(mask: Flags | None) -> Flags | None:
    return None if mask is None else mask.copy()


def _equal(obs: Obs, saved: Obs) -> bool:
    if isinstance(obs, dict):
        assert isinstance(saved, dict)
        return all(np.array_equal(obs[key], saved[key], equal_nan=obs[key].dtype.kind == "f") for key in obs)
    assert not isinstance(saved, dict)
    return np.array_equal(obs, saved, equal_nan=True)


def _check_distinct(envs: Sequence[Env[Any, Any]]) -> None:
    seen: dict[int, int] = {}
    for slot, env in enumerate(envs):
        other = seen.setdefault(id(env.unwrapped), slot)
        if other != slot:
            raise ControlError(
                f"Environments {other} and {slot} are the same instance, which would share one episode: "
                f"give a function that makes a new one each time."
            )


def _check_alike(envs: Sequence[Env[Any, Any]]) -> None:
    for slot, env in enumerate(envs):
        for name in ("observation_space", "action_space"):
            if getattr(env, name) != getattr(envs[0], name):
                raise ControlError(
                    f"Environment {slot} has another {name} than environment 0 "
                    f"({getattr(env, name)} instead of {getattr(envs[0], name)}): make all of them alike."
                )
