"""A Gymnasium ``VectorEnv`` behind the contract, for environments that other code has vectorised.

Only resets in SAME_STEP fit. Under NEXT_STEP, Gymnasium's default, the step after an ending ignores its
action and has reward 0. Training on that pair is wrong (cleanrl#499, Gymnasium#1227).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Environments, EnvSpec, Flags, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs, ObsFlattener, take, to_env, zeros
from onward.control.core.streams import split_infos, streams_of
from onward.errors import ControlError, EnvironmentFault

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv


class VectorSlots(Environments):
    """Sub-environments of one ``VectorEnv``. Their state cannot be saved."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], spec: EnvSpec) -> None:
        """Raises ControlError unless ``envs`` resets in SAME_STEP."""
        check_same_step(envs)
        self.envs = envs
        self.spec, self.num = spec, envs.num_envs
        self._flattener = ObsFlattener(spec.layout)
        self._dtype = envs.action_space.dtype
        self._mask: Flags | None = None

    def reset(self, seed: int) -> tuple[Obs, Flags | None]:
        """Implements ``Environments``."""
        seeds: Any = Seeds(seed).slots(self.num)
        with self._checked("reset"):
            raw, infos = self.envs.reset(seed=seeds)
            self._mask = None
            self._note_masks(infos)
            obs = self._flattener.batch(raw, self.num)
        self._check_finite("an observation", obs)
        return obs, self._masks()

    @contextmanager
    def _checked(self, method: str) -> Iterator[None]:
        """Raises EnvironmentFault for any error of the environments, and for data that does not fit."""
        try:
            yield
        except ControlError:
            raise
        except Exception as error:
            words = " ".join(str(error).split()) or "no message"
            raise EnvironmentFault(
                f"{self.spec.id}: {method} failed or returned data that its spaces do not declare "
                f"({type(error).__name__}: {words}); correct it.",
                "".join(format_exception(error)),
            ) from error

    def _check_finite(self, name: str, obs: Obs) -> None:
        numbers = obs.get("vector") if isinstance(obs, dict) else obs
        if numbers is None or np.isfinite(numbers).all():
            return
        slot = int(np.argwhere(~np.isfinite(numbers))[0][0])
        raise EnvironmentFault(f"{self.spec.id}, slot {slot}: {name} is not finite; return finite numbers.")

    def step(self, actions: NDArray[Any]) -> Step:
        """Implements ``Environments``."""
        given = to_env(self.spec.actions, actions).astype(self._dtype)
        with self._checked("step"):
            raw, reward, terminated, truncated, infos = self.envs.step(given)
            terminated = np.array(terminated, np.bool_)
            ended = terminated | np.asarray(truncated, np.bool_)
            obs = self._flattener.batch(raw, self.num)
            final_obs = self._final_obs(infos, np.flatnonzero(ended)) if ended.any() else None
            rewards = np.array(reward, np.float32).reshape(self.num)
            self._note_masks(infos)
            streams = streams_of(split_infos(infos, self.num), self.spec.id)
        self._check_finite("an observation", obs)
        self._check_finite("the reward", rewards)
        told: dict[str, Any] = {"streams": streams} if streams else {}
        if final_obs is not None:
            self._check_finite("a last observation", final_obs)
            told["final_info"] = _by_slot(infos, np.flatnonzero(ended))
        return Step(
            obs,
            rewards,
            terminated,
            ended & ~terminated,
            final_obs,
            action_mask=self._masks(),
            info=told,
        )

    def _final_obs(self, infos: dict[str, Any], slots: NDArray[np.intp]) -> Obs:
        """Returns the last observations of ended slots. Gymnasium gives one per ended slot in an object
        array; others give a whole batch."""
        raw = infos.get("final_obs")
        if raw is None:
            raise ControlError(
                f"{self.spec.id} ended an episode without infos['final_obs'], from which the value of a cut "
                f"episode is taken: return it, as Gymnasium's SAME_STEP asks."
            )
        if not (isinstance(raw, np.ndarray) and raw.dtype == object):
            return take(self._flattener.batch(raw, self.num), slots)
        rows = zeros(self.spec.layout, (len(slots),))
        for row, slot in enumerate(slots):
            self._flattener.write(raw[slot], rows, row)
        return rows

    def _note_masks(self, infos: dict[str, Any]) -> None:
        masks = infos.get("action_mask")
        if masks is None:
            return
        if self._mask is None:
            self._mask = np.ones((self.num, sum(self.spec.actions.sizes)), np.bool_)
        given = infos.get("_action_mask", slice(None))
        self._mask[given] = np.asarray(masks).reshape(self.num, -1)[given]

    def _masks(self) -> Flags | None:
        return None if self._mask is None else self._mask.copy()

    def state_dict(self) -> dict[str, Any]:
        """Returns only a note: the state within a ``VectorEnv`` is not accessible."""
        return {"unsaved": self.spec.id}

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Obs, Flags | None]:
        """Raises ControlError always: there is no state to restore."""
        raise ControlError(
            f"The episodes of the VectorEnv {self.spec.id} cannot be resumed: give its id, or a function "
            f"that makes one environment, instead of a VectorEnv."
        )

    def close(self) -> None:
        """Closes the vector environment."""
        self.envs.close()


def _by_slot(infos: dict[str, Any], slots: NDArray[np.intp]) -> dict[int, dict[str, Any]]:
    """Returns the last info of each ended slot. Gymnasium gives one array per key and, under ``_key``, the
    slots that it holds for."""
    final = infos.get("final_info", {})
    if not isinstance(final, dict):  # one dict per slot
        return {int(slot): dict(final[slot] or {}) for slot in slots}
    arrays = {key: values for key, values in final.items() if isinstance(values, np.ndarray)}
    return {
        int(slot): {
            key: values[slot]
            for key, values in arrays.items()
            if not key.startswith("_") and arrays.get(f"_{key}", np.ones(slot + 1))[slot]
        }
        for slot in slots
    }


def check_same_step(envs: VectorEnv[Any, Any, Any]) -> None:
    """Raises ControlError unless ``envs`` resets within the step that ended an episode."""
    mode = getattr(envs.metadata.get("autoreset_mode"), "name", "an undeclared")
    if mode != "SAME_STEP":
        raise ControlError(
            f"{envs} resets in {mode} mode, where the step after an ending may not be a real one: make it "
            f"with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP, or give its id."
        )
