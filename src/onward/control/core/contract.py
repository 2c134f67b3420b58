"""Data that environments pass to algorithms: arrays with a leading axis of slots (environments × agents).

Invariants: resets happen within the step (Gymnasium's SAME_STEP). ``Step.obs`` is always the observation to
act on next. For a slot whose episode ended it is the first observation of the next episode; the last
observation of the ended one is in ``final_obs``. Termination and truncation never mix. After a truncation a
value is bootstrapped from ``final_obs``; after a termination it is zero. No return crosses the end of an
episode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.spaces import ActionSpec, Layout, Obs
from onward.control.core.streams import Streams
from onward.errors import ControlError

Flags = NDArray[np.bool_]
LONGEST_EPISODE = 10_000
"""Steps after which an episode is cut where the environment has no limit of its own: an evaluation of a task
without an end would never return."""


@dataclass(frozen=True)
class Step:
    """One step of all N slots. The arrays belong to the caller: an environment never writes to them again."""

    obs: Obs
    """(N, …) observations to act on next: of the next episode where this one ended."""
    reward: NDArray[np.float32]
    """(N,) raw rewards, neither scaled nor shaped."""
    terminated: Flags
    """(N,) the episode was ended by the task's own rules: the value afterwards is 0."""
    truncated: Flags
    """(N,) the episode was cut short, for example by a time limit. Never true where ``terminated`` is."""
    final_obs: Obs | None = None
    """(K, …) last observations of the K ended slots, in slot order; None where none ended."""
    alive: Flags | None = None
    """(N,) slots whose ``obs`` needs an action; None: all. A dead slot ignores actions and earns 0."""
    action_mask: Flags | None = None
    """(N, actions) legal actions in ``obs``; None: all."""
    info: dict[str, Any] = field(default_factory=dict)
    """``final_info`` of ended slots, and ``streams``."""

    @property
    def streams(self) -> Streams:
        """Name → (N,) numbers beside the reward, such as ``cost``; most environments have none."""
        return self.info.get("streams", {})

    @property
    def ended(self) -> Flags:
        """(N,) slots whose episode ended at this step."""
        return self.terminated | self.truncated

    def next_obs(self) -> Obs:
        """Returns the step's own next observations: ``final_obs`` where an episode ended, else ``obs``."""
        if self.final_obs is None:
            return self.obs
        return _replaced(self.obs, np.flatnonzero(self.ended), self.final_obs)


def _replaced(obs: Obs, slots: NDArray[np.intp], rows: Obs) -> Obs:
    if isinstance(obs, dict):
        assert isinstance(rows, dict)
        return {key: _replaced_array(obs[key], slots, rows[key]) for key in obs}
    assert not isinstance(rows, dict)
    return _replaced_array(obs, slots, rows)


def _replaced_array(array: NDArray[Any], slots: NDArray[np.intp], rows: NDArray[Any]) -> NDArray[Any]:
    out = array.copy()
    out[slots] = rows
    return out


@dataclass(frozen=True)
class EnvSpec:
    """Description of an environment, known before it runs."""

    id: str
    layout: Layout
    """Flattening of its observations."""
    actions: ActionSpec
    threshold: float | None = None
    """Gymnasium's ``reward_threshold``: mean return at which it counts as solved."""
    max_steps: int | None = None
    """Time limit of an episode, in steps."""


class Environments(ABC):
    """N slots that step together."""

    spec: EnvSpec
    num: int
    """Number of slots (N)."""

    @abstractmethod
    def reset(self, seed: int) -> tuple[Obs, Flags | None]:
        """Starts all episodes. Returns (observations (N, …), action mask (N, actions) or None)."""

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> Step:
        """Steps all slots by a policy's actions (see ``ActionSpec``), which are scaled and clipped here."""

    def without_shaping(self) -> None:  # noqa: B027
        """Leaves shaping rewards out from here on, for evaluations; only an environment with a method of this
        name has any."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns all that ``load_state_dict`` needs to continue bit for bit, as plain data and arrays."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> tuple[Obs, Flags | None]:
        """Continues from ``state``. Returns (observations, mask). Raises ControlError when it cannot."""

    def close(self) -> None:
        """Releases the environments' resources."""
        return None


def saved_state(envs: Environments) -> dict[str, Any]:
    """Returns the environments' state, or why there is none: the rest of a run is saved anyway."""
    try:
        return envs.state_dict()
    except Exception as error:  # an environment of the user's own may raise anything
        return {"not_saved": str(error) or type(error).__name__}


def put_back(envs: Environments, state: dict[str, Any]) -> tuple[Obs, Flags | None]:
    """Continues ``envs`` from ``state`` of ``saved_state``. Raises what the environment raises, and
    ControlError where the state could not be saved."""
    if "not_saved" in state:
        raise ControlError(f"the state of {envs.spec.id} could not be saved ({state['not_saved']})")
    return envs.load_state_dict(state)
