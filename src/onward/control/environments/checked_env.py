"""The one place that calls ``reset`` and ``step`` of a Gymnasium environment.

Invariants: every returned value has the declared form. Anything else, and any error within the environment,
is an ``EnvironmentFault``: one sentence with the environment, the slot, the step of its episode and the
remedy. An episode of an environment without a time limit is cut (truncated) after ``LONGEST_EPISODE`` steps.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.control.core.contract import LONGEST_EPISODE, EnvSpec
from onward.control.environments import slips
from onward.control.environments.generators import SlotGenerators
from onward.errors import EnvironmentFault

if TYPE_CHECKING:
    from gymnasium import Env

_FLAGS, _NUMBERS = (bool, np.bool_), (float, int, np.float64, np.float32)
_LARGEST = 1e76
"""Sum of squares below which every number of an observation is finite in float32."""


class CheckedEnv:
    """One environment in one slot."""

    def __init__(self, env: Env[Any, Any], spec: EnvSpec, slot: int) -> None:
        self.env, self.spec, self.slot = env, spec, slot
        self.at = 0
        """Steps of the running episode."""
        self.generators = SlotGenerators(env)
        leaves = spec.layout.leaves
        plain = len(leaves) == 1 and not leaves[0].path and leaves[0].kind == "numbers"
        self._shape = leaves[0].shape if plain else None
        self._endless = spec.max_steps is None

    def reset(
        self, seed: int | None = None, state: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode: from ``seed``, from a ``state`` of the generators, or from where they are.

        Returns (observation, info). Raises EnvironmentFault.
        """
        self.at = 0
        if seed is not None:
            self.generators.seed(seed)
        elif state is not None:
            self.generators.load(state)
        result = self.call_reset(seed)
        self.refuse(slips.of_reset(result, self.spec.layout))
        self._check_mask(result[1])
        return result

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps once. Returns the five values of Gymnasium. Raises EnvironmentFault."""
        result = self.call_step(action)
        if not self._good(result):
            self.refuse(slips.of_step(result, self.spec.layout))
            raw, reward, terminated, truncated, info = result
            result = raw, float(reward), bool(terminated), bool(truncated), info
        if "action_mask" in result[4] and not (result[2] or result[3]):
            self._check_mask(result[4])
        if self._endless and self.at >= LONGEST_EPISODE:
            return result[0], result[1], result[2], True, result[4]
        return result

    def call_reset(self, seed: int | None = None) -> Any:
        """Calls ``reset``; its result is unchecked."""
        try:
            if self.generators.idle:
                return self.env.reset(seed=seed)
            return self.generators.call(self.env.reset, seed=seed)
        except TypeError as error:
            if not _takes_seed(self.env.unwrapped.reset):
                raise self._fault(
                    "its reset takes no seed and options",
                    "define reset(self, *, seed=None, options=None) and call super().reset(seed=seed) first",
                ) from error
            raise self._raised("reset", error) from error
        except (Exception, SystemExit) as error:
            raise self._raised("reset", error) from error

    def call_step(self, action: Any) -> Any:
        """Calls ``step``; its result is unchecked."""
        self.at += 1
        try:
            if self.generators.idle:
                return self.env.step(action)
            return self.generators.call(self.env.step, action)
        except (Exception, SystemExit) as error:  # a closed window often ends the program
            raise self._raised("step", error) from error

    def _good(self, result: Any) -> bool:
        """True where a quick test finds nothing wrong; False where it cannot say."""
        if type(result) is not tuple or len(result) != 5 or self._shape is None:
            return False
        raw, reward, terminated, truncated, info = result
        return (
            type(raw) is np.ndarray
            and raw.shape == self._shape
            and raw.dtype.kind in "fiub"
            and float(raw.dot(raw) if raw.ndim == 1 else np.vdot(raw, raw)) < _LARGEST
            and type(reward) in _NUMBERS
            and -slips.MOST <= reward <= slips.MOST
            and type(terminated) in _FLAGS
            and type(truncated) in _FLAGS
            and type(info) is dict
        )

    def _check_mask(self, info: dict[str, Any]) -> None:
        mask = info.get("action_mask")
        if mask is not None:
            self.refuse(slips.of_mask(mask, self.spec.actions))

    def refuse(self, found: Iterable[slips.Slip]) -> None:
        """Raises EnvironmentFault for the first slip."""
        for slip in found:
            raise self._fault(slip.what, slip.remedy)

    def _fault(self, what: str, remedy: str, trace: str = "") -> EnvironmentFault:
        when = f"step {self.at} of its episode" if self.at else "the start of an episode"
        return EnvironmentFault(f"{self.spec.id}, slot {self.slot}, {when}: {what}; {remedy}.", trace)

    def _raised(self, method: str, error: BaseException) -> EnvironmentFault:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in _OURS:
            frames = frames.tb_next
        words = " ".join(str(error).split())[:300]
        what = f"{method} raised {type(error).__name__}" + (f": {words}" if words else "")
        trace = "".join(traceback.format_exception(type(error), error, frames))
        return self._fault(what, f"correct it{_place(self.env.unwrapped, frames)}", trace)


def _takes_seed(reset: Any) -> bool:
    parameters = inspect.signature(reset).parameters.values()
    named = {parameter.name for parameter in parameters}
    return {"seed", "options"} <= named or any(one.kind is one.VAR_KEYWORD for one in parameters)


def _place(env: Any, frames: Any) -> str:
    """Returns the innermost line of the environment's own file in a traceback, for the end of a sentence."""
    found = traceback.extract_tb(frames)
    try:
        own = inspect.getsourcefile(type(env))
    except TypeError:  # typed into an interpreter
        own = None
    within = [frame for frame in found if frame.filename == own] or found
    return f" at {Path(within[-1].filename).name}:{within[-1].lineno}" if within else ""


_OURS = {__file__, SlotGenerators.call.__code__.co_filename}
